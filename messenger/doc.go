// Package messenger is a storage cluster's messenger: named entities, sessions
// between them under per-type policies, dispatchers, throttles, calls, and
// one-sided access to granted memory. On a byte stream it speaks Ceph's msgr
// v2.1, on RDMA the same frames as messages; see PROTOCOL.md.
//
//	m, err := messenger.New(messenger.Config{Name: messenger.EntityName{Type: messenger.OSD, Num: 0}, Arena: arena, ...})
//	m.AddDispatcher(d)
//	err = m.Bind(ctx, addrs)                    // a server
//	c, err := m.ConnectTo(messenger.OSD, addrs) // a client
//	reply, err := c.Call(ctx, msg)
//	err = m.Shutdown(ctx)
//
// A lossy session ends with its transport: what was not delivered is lost, and
// HandleReset says so. A lossless one goes on, on another transport of the same
// peer where there are several: every message is delivered once and in order,
// until one side drops the session (MarkDown, a restart). Where the policy of
// whoever is connected to has ResetCheck, the other side learns of that by
// HandleRemoteReset, and what it had queued is dropped; otherwise (LosslessPeer)
// the session begins anew without a word: what the peer had not acknowledged is
// sent to its new incarnation, what it had is gone. What has been sent stays
// referenced, payload included, until the peer has acknowledged it
// (ConnStats.UnackedBytes).
//
// A peer that may start again is connected to by its plain address
// (ParseAddrs): the nonce in what Messenger.Addrs returns, and in what a map of a
// cluster tells, is that of one incarnation.
//
// Send returns when a message is queued: nobody is called when it is given up
// later. HandleReset and HandleRemoteReset say that some may have been, and
// ConnStats.Undelivered how many of those that were known not to have arrived.
// Who has to know of each uses Call, or numbers its messages and asks the peer,
// in the new session, which it has.
//
// # Security
//
// Config.Auth says how peers prove who they are: AuthNone (not at all), AuthTLS
// (certificates of both sides), or what a user plugs in. Config.Modes says how
// frames are protected afterwards: ModeCRC against accidents, ModeSecure against
// attackers; the server decides, and nobody on the way can change what was
// negotiated. After a keyed method a peer is the entity that it says it is, and
// gets no session of another, nor goes on with one of another that we had with it.
// What else a method knows of a peer is Connection.Identity. In ModeSecure payload is sealed into memory of its
// own: on a stream off the arena, on RDMA in the arena, as much again as the
// message being sent has; grants work in frames.
//
// Before a peer has authenticated it costs a handshake of Config.ConnectTimeout
// at most, 64 KiB in each direction, and on RDMA a connection's send slots and two
// receive buffers (conn.Config.StagedCredits; it has the others with its session);
// Config.MaxHalfOpen and MaxHalfOpenPerHost bound how many there are.
//
// # Order
//
// Priorities order what waits to be sent on a connection. What has been received is
// handled in the order in which it came, connection by connection: those with
// something to handle take turns of 16 messages on Config.Workers, none waits for
// the handlers of another one as long as there are workers, and FastDispatch passes
// all of them. (Ceph's one dispatch thread takes what all connections have received
// in the order of its priorities, where it is not dispatched fast.)
//
// # Transports that fail
//
// A session that loses its transport tries the addresses of its peer anew, the best
// first, and goes on with the first that can be had: where a network or a device has
// failed on either side, that is another transport. It stays there until that ends.
// A device that is lost (conn.Endpoint.Lost) is not used any more, nor are peers told
// of addresses on it; Health says so. A lossy connection whose peer can be reached by
// nothing else ends with conn.ErrDeviceLost, a lossless one waits for the peer.
//
// # Ownership
//
// Messages are reference counted. Send and Call *take* a message: on a nil error
// the reference moves to the messenger, on an error the caller keeps it. A
// handler that consumes a message owns a reference and releases it, best with
// defer: a handler that panics before it releases leaks the message. Payload is
// a buffer.List that the message owns; it is not copied, but for what is short
// (conn.Config.CopyBreak) and in secure mode on a stream: what RDMA or the socket
// read into is what the handler gets, and what the handler sends is what the
// adapter or the socket reads. Throttles are held by a received message until its
// last Release: a handler that keeps messages slows its peers down.
//
// # Calls that fail
//
// A Call ends as soon as it is known that there will be no answer: with ErrReset
// when the session or the connection is over, or begins anew with a peer that had
// taken the request and has lost it, and with a *RemoteError when the
// peer says so (nobody handles the message, its handler has panicked, refused it
// or released it unanswered, the answer is too large, the peer is draining). One
// that ends with its context says whether the message has been sent. What the peer does not take,
// which it has told in the handshake, fails with ErrTooLarge here, and the
// connection lives.
//
// # Operation
//
// Stats, ConnStats, Inspect and, with Config.Latencies, Latencies tell what goes
// on; package inspect serves it and Health over HTTP, package prometheus collects
// it. Drain readies a process for its restart: what is under way ends, what is new
// is sent elsewhere. Message.Trace carries a trace context.
//
// # Goroutines
//
//   - One per session that connects, while it does: it dials, runs the handshake
//     of a stream, and waits out pauses.
//   - One per stream transport: it runs the handshake of one that was accepted,
//     then reads. It ends with the transport. FastDispatch and FastHandler run
//     here. All reading of RDMA, and its handshakes, run on the pollers of package
//     conn.
//   - One per connection that has something queued: it sends until the queue is
//     empty. On RDMA it exists only when a message could not be sent by its
//     caller at once.
//   - The workers of the dispatch pool, at most twice Config.Workers: they run
//     strands, which call Dispatch and the other methods of Dispatcher.
//   - One per exchange of AuthTLS; it ends with the handshake of its transport.
//   - One per transport that ends with something to be told before, a second at
//     most: why a handshake is refused, that a call's handler has panicked.
//   - One per stream listener; one per transport, which waits for the loss of its
//     device; one ticker per messenger.
//
// Shutdown and Close wait for all of them.
//
// # Lock order
//
// Messenger.mu before Connection.mu before link.mu; Connection.mu before
// strand.mu, before the mu of a transport's bulk tables, and before conn's
// locks; the lists of held messages come last. None is held while a Dispatcher runs or a Message is released, nor that
// of a throttle while a waiter is woken. Connection.recvMu comes before all of
// them and is held while FastDispatch runs; only what receives takes it.
//
// # Errors
//
// ErrClosed, ErrReset, ErrTimeout, ErrProtocol, ErrAuth, ErrFeatures,
// ErrForged, ErrBusy, ErrTooLarge, ErrUnreadable, ErrStaleGrant, ErrBadGrant, ErrInvalid,
// ErrNotSupported, ErrHandlerPanic, ErrWrongPeer, ErrDuplicate, ErrDraining, ErrResumed, ErrPeerClosed, ErrRemote
// with *RemoteError, a context's error, and *FaultError with the errors of conn and
// net in it. A reference to a message that is sent twice panics, in the caller.
package messenger
