//go:build ibverbs && linux && cgo

package fault

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/argonaut-rdma/argonaut/verbs"
	"github.com/argonaut-rdma/argonaut/verbs/ibverbs"
)

func init() {
	kernelDevice = func(t testing.TB, name, addr string) *verbs.Device {
		d, err := ibverbs.Open(ibverbs.Config{Device: name, Addr: addr, Core: verbs.Config{CloseTimeout: 20 * time.Second}})
		require.NoError(t, err)
		return d
	}
}
