//go:build ibverbs && linux && cgo

package ibverbs

import (
	"net"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/argonaut-rdma/argonaut/verbs"
	"github.com/argonaut-rdma/argonaut/verbs/verbstest"
)

// skips are the subtests that a device is known to lack something for.
var skips = map[string][]string{}

func TestConformance(t *testing.T) {
	name, addr := os.Getenv("ARGONAUT_RDMA_DEVICE"), os.Getenv("ARGONAUT_RDMA_ADDR")
	if name == "" {
		t.Skip("no RDMA device: ARGONAUT_RDMA_DEVICE is not set")
	}
	verbstest.Run(t, verbstest.Config{
		Open: func(tb testing.TB) *verbs.Device {
			d, err := Open(Config{Device: name, Addr: addr})
			require.NoError(tb, err)
			return d
		},
		ListenAddr: net.JoinHostPort(addr, "0"),
		Skips:      skips[name],
	})
}
