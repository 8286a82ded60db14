package iwarp

import (
	"errors"
	"net"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

type iovec = syscall.Iovec

const iovMax = 1024 // UIO_MAXIOV

func makeIovec(p []byte) iovec {
	v := iovec{Base: unsafe.SliceData(p)}
	v.SetLen(len(p))
	return v
}

func iovecBytes(v *iovec) (unsafe.Pointer, int) { return unsafe.Pointer(v.Base), int(v.Len) }

// rawConn returns access to the descriptor where the connection is one that the fast path may read and write itself.
func rawConn(c net.Conn) syscall.RawConn {
	t, ok := c.(*net.TCPConn)
	if !ok {
		return nil
	}
	rc, err := t.SyscallConn()
	if err != nil {
		return nil
	}
	return rc
}

// writev and readv are one non-blocking call each. At the end of the stream readv returns 0 and nil.
func writev(fd uintptr, iov []iovec) (int, error) {
	raceSend(iov)
	return vectored(syscall.SYS_WRITEV, fd, iov)
}

func readv(fd uintptr, iov []iovec) (int, error) {
	n, err := vectored(syscall.SYS_READV, fd, iov)
	raceReceived(iov, n)
	return n, err
}

func vectored(trap, fd uintptr, iov []iovec) (int, error) {
	for {
		n, _, e := syscall.Syscall(trap, fd, uintptr(unsafe.Pointer(unsafe.SliceData(iov))), uintptr(len(iov)))
		switch e {
		case 0:
			return int(n), nil
		case syscall.EINTR:
			continue
		}
		return 0, e
	}
}

func wouldBlock(err error) bool { return errors.Is(err, syscall.EAGAIN) }

// userTimeout bounds how long sent data waits for its acknowledgement, and a peer may leave its window closed.
func userTimeout(c *net.TCPConn, d time.Duration) {
	rc := rawConn(c)
	if rc == nil {
		return
	}
	_ = rc.Control(func(fd uintptr) {
		_ = syscall.SetsockoptInt(int(fd), syscall.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(d.Milliseconds()))
	})
}

// maxSegment returns the path's MSS, 0 if it is not known.
func maxSegment(c net.Conn) int {
	rc := rawConn(c)
	if rc == nil {
		return 0
	}
	mss := 0
	_ = rc.Control(func(fd uintptr) {
		mss, _ = syscall.GetsockoptInt(int(fd), syscall.IPPROTO_TCP, syscall.TCP_MAXSEG)
	})
	return mss
}
