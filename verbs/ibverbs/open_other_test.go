//go:build !(ibverbs && linux && cgo)

package ibverbs

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/argonaut-rdma/argonaut/verbs"
)

func TestOpenSaysHowToBuild(t *testing.T) {
	require.False(t, Built)
	dev, err := Open(Config{})
	require.Nil(t, dev)
	require.ErrorIs(t, err, verbs.ErrNotSupported)
	for _, remedy := range []string{"-tags ibverbs", "CGO_ENABLED=1", "libibverbs-dev", "librdmacm-dev"} {
		require.ErrorContains(t, err, remedy)
	}
}
