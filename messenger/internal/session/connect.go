package session

import (
	"errors"
	"fmt"
)

// ErrProtocol: the peer's answer makes no sense.
var ErrProtocol = errors.New("the peer's answer makes no sense")

// maxSeq bounds the counters that a peer may make us continue from.
const maxSeq = 1 << 62

// Opening is what a client asks for after authentication: CLIENT_IDENT for a
// new session, SESSION_RECONNECT for one that both have.
type Opening struct {
	Reconnect                  bool
	ClientCookie, ServerCookie uint64
	GlobalSeq, ConnectSeq      uint64
	MsgSeq                     uint64 // the last message received
}

// Begin returns what to ask for, in the attempt with global seq gs. A new
// session gets cookie, unless an earlier attempt gave it one.
func (s *Session) Begin(gs, cookie uint64) Opening {
	o := Opening{GlobalSeq: gs}
	switch {
	case s.Policy.Lossy:
		s.ClientCookie, s.ServerCookie = 0, 0
		s.restart()
		return o
	case s.ServerCookie == 0:
		if s.ClientCookie == 0 {
			s.ClientCookie = cookie
		}
		s.ConnectSeq = 0
		s.restart()
		o.ClientCookie = s.ClientCookie
		return o
	}
	o.Reconnect, o.ClientCookie, o.ServerCookie = true, s.ClientCookie, s.ServerCookie
	o.ConnectSeq, o.MsgSeq = s.ConnectSeq, s.InSeq
	s.AckSent = s.InSeq
	return o
}

// ServerIdent: the server has accepted a new session, and may say that it is a
// lossy one.
func (s *Session) ServerIdent(cookie, globalSeq uint64, lossy bool) {
	s.PeerGlobalSeq = globalSeq
	s.Policy.Lossy = s.Policy.Lossy || lossy
	if s.Policy.Lossy {
		cookie = 0
	}
	s.ServerCookie = cookie
	s.open()
}

// ReconnectOK: the server goes on with the session, and has received all up to
// msgSeq.
func (s *Session) ReconnectOK(msgSeq uint64) error {
	if msgSeq > s.OutSeq {
		return fmt.Errorf("%w: it has received message %d, the last one sent is %d", ErrProtocol, msgSeq, s.OutSeq)
	}
	s.Acknowledged(msgSeq)
	s.open()
	return nil
}

// SessionReset: the server does not have the session. lost: ours is to be
// dropped as well (see Reset, which was called). Begin again then.
func (s *Session) SessionReset(full bool) (lost bool) {
	if full {
		s.Reset()
		return true
	}
	s.ServerCookie, s.ConnectSeq = 0, 0
	return false
}

// Retry: the server knows of a later attempt of this session. Begin again then.
func (s *Session) Retry(connectSeq uint64) error {
	if connectSeq > maxSeq {
		return fmt.Errorf("%w: connect seq %d", ErrProtocol, connectSeq)
	}
	s.ConnectSeq = connectSeq + 1
	return nil
}

// RetryGlobal: the server knows of a later attempt of ours. The global seq to
// begin again with is larger than globalSeq and than all of ours. most is the
// largest that it can have heard of.
func (s *Session) RetryGlobal(globalSeq, most uint64) error {
	if globalSeq > most {
		return fmt.Errorf("%w: global seq %d, at most %d can be known", ErrProtocol, globalSeq, most)
	}
	return nil
}

// LostRace: the server said WAIT: it connects to us at the same time, and its
// attempt goes first. The transport is to be dropped; Fault says how long to
// wait for the peer's.
func (s *Session) LostRace() { s.State = Wait }
