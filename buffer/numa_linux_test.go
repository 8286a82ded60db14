package buffer

import (
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// getPolicy asks for the memory policy of an address (get_mempolicy(2)).
func getPolicy(p unsafe.Pointer) (mode int32, nodes uint64, e unix.Errno) {
	const mpolFAddr = 2
	var mask [16]uint64
	_, _, e = unix.Syscall6(unix.SYS_GET_MEMPOLICY, uintptr(unsafe.Pointer(&mode)), uintptr(unsafe.Pointer(&mask)), 1024, uintptr(p), mpolFAddr, 0)
	return mode, mask[0], e
}

func policy(t *testing.T, p unsafe.Pointer) (mode int32, nodes uint64) {
	t.Helper()
	mode, nodes, e := getPolicy(p)
	require.Zero(t, e)
	return mode, nodes
}

// needPolicies skips where memory can not be bound to nodes.
func needPolicies(t *testing.T) {
	t.Helper()
	var x byte
	if _, _, e := getPolicy(unsafe.Pointer(&x)); e == unix.ENOSYS {
		t.Skip("this kernel has no memory policies")
	}
}

func TestNUMANodes(t *testing.T) {
	cfg := Config{Budget: 4 << 20, Initial: 1 << 20, RegionSize: 1 << 20, NUMANodes: []int{0}, Prefault: true}
	if raceBuild {
		t.Skip("race builds take memory from the Go heap")
	}
	needPolicies(t)
	a := newArena(t, cfg)
	mode, nodes := policy(t, a.regions[0].base)
	require.EqualValues(t, mpolBind, mode)
	require.EqualValues(t, 1, nodes)
	plain := newArena(t, Config{Budget: 4 << 20})
	mode, _ = policy(t, plain.regions[0].base)
	require.Zero(t, mode)
	for _, node := range []int{-1, 1000, 5000} {
		cfg.NUMANodes = []int{node}
		_, err := New(cfg)
		require.ErrorIs(t, err, ErrInvalid)
		require.ErrorContains(t, err, "the nodes online are "+onlineNodes())
	}
}
