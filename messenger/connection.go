package messenger

import (
	"context"
	"fmt"
	"time"

	"github.com/argonaut-rdma/argonaut/buffer"
)

// State is where a Connection stands.
type State uint8

// The states of a Connection.
const (
	StateConnecting State = iota // dialing, in the handshake, or waiting to try again
	StateOpen
	StateStandby // lossless only: waiting for the peer, or for something to send
	StateClosed
)

func (s State) String() string {
	switch s {
	case StateConnecting:
		return "connecting"
	case StateOpen:
		return "open"
	case StateStandby:
		return "standby"
	case StateClosed:
		return "closed"
	}
	return fmt.Sprintf("state%d", uint8(s))
}

// Connection is a session with one peer. All methods are safe for concurrent
// use, and may be called from handlers. After it has closed every call that
// needs the peer fails with an error that wraps Err.
type Connection struct{}

// Send queues m; nil means queued or handed to the transport, not delivered. It
// takes m. It blocks while the policy's queue limit is reached, until ctx ends:
// then nothing was sent. Messages of one priority are sent in the order of the
// calls. Errors: ctx's, ErrTooLarge, ErrInvalid, or why the connection ended.
func (c *Connection) Send(ctx context.Context, m *Message) error { return ErrNotSupported }

// TrySend is Send that never blocks: false where Send would, and the message
// stays the caller's.
func (c *Connection) TrySend(m *Message) (bool, error) { return false, ErrNotSupported }

// Call sends m with a new TID and waits for the message that replies to it,
// whose reference it returns. ctx's deadline travels with m and ends the
// handler's context at the peer, as cancelling does (peers of this project; a
// Ceph daemon answers by TID alone). It takes m: on an error the reference is
// still the caller's, though m may have been sent. Errors as Send, and
// ErrReset when the connection ends before the reply.
func (c *Connection) Call(ctx context.Context, m *Message) (*Message, error) {
	return nil, ErrNotSupported
}

// Ready blocks until the connection is open, has closed (its error is returned)
// or ctx ends: the error then wraps ctx's and says what the last attempt to
// connect failed with.
func (c *Connection) Ready(ctx context.Context) error { return ErrNotSupported }

// SendKeepalive asks the peer for a sign of life. It does not block; see
// LastKeepaliveAck.
func (c *Connection) SendKeepalive() {}

// LastKeepaliveAck is when the last keepalive that was answered was sent.
func (c *Connection) LastKeepaliveAck() time.Time { return time.Time{} }

// MarkDown ends the connection at once, by our own will: what is queued is
// dropped, and no reset callback comes. It does not block; handlers that run
// finish.
func (c *Connection) MarkDown() {}

// MarkDisposable makes the session lossy: with the next fault it is over.
func (c *Connection) MarkDisposable() {}

// SetUser keeps v, the user's session, with the connection.
func (c *Connection) SetUser(v any) {}

// User returns what SetUser kept, or nil.
func (c *Connection) User() any { return nil }

// Peer returns the peer's name, its addresses, and the features that both have.
// Before the connection is open the name has no number and features are 0.
func (c *Connection) Peer() (EntityName, AddrVec, uint64) { return EntityName{}, nil, 0 }

// Messenger returns the messenger that c belongs to.
func (c *Connection) Messenger() *Messenger { return nil }

// State returns where the connection stands.
func (c *Connection) State() State { return StateClosed }

// Err is why the connection has closed, or why the last attempt to connect
// failed, or nil.
func (c *Connection) Err() error { return ErrNotSupported }

// Stats returns the connection's counters and gauges.
func (c *Connection) Stats() ConnStats { return ConnStats{} }

// CanGrant reports whether Grant works on this connection now: it is open, and
// the transport confines remote access, or the peer is of this project on a
// stream.
func (c *Connection) CanGrant() bool { return false }

// Grant lets the peer read, or with write write, the bytes of l, until Revoke
// or the end of the transport; until then references to its buffers are held.
// It borrows l and returns one Grant per buffer, in order. A grant that may be
// written must not be read by us before it is revoked. Errors: ErrNotSupported
// when CanGrant is false.
func (c *Connection) Grant(ctx context.Context, l *buffer.List, write bool) ([]Grant, error) {
	return nil, ErrNotSupported
}

// Revoke ends grants: no byte is read or written through them after it
// returned nil. Grants that are not live are ignored.
func (c *Connection) Revoke(ctx context.Context, gs []Grant) error { return ErrNotSupported }

// Pull fills dst, which it borrows, from what the peer granted: dst.Len() bytes
// from offset off of all src together. It blocks until they are there, or ctx
// ends: then the buffers of dst stay referenced, and may be written, until the
// transfer is over. Errors: ErrInvalid (out of range), ErrStaleGrant, ctx's, or
// why the connection ended: on RDMA a grant that the peer has revoked ends it.
func (c *Connection) Pull(ctx context.Context, dst *buffer.List, src []Grant, off uint64) error {
	return ErrNotSupported
}

// Push writes src, which it borrows, into what the peer granted for writing,
// from offset off of all dst together. It blocks until the transport has taken
// it: what is sent on this connection afterwards arrives after the bytes are
// placed. Errors as Pull.
func (c *Connection) Push(ctx context.Context, dst []Grant, off uint64, src *buffer.List) error {
	return ErrNotSupported
}
