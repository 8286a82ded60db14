// Package iwarp is a software RNIC in pure Go: RDMAP, DDP and MPA over TCP (RFC 5040, 5041, 5044, 6581; 7306 between
// two of its own). It interoperates with anything that speaks iWARP, Linux's siw for one, and needs no RDMA hardware, no
// driver and no privilege.
//
// Open returns a device of package verbs; OpenDriver the provider alone.
//
// # The wire
//
// A connection begins with MPA request and reply, of revision 2 (IRD and ORD travel in them) or 1. Markers are never
// asked for and refused when asked for. A responder sends nothing before the initiator's first FPDU has come. Without
// the vendor extension everything is strict iWARP: segments that fit the path's MSS, opcodes of RFC 5040 only.
//
// The extension is a trailer behind the user's private data, which a responder sends only in answer to one; see
// internal/wire. Between two that have it: four-byte FPDU lengths and segments of up to 16 MiB; atomics and immediate
// data as in RFC 7306; SEND with immediate data, which that RFC lacks, as a SEND whose unused STag field holds it, marked
// by a reserved bit; no checksum where both waive it; and an empty WRITE as the initiator's first FPDU, so that the
// responder may send at once.
//
// # Semantics
//
// A SEND or WRITE completes when it was handed to TCP, not when it was placed. Completions of a send queue come in
// posting order. An incoming segment is checked for key, PD, QP, rights and bounds; a violation is answered with a
// Terminate and ends the connection, as does a message without a receive. Everything outstanding then completes with
// WR_FLUSH_ERR, in order; so do later posts. Only memory windows and scoped keys, which are bound to one QP, may be
// invalidated by the peer.
//
// Registration without pinning is O(1). An operation uses a region for one copy or one non-blocking system call, never
// while parked: Deregister waits for those only. Should it cut a READ response or a WRITE in mid-segment, the connection
// is reset, for the peer waits for bytes that must not be sent.
//
// # Goroutines
//
// A connected QP has two. The receiver is parked in the netpoller when there is nothing to read, and holds no large
// buffer then. It reads payload straight into its destination and small messages in bulk, answers READs, and ends
// the connection. The sender is parked on a channel: posts write to the socket themselves, without blocking, and hand
// over to it only what the socket does not take. Both end when the QP is in ERR, within Config.Linger; Destroy does not
// wait that long, Device.Close cuts it short and waits. A listener has one, and one for each handshake; its Close waits
// for them. Nothing spins, sleeps or polls.
//
// Connections that are not TCP sockets, and all on systems other than Linux, go through one bounce buffer each way, of
// 64 KiB and for as long as the connection lives, and are always written by the sender goroutine.
//
// # Locks, in order
//
// sender.mu (one writer on a socket; only tried, never waited for, by posts), queuePair.mu (state and cause),
// sendQueue.mu (ring and order of completion), recvQueue.mu, cq.mu, compChannel.mu, eventQueue.mu, Device.mu.
// window.mu comes after sender.mu; its holder may wait for a region to drain, which takes one system call.
package iwarp
