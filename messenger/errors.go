package messenger

import (
	"errors"
	"fmt"
	"net"

	"github.com/argonaut-rdma/argonaut/messenger/internal/msgr2"
)

// Errors to be tested for with errors.Is.
var (
	// ErrClosed is net.ErrClosed: the Messenger was shut down, or the
	// Connection was marked down by our side.
	ErrClosed = net.ErrClosed
	// ErrNotSupported: the transport, or the peer, lacks what the call needs.
	ErrNotSupported = errors.ErrUnsupported
	// ErrProtocol: the peer broke the protocol, or does not speak it.
	ErrProtocol = errors.New("messenger: protocol error")
	// ErrAuth: authentication failed, on either side.
	ErrAuth = errors.New("messenger: authentication failed")
	// ErrBusy: more peers than Config.MaxHalfOpen or MaxHalfOpenPerHost are in the
	// handshake. It is logged; the peer finds its connection closed.
	ErrBusy = errors.New("messenger: too many handshakes under way")
	// ErrForged: a sealed record did not open: it was changed, cut, repeated or
	// reordered on its way, or was not sealed by the peer.
	ErrForged = msgr2.ErrForged
	// ErrFeatures: one side requires features that the other lacks.
	ErrFeatures = errors.New("messenger: missing features")
	// ErrWrongPeer: who is at the address is not whom the dialer means, but an
	// entity of another type, or one known by another address, or another
	// incarnation (nonce). The text says who was asked for and who is there.
	ErrWrongPeer = errors.New("messenger: wrong peer")
	// ErrDuplicate: another Connection of this Messenger is connected to, or is
	// connecting to, the peer that this one has come to. Use that one.
	ErrDuplicate = errors.New("messenger: the peer has another connection")
	// ErrDraining: the peer takes no new sessions and calls, see Messenger.Drain.
	ErrDraining = errors.New("messenger: draining")
	// ErrResumed: Messenger.Resume has ended the Drain that waited.
	ErrResumed = errors.New("messenger: resumed")
	// ErrRemote: the peer has had the call, and will not answer it: a
	// *RemoteError says why.
	ErrRemote = errors.New("messenger: the call was not answered")
	// ErrTimeout: the peer did not do in time what the protocol asks of it.
	ErrTimeout = errors.New("messenger: timed out")
	// ErrReset: the session is over, because its transport failed and the
	// policy is lossy, or because the peer has dropped it.
	ErrReset = errors.New("messenger: session reset")
	// ErrPeerClosed: the peer's side has ended the transport on purpose: it has
	// marked the connection down, is shutting down, has another transport for the
	// session, or does not want to go on. (On a stream a process that is killed
	// looks the same.) A lossy session is over; a lossless one goes on as after any
	// fault: with nothing to send and Policy.Standby it waits for the peer.
	ErrPeerClosed = errors.New("messenger: closed by the peer")
	// ErrTooLarge: the message is larger than the transport or the peer takes.
	ErrTooLarge = errors.New("messenger: message too large")
	// ErrUnreadable: the payload is in memory that can not be read any more, such as
	// that of a mapped file which has been cut.
	ErrUnreadable = errors.New("messenger: payload can not be read")
	// ErrStaleGrant: the grant belongs to another connection, or to an earlier
	// transport of this one, or, where the access travels in frames, was revoked.
	ErrStaleGrant = errors.New("messenger: stale grant")
	// ErrBadGrant: the peer has no such grant, or has revoked it, or it does not
	// reach so far. Where the access travels in frames (on a stream, and in
	// ModeSecure) the error matches ErrStaleGrant too, and the connection lives.
	// On RDMA the peer's device has refused the access, which ends the
	// connection: the session goes on or is over, as its policy says.
	ErrBadGrant = errors.New("messenger: grant refused")
	// ErrInvalid: an argument is out of range.
	ErrInvalid = errors.New("messenger: invalid argument")
	// ErrHandlerPanic: a dispatcher panicked while it handled a message of this
	// connection.
	ErrHandlerPanic = errors.New("messenger: handler panicked")
)

// errWrongType: there is an entity of another type; it will not become the right
// one.
var errWrongType = fmt.Errorf("%w: of another type", ErrWrongPeer)

// FaultError is why a connection, or an attempt to connect, ended that nobody
// on this side ended on purpose. Err is the cause: an error of package conn,
// of the network, or one of this package's.
type FaultError struct {
	Peer string // the peer's address, as it was dialed or accepted
	Op   string // "dial", "handshake", "read", "write" ...
	Err  error
}

func (e *FaultError) Error() string {
	return fmt.Sprintf("messenger: %s %s: %v", e.Op, e.Peer, e.Err)
}

// Unwrap returns the cause.
func (e *FaultError) Unwrap() error { return e.Err }

// countFailure counts why a link has ended.
func (m *Messenger) countFailure(err error, inHandshake bool) {
	switch {
	case errors.Is(err, msgr2.ErrChecksum):
		m.n.checksumErrors.Add(1)
	case errors.Is(err, ErrForged):
		m.n.forgedRecords.Add(1)
	case errors.Is(err, ErrAuth):
		m.n.authFailures.Add(1)
	case errors.Is(err, ErrWrongPeer):
		m.n.wrongPeers.Add(1)
	case errors.Is(err, ErrProtocol):
		m.n.protocolErrors.Add(1)
	case inHandshake && errors.Is(err, ErrTimeout):
		m.n.handshakeTimeouts.Add(1)
	}
}

// What ErrClosed is returned as.
var (
	errShutDown   = fmt.Errorf("messenger: it is shut down, or shutting down: %w", ErrClosed)
	errMarkedDown = fmt.Errorf("messenger: the connection was marked down: %w", ErrClosed)
)
