package fault

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/argonaut-rdma/argonaut/verbs/verbstest"
)

func TestMain(m *testing.M) {
	verbstest.Main(m,
		// Importing ants starts these two.
		goleak.IgnoreAnyFunction("github.com/panjf2000/ants/v2.(*poolCommon).purgeStaleWorkers"),
		goleak.IgnoreAnyFunction("github.com/panjf2000/ants/v2.(*poolCommon).ticktock"))
}
