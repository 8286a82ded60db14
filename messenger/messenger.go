package messenger

import "context"

// Messenger is one entity's end of all its sessions. All methods are safe for
// concurrent use.
type Messenger struct{}

// New makes a messenger and opens its transports. Add dispatchers and set
// policies before Bind or ConnectTo. The caller ends it with Shutdown or Close.
// Errors: ErrInvalid, and those of Transport.Open.
func New(cfg Config) (*Messenger, error) { return nil, ErrNotSupported }

// Bind listens on addrs, each with port 0 for any port. It may be called more
// than once. When one address fails nothing new is bound. ctx bounds the call.
// Errors: ErrInvalid (a scheme without transport), those of the network.
func (m *Messenger) Bind(ctx context.Context, addrs AddrVec) error { return ErrNotSupported }

// Addrs is the addresses bound, with the ports and the nonce they got.
func (m *Messenger) Addrs() AddrVec { return nil }

// Name is Config.Name.
func (m *Messenger) Name() EntityName { return EntityName{} }

// SetPolicy sets the policy towards peers of type t. It holds for connections
// that are made afterwards. Without one, the policy is that of SetDefaultPolicy,
// at first StatelessServer for peers that connect and LossyClient for others.
func (m *Messenger) SetPolicy(t EntityType, p Policy) {}

// SetDefaultPolicy sets the policy towards peers of all types without one.
func (m *Messenger) SetDefaultPolicy(p Policy) {}

// AddDispatcher adds d at the end of the chain.
func (m *Messenger) AddDispatcher(d Dispatcher) {}

// ConnectTo returns the connection to the peer of type t at addrs: one that
// exists, or a new one. It does not block; messages may be sent at once and wait
// for the connection to be ready. The first address whose transport exists here
// is used. Errors: ErrClosed, ErrInvalid, ErrNotSupported (a lossless policy).
func (m *Messenger) ConnectTo(t EntityType, addrs AddrVec) (*Connection, error) {
	return nil, ErrNotSupported
}

// Loopback is the connection to ourselves: what is sent there is dispatched
// here, without a transport. It is always open.
func (m *Messenger) Loopback() *Connection { return nil }

// MarkDownAll marks every connection down.
func (m *Messenger) MarkDownAll() {}

// Stats returns the messenger's counters.
func (m *Messenger) Stats() Stats { return Stats{} }

// Shutdown ends the messenger: it stops listening, refuses new sends, flushes
// what is queued, closes every connection (HandleReset is not called), shuts
// the transports down, lets running handlers finish, and waits for all
// goroutines. When ctx ends, the rest is done without waiting for peers; the
// contexts of handlers end then. The error names what did not end in time.
// Waiting Sends and Calls end with ErrClosed. It must not be called from a
// handler. A second call waits for the first and returns nil.
func (m *Messenger) Shutdown(ctx context.Context) error { return ErrNotSupported }

// Close is Shutdown without waiting for peers or queues.
func (m *Messenger) Close() error { return nil }
