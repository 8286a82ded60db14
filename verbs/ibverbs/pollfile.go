//go:build ibverbs && linux && cgo

package ibverbs

import (
	"fmt"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// pollFile waits in the Go netpoller for a descriptor that a C library owns.
// It holds a duplicate, so that neither closes the other's.
type pollFile struct {
	f   *os.File
	raw syscall.RawConn
}

// newPollFile makes fd non-blocking, for the C library too.
func newPollFile(fd int) (*pollFile, error) {
	if err := unix.SetNonblock(fd, true); err != nil {
		return nil, fmt.Errorf("ibverbs: set descriptor non-blocking: %w", err)
	}
	dup, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("ibverbs: duplicate descriptor: %w", err)
	}
	f := os.NewFile(uintptr(dup), "rdma")
	raw, err := f.SyscallConn()
	if err == nil {
		err = f.SetReadDeadline(time.Time{}) // fails where the descriptor can not be polled
	}
	if err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("ibverbs: wait for descriptor: %w", err)
	}
	return &pollFile{f, raw}, nil
}

// wait calls try, and again whenever the descriptor becomes readable, until it
// returns true. It returns os.ErrDeadlineExceeded after kick, until unkick. The
// netpoller is edge-triggered: try returns false only after it has seen EAGAIN.
func (p *pollFile) wait(try func(fd uintptr) bool) error { return p.raw.Read(try) }

// kick ends the current wait and all further ones.
func (p *pollFile) kick() { _ = p.f.SetReadDeadline(time.Unix(1, 0)) }

func (p *pollFile) unkick() { _ = p.f.SetReadDeadline(time.Time{}) }

// close ends wait with an error.
func (p *pollFile) close() { _ = p.f.Close() }
