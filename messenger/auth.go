package messenger

import (
	"fmt"

	"github.com/argonaut-rdma/argonaut/messenger/internal/msgr2"
)

// Auth is an authentication method. A client offers its methods in the order
// of Config.Auth; a server accepts those that it has.
type Auth interface {
	// Method is the number that travels (Ceph: CEPH_AUTH_*). Methods of this
	// project's own are above 0x4000_0000.
	Method() uint32
	// Client begins the client's side of one exchange.
	Client(AuthInfo) AuthStep
	// Server begins the server's side of one exchange.
	Server(AuthInfo) AuthStep
}

// AuthInfo is what is known before authentication.
type AuthInfo struct {
	Self   EntityName
	Peer   EntityType // as it says; not yet verified
	Remote string     // its address
}

// AuthStep takes the peer's payload and returns the answer. The first call of
// a client gets nil. A server says with done that its answer is the last one; a
// client's step is told so, and its out is ignored then. It is called by one
// goroutine at a time, may compute but not block, and must not keep in. An
// error refuses the peer.
type AuthStep func(in []byte, done bool) (out []byte, r AuthResult, err error)

// AuthResult is what a step has established.
type AuthResult struct {
	// Done: the server's side is satisfied; out goes with AUTH_DONE.
	Done bool
	// Peer is the verified name of the peer; without a number where the method
	// does not tell.
	Peer EntityName
	// GlobalID is the number that the server gives the client.
	GlobalID uint64
	// SessionKey signs the transcript; empty with method none.
	SessionKey []byte
	// Secret is the connection secret, from which secure mode's keys come.
	Secret []byte
}

// AuthNone is Ceph's method "none": everybody is who they say. It is what a
// Messenger uses when Config.Auth is empty.
type AuthNone struct{}

var _ Auth = AuthNone{}

// Method implements Auth.
func (AuthNone) Method() uint32 { return uint32(msgr2.AuthNone) }

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
