package iwarp

import (
	"errors"
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/argonaut-rdma/argonaut/verbs/driver"
)

func mlock(addr, n uint64) error {
	_, _, e := syscall.Syscall(syscall.SYS_MLOCK, uintptr(addr), uintptr(n), 0)
	if e == 0 {
		return nil
	}
	if errors.Is(e, unix.ENOMEM) || errors.Is(e, unix.EPERM) || errors.Is(e, unix.EAGAIN) {
		var lim unix.Rlimit
		if unix.Getrlimit(unix.RLIMIT_MEMLOCK, &lim) == nil {
			return fmt.Errorf("iwarp: mlock of %d bytes, limit %d in all: %w: raise it with ulimit -l, LimitMEMLOCK= or CAP_IPC_LOCK", n, lim.Cur, driver.ErrMemlock)
		}
	}
	return fmt.Errorf("iwarp: mlock of %d bytes: %w", n, e)
}

func munlock(addr, n uint64) {
	_, _, _ = syscall.Syscall(syscall.SYS_MUNLOCK, uintptr(addr), uintptr(n), 0)
}
