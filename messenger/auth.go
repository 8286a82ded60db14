package messenger

import (
	"fmt"

	"github.com/argonaut-rdma/argonaut/messenger/internal/msgr2"
)

// Mode is how frames are protected once authentication is done (Ceph:
// CEPH_CON_MODE_*).
type Mode uint32

// The modes.
const (
	// ModeCRC protects frames against accidents.
	ModeCRC = Mode(msgr2.ModeCRC)
	// ModeSecure encrypts and authenticates them: AES-128-GCM.
	ModeSecure = Mode(msgr2.ModeSecure)
)

func (m Mode) String() string { return msgr2.Mode(m).String() }

// Auth is an authentication method. A client offers its methods in the order
// of Config.Auth; a server accepts those that it has. Its methods may be called
// by several goroutines at a time.
type Auth interface {
	// Method is the number that travels (Ceph: CEPH_AUTH_*). Methods from
	// 0x4000_0000 on are not Ceph's: they are offered only to peers that are of
	// this project.
	Method() uint32
	// Keyed reports whether an exchange ends with a session key and a connection
	// secret. Without them nothing is signed, and there is no secure mode.
	Keyed() bool
	// Client begins the client's side of one exchange.
	Client(AuthInfo) AuthStep
	// Server begins the server's side of one exchange.
	Server(AuthInfo) AuthStep
}

// ownMethods is the first method number that is not Ceph's.
const ownMethods = 0x4000_0000

// AuthInfo is what is known before authentication.
type AuthInfo struct {
	Self   EntityName
	Peer   EntityType // as it says; not yet verified
	Remote string     // its address
	// Ended is closed when the handshake has ended, well or not: whatever the
	// exchange has running ends then.
	Ended <-chan struct{}
}

// AuthStep takes the peer's payload and returns the answer, of at most
// MaxAuthPayload bytes. The first call of a client gets nil. A server says with
// AuthResult.Done that its answer is the last one; a client's step is told so by
// done, and its out is ignored then. It is called by one goroutine at a time, may
// compute but not wait, and must not keep in. An error refuses the peer: it
// should wrap ErrAuth.
type AuthStep func(in []byte, done bool) (out []byte, r AuthResult, err error)

// MaxAuthPayload is the largest payload of one step, in bytes: an authentication
// frame has at most 4 KiB.
const MaxAuthPayload = msgr2.PreAuthControl - 128

// AuthResult is what a step has established.
type AuthResult struct {
	// Done: the server's side is satisfied; out goes with AUTH_DONE. A client
	// confirms with it that it is, too.
	Done bool
	// Peer is the verified name of the peer. Number -1: it has none of its own; a
	// client then has the GlobalID. After a keyed method the peer can be nobody
	// else.
	Peer EntityName
	// GlobalID is the number that the server gives the client.
	GlobalID uint64
	// Identity is what else the method knows of the peer, such as what it may do
	// (Ceph: caps), for the handlers: Connection.Identity. nil: nothing. Each
	// session keeps one.
	Identity any
	// SessionKey signs the transcript; empty with method none.
	SessionKey []byte
	// Secret is the connection secret, from which secure mode's keys come, 40
	// bytes or more; empty with method none. Both must be new for each exchange.
	Secret []byte
}

// AuthNone is Ceph's method "none": everybody is who they say. It is what a
// Messenger uses when Config.Auth is empty.
type AuthNone struct{}

var _ Auth = AuthNone{}

// Method implements Auth.
func (AuthNone) Method() uint32 { return uint32(msgr2.AuthNone) }

// Keyed implements Auth.
func (AuthNone) Keyed() bool { return false }

// The first byte of the payload says what kind of service the client asks; a
// monitor wants its own kind (Ceph: AUTH_MODE_*).
const (
	authModeAuthorizer = 1
	authModeMon        = 10
)

// Client implements Auth.
func (AuthNone) Client(i AuthInfo) AuthStep {
	return func(_ []byte, done bool) ([]byte, AuthResult, error) {
		if done {
			return nil, AuthResult{Done: true, Peer: EntityName{i.Peer, -1}}, nil
		}
		return appendNonePayload(nil, i), AuthResult{}, nil
	}
}

// Server implements Auth.
func (AuthNone) Server(i AuthInfo) AuthStep {
	return func(in []byte, _ bool) ([]byte, AuthResult, error) {
		name, id, err := parseNonePayload(in)
		if err != nil {
			return nil, AuthResult{}, err
		}
		if name.Type != i.Peer {
			return nil, AuthResult{}, fmt.Errorf("%w: peer said hello as %v and authenticates as %v", ErrAuth, i.Peer, name.Type)
		}
		return nil, AuthResult{Done: true, Peer: name, GlobalID: id}, nil
	}
}
