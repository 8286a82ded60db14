package buffer

import (
	"fmt"
	"os"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// From linux/mempolicy.h.
const (
	mpolBind       = 2
	mpolMFStrict   = 1
	maxNUMANodes   = 1024
	bitsPerNUMARow = 64
)

// bind makes fresh memory come from nodes only.
func bind(mem []byte, nodes []int) error {
	var mask [maxNUMANodes / bitsPerNUMARow]uint64
	for _, n := range nodes {
		if n < 0 || n >= maxNUMANodes {
			return fmt.Errorf("%w: Config.NUMANodes has %d: the nodes online are %s", ErrInvalid, n, onlineNodes())
		}
		mask[n/bitsPerNUMARow] |= 1 << (n % bitsPerNUMARow)
	}
	_, _, e := unix.Syscall6(unix.SYS_MBIND, uintptr(unsafe.Pointer(unsafe.SliceData(mem))), uintptr(len(mem)),
		mpolBind, uintptr(unsafe.Pointer(&mask)), maxNUMANodes, mpolMFStrict)
	switch e {
	case 0:
		return nil
	case unix.EINVAL:
		return fmt.Errorf("%w: Config.NUMANodes %v: the nodes online are %s", ErrInvalid, nodes, onlineNodes())
	case unix.ENOSYS:
		return fmt.Errorf("%w: Config.NUMANodes: this kernel has no memory policies", ErrNotSupported)
	}
	return fmt.Errorf("buffer: bind memory to NUMA nodes %v: %w", nodes, os.NewSyscallError("mbind", e))
}

func onlineNodes() string {
	b, err := os.ReadFile("/sys/devices/system/node/online")
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(string(b))
}
