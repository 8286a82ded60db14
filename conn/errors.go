package conn

import (
	"errors"
	"fmt"

	"github.com/argonaut-rdma/argonaut/verbs"
)

// Errors to be tested for with errors.Is.
var (
	// ErrClosed is net.ErrClosed: the Conn or Endpoint was closed by our side.
	ErrClosed = verbs.ErrClosed
	// ErrNotSupported: the device, or the peer's, lacks what the call needs.
	ErrNotSupported = verbs.ErrNotSupported
	// ErrRefused: the peer refused the connection, or nobody listens.
	ErrRefused = verbs.ErrRefused
	// ErrProtocol: the peer broke the protocol.
	ErrProtocol = verbs.ErrProtocol
	// ErrTooLarge: the head does not fit into a SEND, or the payload is larger
	// than the peer accepts. Nothing was sent.
	ErrTooLarge = errors.New("message too large")
	// ErrStaleGrant: the grant is of another connection, or of an earlier one.
	ErrStaleGrant = errors.New("grant of another connection")
	// ErrAccess: the peer's device has refused an access to its memory, because the
	// grant is not live any more, never was, or does not reach so far. It ends
	// the connection.
	ErrAccess = errors.New("access refused by the peer's device")
	// ErrViolation: our device has refused an access of the peer's to our memory: it
	// had no such grant, or not any more, or reached outside of it. It ends the
	// connection. On iwarp it is always told. A device of the kernel refuses, flushes
	// the queues and raises an event, if it does raise one (rxe does not at all, siw
	// not for a key that does not exist); that comes by a descriptor of its own, in no
	// order with the completions and with the end of the connection. Where one of
	// these is seen first, all that is known is that the connection is gone.
	ErrViolation = errors.New("the peer has reached for memory that it was not granted")
	// ErrPeerClosed: the peer has closed the connection, by Conn.Close or with its
	// endpoint. What either side had sent may not have arrived. (After a graceful
	// end, where all has, it is io.EOF.)
	ErrPeerClosed = errors.New("closed by the peer")
	// ErrDeviceLost: the device was removed, or has failed, see Endpoint.Lost.
	ErrDeviceLost = verbs.ErrDeviceLost
	// ErrNotDestroyed: a connection that was cut should be gone by now, and is not.
	// Its memory stays referenced until it is.
	ErrNotDestroyed = errors.New("its queue pair is not destroyed yet: the device has not let go of it, or a callback does not return")
	// ErrTimeout: the peer did not do in time what the protocol asks of it.
	ErrTimeout = errors.New("timed out")
)

// FaultKind says whose fault the end of a connection was.
type FaultKind uint8

// The kinds of faults.
const (
	FaultPath  FaultKind = iota // the path or the peer's node is gone: reconnecting may help
	FaultPeer                   // the peer broke the protocol or refused an access
	FaultLocal                  // our own bug, or the device's, which may be lost (verbs.ErrDeviceLost): never retried
)

var faultKindNames = [...]string{"path fault", "peer fault", "local fault"}

func (k FaultKind) String() string {
	if int(k) < len(faultKindNames) {
		return faultKindNames[k]
	}
	return fmt.Sprint(uint8(k))
}

// FaultError is why a connection ended that neither side closed. Err is the
// cause: a *verbs.WCError, ErrProtocol, ErrTimeout, verbs.ErrDeviceLost ...
type FaultError struct {
	Kind   FaultKind
	Remote string // the peer's address
	Err    error
}

func (e *FaultError) Error() string {
	return fmt.Sprintf("connection to %s: %v: %v", e.Remote, e.Kind, e.Err)
}

// Unwrap returns the cause.
func (e *FaultError) Unwrap() error { return e.Err }

// RefusedError is the refusal of a connection by the peer's endpoint. It
// matches ErrRefused.
type RefusedError struct {
	Remote string
	Reason string // "busy", "version" ...
}

func (e *RefusedError) Error() string {
	return fmt.Sprintf("connection to %s refused: %s", e.Remote, e.Reason)
}

// Is reports whether target is ErrRefused.
func (e *RefusedError) Is(target error) bool { return target == ErrRefused }
