package verbs_test

import (
	"testing"

	"github.com/argonaut-rdma/argonaut/verbs/verbstest"
)

func TestMain(m *testing.M) { verbstest.Main(m) }
