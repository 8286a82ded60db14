package driver

import (
	"errors"
	"net"
)

// Errors that providers return, wrapped with what they were doing. They are the
// same values in package verbs.
var (
	// ErrClosed is returned by calls on, or blocked in, a closed object.
	ErrClosed = net.ErrClosed
	// ErrNotSupported: the device has no such operation; its Caps say so.
	ErrNotSupported = errors.ErrUnsupported
	// ErrQueueFull: the queue has no free entry until a completion is polled.
	ErrQueueFull = errors.New("queue full")
	// ErrQPState: the operation is not allowed in the QP's state.
	ErrQPState = errors.New("operation not allowed in this QP state")
	// ErrInvalid: an argument is out of range.
	ErrInvalid = errors.New("invalid argument")
	// ErrLimit: the device has no more of the resource.
	ErrLimit = errors.New("device limit reached")
	// ErrMemlock: pinning needs more locked memory than RLIMIT_MEMLOCK allows.
	ErrMemlock = errors.New("RLIMIT_MEMLOCK too low")
	// ErrRefused: the peer refused the connection request, or nobody listens.
	ErrRefused = errors.New("connection refused")
	// ErrProtocol: the peer broke the protocol.
	ErrProtocol = errors.New("protocol error")
	// ErrDeviceLost: the device was removed or failed.
	ErrDeviceLost = errors.New("device lost")
)

// RejectError is the refusal of a connection request by the peer's Reject. It
// matches ErrRefused.
type RejectError struct {
	PrivateData []byte // what the peer said; may be empty
}

func (e *RejectError) Error() string { return "connection rejected by the peer" }

// Is reports whether target is ErrRefused.
func (e *RejectError) Is(target error) bool { return target == ErrRefused }
