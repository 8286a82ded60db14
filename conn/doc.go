// Package conn is one connected queue pair, or a raw stream, seen as a channel
// for messages: a small head and a payload of registered buffers.
//
//	Endpoint   a device and an arena: protection domain, pollers, completion queues, receive queues
//	Conn       one connected queue pair: messages in order, one-sided reads and writes on granted memory
//	Stream     a net.Conn as a raw pipe of registered buffers; it adds no byte to what it carries
//
// A message whose payload fits into a receive buffer of the peer, or whose
// payload the device can not grant, is sent eagerly: head and payload are
// gathered into SENDs, the receiver hands its receive buffers up. Larger ones
// go by rendezvous: the head travels with grants of the payload, the receiver
// fetches it by RDMA READ into buffers of the exact size, and tells the sender
// when it is done. PROTOCOL.md has the wire format.
//
// # Ownership
//
// The words are *takes* (on a nil error the reference moves to the callee; on an
// error the caller keeps it), *borrows* (until the call returns) and *returns a
// reference*. Every byte that a device may touch is referenced by the request
// that names it, from the post until its completion or until the queue pair is
// destroyed: a context that ends forgets the caller, never the buffer.
//
// # Memory and keys
//
// Payload may be of the endpoint's arena, of another arena or a buffer.RegCache
// that is registered on Endpoint.PD: nothing of it is copied. What the peer gets
// of it is a scoped key, or a type 2 window where the device's windows confine,
// or, of Config.Exposed alone, the key of a region; else payload is sent
// eagerly. Keys are withdrawn when the peer has said that it is done, when the
// peer invalidates them (GrantOnce), by Revoke, and with the connection.
//
// # Goroutines
//
//   - One per poller: it polls the completion queues of its lanes, handles
//     completions, runs OnMessage, OnFault and Admit, and re-drives send queues.
//     It never blocks. Started by NewEndpoint, ended by Shutdown or Close. While
//     it sleeps, a device whose completion channel has upcalls does the same work
//     in a goroutine of its own, which saves the hand-off: "on a poller" is
//     either. At most one of them works at a time.
//   - Two suppliers per endpoint: they wait for arena memory on behalf of pollers,
//     one for receive buffers, one for payloads. Started by NewEndpoint, ended by
//     Shutdown or Close.
//   - One for each head of a Conn that a TrySend had no memory for, and that is
//     smaller than those before: it waits for some, and ends with the connection.
//   - One per Listener, and one per connection request that is being answered,
//     each bounded by HandshakeTimeout.
//   - One reaper per Conn, started when it fails or is closed: it drains and
//     destroys the queue pair, and ends with that.
//   - One per completion queue that has failed, when its last connection is gone: it
//     destroys the queue, with its shared receive queue, and ends with that.
//   - One after a Shutdown that had to leave connections behind: it does the rest
//     when they are gone, and ends with that or with the next Shutdown.
//
// Endpoint.Shutdown and Endpoint.Close wait for all of them, unless a device does
// not let go of a queue pair, or a callback does not return.
//
// # Lock order
//
// poller.turning before every other lock; Endpoint.shutMu before Endpoint.mu; Conn.mu (the send lock) before poller.mu
// (the mailbox) and supplier.mu; Endpoint.mu before recvQueue.mu (Stats); lane.mu is taken alone; Conn.mu before a
// buffer.Grant. A queue pair is posted to under Conn.mu, a receive queue under
// recvQueue.mu. Callbacks run with poller.turning held, which makes those of a poller
// take turns, and with no other lock; but Message.Sent, and what LiveGrants yields to,
// run under Conn.mu. The state of the receiving side of a Conn
// has no lock: it belongs to its poller, and other goroutines ask by mail.
//
// # Errors
//
// ErrClosed, ErrPeerClosed, ErrRefused and *RefusedError, ErrProtocol, ErrTimeout,
// ErrTooLarge, ErrStaleGrant, ErrAccess, ErrViolation, ErrDeviceLost, ErrNotDestroyed,
// *UnreadableError, ErrNotSupported, verbs.ErrInvalid, verbs.ErrLimit, those of
// buffer for memory, and *FaultError with its FaultKind for connections that failed.
package conn
