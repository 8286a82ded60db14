package conn

import (
	"context"
	"net"

	"github.com/argonaut-rdma/argonaut/buffer"
	"github.com/argonaut-rdma/argonaut/verbs"
)

// Endpoint makes and accepts connections on one device, with the memory of one
// arena. All methods are safe for concurrent use.
type Endpoint struct{}

// NewEndpoint makes an endpoint: it allocates a protection domain on dev,
// attaches a to it and starts the pollers. The device and the arena stay the
// caller's, and outlive the endpoint.
func NewEndpoint(dev *verbs.Device, a *buffer.Arena, cfg Config) (*Endpoint, error) {
	return nil, ErrNotSupported
}

// Device returns the device.
func (e *Endpoint) Device() *verbs.Device { return nil }

// Arena returns the arena.
func (e *Endpoint) Arena() *buffer.Arena { return nil }

// PD returns the endpoint's protection domain.
func (e *Endpoint) PD() *verbs.PD { return nil }

// Listen accepts connections on addr, "host:port" with port 0 for any, until
// Shutdown or Close. It may be called more than once. ctx bounds the call.
func (e *Endpoint) Listen(ctx context.Context, addr string) error { return ErrNotSupported }

// Addrs are the addresses listened on, with the ports that were bound.
func (e *Endpoint) Addrs() []net.Addr { return nil }

// Addr is the first of Addrs, or nil.
func (e *Endpoint) Addr() net.Addr { return nil }

// Dial connects to the endpoint listening on addr, "host:port". It blocks until
// the peer has accepted, at most for HandshakeTimeout. Errors: *RefusedError,
// ErrRefused, ErrProtocol (the peer is no endpoint of ours, or of no common
// version), ErrClosed, ctx's error.
func (e *Endpoint) Dial(ctx context.Context, addr string) (*Conn, error) { return nil, ErrNotSupported }

// DialUser is Dial with Conn.SetUser(user) before the first callback can run.
func (e *Endpoint) DialUser(ctx context.Context, addr string, user any) (*Conn, error) {
	return nil, ErrNotSupported
}

// Stats returns the endpoint's counters.
func (e *Endpoint) Stats() Stats { return Stats{} }

// Shutdown ends the endpoint gracefully: it stops listening, refuses new sends,
// flushes send queues, says goodbye to the peers and waits until they have
// closed, then drains and destroys everything down to the protection domain, in
// that order. When ctx ends, the rest is done at once, without waiting for
// peers. It blocks until no callback runs any more and all goroutines have
// ended. The error names what could not be released.
// It must not be called from a callback.
func (e *Endpoint) Shutdown(ctx context.Context) error { return ErrNotSupported }

// Close is Shutdown without waiting for peers. A further Close returns nil.
func (e *Endpoint) Close() error { return nil }
