//go:build ibverbs && linux && cgo

package ibverbs

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/argonaut-rdma/argonaut/verbs/driver"
)

// opErr names the call that returned errno and adds the driver error that it
// means, if any. A nil errno is nil.
func opErr(call string, errno error) error {
	if errno == nil {
		return nil
	}
	for _, m := range []struct {
		errno unix.Errno
		err   error
	}{
		{unix.EINVAL, driver.ErrInvalid},
		{unix.EOPNOTSUPP, driver.ErrNotSupported},
		{unix.ENOSYS, driver.ErrNotSupported},
		{unix.EIO, driver.ErrDeviceLost},
		{unix.ENODEV, driver.ErrDeviceLost},
		{unix.ECONNREFUSED, driver.ErrRefused},
	} {
		if errors.Is(errno, m.errno) {
			return fmt.Errorf("%s: %w: %w", call, errno, m.err)
		}
	}
	return fmt.Errorf("%s: %w", call, errno)
}

// channelErr is why there is no event channel of the connection manager. It has
// none where there is no device either: that is not the loss of one.
func channelErr(errno error) error {
	const call = "rdma_create_event_channel"
	if errors.Is(errno, unix.ENODEV) {
		return fmt.Errorf("ibverbs: this machine has no RDMA device (an adapter's driver makes one, or `rdma link add rxe0 "+
			"type rxe netdev INTERFACE` in software): %s: %w: %w", call, errno, os.ErrNotExist)
	}
	return fmt.Errorf("ibverbs: the RDMA connection manager can not be used (is the kernel module rdma_ucm "+
		"loaded, and /dev/infiniband/rdma_cm accessible?): %w", opErr(call, errno))
}

// createErr is opErr for calls that make something: out of memory is out of
// the device's, too.
func createErr(call string, errno error) error {
	if errors.Is(errno, unix.ENOMEM) || errors.Is(errno, unix.EAGAIN) || errors.Is(errno, unix.ENOSPC) {
		return fmt.Errorf("%s: %w: %w", call, errno, driver.ErrLimit)
	}
	return opErr(call, errno)
}

// postErr is why a post stopped short. siw reports a full queue without an
// error number.
func postErr(call string, errno unix.Errno) error {
	switch errno {
	case 0, unix.ENOMEM, unix.ENOSPC, unix.EAGAIN:
		return fmt.Errorf("%s: %w", call, driver.ErrQueueFull)
	default:
		return opErr(call, errno)
	}
}

// faultErr is the error of a post by which the queue has faulted, with left
// requests not posted: without any there is none, what has been posted comes back
// as with any queue that fails.
func faultErr(call string, errno unix.Errno, left int) error {
	if left == 0 {
		return nil
	}
	return fmt.Errorf("%s: %w: %w", call, errno, driver.ErrQPState)
}

// regErr is why a registration of n bytes failed.
func (d *device) regErr(n int, errno error) error {
	switch {
	case errors.Is(errno, unix.ENOMEM):
		if limit, pinned, ok := memlock(d.siw()); ok && pinned+uint64(n) > limit {
			return fmt.Errorf("ibv_reg_mr: %d bytes to pin, %d pinned already, but RLIMIT_MEMLOCK is %d: raise it to at "+
				"least %d (ulimit -l %d; systemd: LimitMEMLOCK=%d), or give the process CAP_IPC_LOCK: %w: %w",
				n, pinned, limit, pinned+uint64(n), (pinned+uint64(n)+1023)/1024, pinned+uint64(n), errno,
				driver.ErrMemlock)
		}
		return createErr("ibv_reg_mr", errno)
	case errors.Is(errno, unix.EFAULT):
		return fmt.Errorf("ibv_reg_mr: memory that is not mapped, not writable, or of a file that can not be pinned: "+
			"%w: %w", errno, driver.ErrInvalid)
	default:
		return createErr("ibv_reg_mr", errno)
	}
}

// memlock returns RLIMIT_MEMLOCK and the bytes pinned by the process, and
// whether the limit binds it: CAP_IPC_LOCK lifts it, but siw (always) does not
// ask for that.
func memlock(always bool) (limit, pinned uint64, ok bool) {
	var r unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &r); err != nil || r.Cur == unix.RLIM_INFINITY {
		return 0, 0, false
	}
	status, err := os.ReadFile("/proc/thread-self/status")
	if err != nil {
		return 0, 0, false
	}
	for line := range strings.Lines(string(status)) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		value = strings.TrimSpace(value)
		switch key {
		case "VmPin":
			kib, err := strconv.ParseUint(strings.TrimSuffix(value, " kB"), 10, 64)
			if err != nil {
				return 0, 0, false
			}
			pinned = kib * 1024
		case "CapEff":
			caps, err := strconv.ParseUint(value, 16, 64)
			if err != nil || caps&(1<<unix.CAP_IPC_LOCK) != 0 && !always {
				return 0, 0, false
			}
		}
	}
	return r.Cur, pinned, true
}
