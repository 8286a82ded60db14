package conn

import (
	"context"
	"net"

	"github.com/argonaut-rdma/argonaut/buffer"
)

// Conn is a connection to one peer: messages in order, both ways, and one-sided
// access to granted memory. All methods are safe for concurrent use, and may be
// called from callbacks unless they block.
type Conn struct{}

// Send sends m. It takes m.Payload and borrows m.Head. It blocks while credits
// or send buffers are out, until ctx ends: then nothing was sent. nil means
// accepted, not delivered: whether it arrives is for the layer above to learn
// from the peer. Messages are sent in the order of acceptance; waiting Sends
// are accepted first come first served. Errors: ErrTooLarge, ErrInvalid (a
// payload of another arena), ctx's error, or why the connection ended.
func (c *Conn) Send(ctx context.Context, m Message) error { return ErrNotSupported }

// TrySend is Send where that does not block, else it returns false and sends
// nothing: m.Payload stays the caller's, and Config.OnWritable tells when to try
// again.
func (c *Conn) TrySend(m Message) (bool, error) { return false, ErrNotSupported }

// Grant lets the peer read, or with write write, the bytes of l until Revoke or
// the end of the connection; until then it holds references of its own. It
// borrows l. It returns one Grant per buffer of l, in order. Errors:
// ErrNotSupported where the device can not confine a grant to the range and the
// connection.
func (c *Conn) Grant(ctx context.Context, l *buffer.List, write bool) ([]Grant, error) {
	return nil, ErrNotSupported
}

// Revoke ends grants: no byte is read or written through them after it
// returned nil. Grants that are not live are ignored.
func (c *Conn) Revoke(ctx context.Context, gs []Grant) error { return ErrNotSupported }

// Read fills dst, which it borrows, from the peer's memory granted by src, from
// offset off on. It blocks until all bytes are there, or until ctx ends: then
// the transfer goes on and may still write to dst's buffers, which stay
// referenced until it is over. Errors: ErrStaleGrant, ErrInvalid (out of the
// grant's range, or not a read grant), ctx's error, or why the connection ended:
// a grant that the peer has revoked ends the connection.
func (c *Conn) Read(ctx context.Context, dst *buffer.List, src Grant, off uint64) error {
	return ErrNotSupported
}

// Write writes src, which it borrows, to the peer's memory granted by dst, from
// offset off on. It blocks until the transport has taken all bytes, which is
// not yet that they are placed; what is sent on this Conn afterwards arrives
// after them. Errors as Read.
func (c *Conn) Write(ctx context.Context, dst Grant, off uint64, src *buffer.List) error {
	return ErrNotSupported
}

// Resume asks Admit again for a message that it has refused. It does not block.
func (c *Conn) Resume() {}

// MaxHead is the largest head that can be sent, in bytes.
func (c *Conn) MaxHead() int { return 0 }

// MaxMessage is the largest payload that the peer accepts, in bytes.
func (c *Conn) MaxMessage() int64 { return 0 }

// CanGrant reports whether Grant works on this connection: whether the device
// confines remote access to the range and the connection.
func (c *Conn) CanGrant() bool { return false }

// Epoch is the number of this connection that grants carry.
func (c *Conn) Epoch() uint32 { return 0 }

// Endpoint returns the endpoint.
func (c *Conn) Endpoint() *Endpoint { return nil }

// SetUser keeps v for the layer above.
func (c *Conn) SetUser(v any) {}

// User returns what SetUser kept, or nil.
func (c *Conn) User() any { return nil }

// LocalAddr is our address.
func (c *Conn) LocalAddr() net.Addr { return nil }

// RemoteAddr is the peer's address.
func (c *Conn) RemoteAddr() net.Addr { return nil }

// Err is why the connection ended, as OnFault gets it, or nil while it lives.
func (c *Conn) Err() error { return nil }

// Done is closed once the connection has ended, OnFault has returned, and every
// reference that it held has been given back.
func (c *Conn) Done() <-chan struct{} { return nil }

// Stats returns the connection's counters.
func (c *Conn) Stats() ConnStats { return ConnStats{} }

// Shutdown ends the connection gracefully: it refuses new sends, flushes what
// was accepted, says goodbye, and waits until the peer has closed; when ctx ends
// first, the connection is cut and ctx's error returned. It blocks, so it must
// not be called from a callback.
func (c *Conn) Shutdown(ctx context.Context) error { return nil }

// Close ends the connection at once; what was accepted may not arrive. It does
// not block; Done tells when all is given back. Waiting calls end with
// ErrClosed. A further Close returns nil.
func (c *Conn) Close() error { return nil }
