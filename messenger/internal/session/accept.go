package session

import "fmt"

// Incoming is what a client asks of us, and what we know about it.
type Incoming struct {
	Opening
	// Lossy: the client's side is.
	Lossy bool
	// PeerFirst: the peer's address goes before ours, see msgr2.Addr.Compare.
	PeerFirst bool
}

// Verdict is how an incoming transport is answered.
type Verdict uint8

// The verdicts.
const (
	// AcceptNew: make a new session of it, SERVER_IDENT.
	AcceptNew Verdict = iota
	// ReplaceLossy: the existing session is lossy and over; then AcceptNew.
	ReplaceLossy
	// Take: move the transport into the existing session, see Session.Take.
	Take
	// Drop: close the transport, it is older than what we have.
	Drop
	// SendWait: WAIT; our own attempt goes first. It is to be made sure that
	// there is one.
	SendWait
	// SendReset: SESSION_RESET.
	SendReset
	// SendRetry: SESSION_RETRY.
	SendRetry
	// SendRetryGlobal: SESSION_RETRY_GLOBAL.
	SendRetryGlobal
)

var verdictNames = [...]string{"accept", "replace", "take", "drop", "WAIT", "RESET", "RETRY", "RETRY_GLOBAL"}

func (v Verdict) String() string { return verdictNames[v] }

// Answer is a verdict with what belongs to it.
type Answer struct {
	Verdict Verdict
	// Full, of SendReset: the client is to drop its side of the session.
	Full bool
	// Seq is what the client is to continue from, of SendRetry and
	// SendRetryGlobal.
	Seq uint64
	// Lost, of Take: the peer has lost the session, and ours is to be Reset
	// first.
	Lost bool
}

func (a Answer) String() string {
	switch a.Verdict {
	case SendReset:
		return fmt.Sprintf("%v full=%v", a.Verdict, a.Full)
	case SendRetry, SendRetryGlobal:
		return fmt.Sprintf("%v %d", a.Verdict, a.Seq)
	case Take:
		if a.Lost {
			return "take, the peer has lost the session"
		}
	}
	return a.Verdict.String()
}

// Answer decides about an incoming transport of a peer with which ex is the
// existing session, nil for none. p is our policy towards the peer. It changes
// nothing.
func (p Policy) Answer(ex *Session, in Incoming) Answer {
	if in.Reconnect {
		return p.reconnect(ex, in)
	}
	return p.ident(ex, in)
}

// ident is the table for CLIENT_IDENT.
func (p Policy) ident(ex *Session, in Incoming) Answer {
	switch {
	case p.Server && p.Lossy && !p.RegisterLossy:
		return Answer{Verdict: AcceptNew} // such clients are not known
	case ex == nil, ex.State == Closed:
		return Answer{Verdict: AcceptNew}
	case ex.State == Accepting:
		return Answer{Verdict: SendWait}
	case ex.PeerGlobalSeq > in.GlobalSeq:
		return Answer{Verdict: Drop}
	case ex.Policy.Lossy:
		return Answer{Verdict: ReplaceLossy}
	case in.ClientCookie != 0 && in.ClientCookie == ex.asked && (ex.State == Open || ex.State == Standby):
		return Answer{Verdict: Take}
	case in.ClientCookie != 0 && in.ClientCookie == ex.asked:
		return race(ex, in)
	case ex.ServerCookie != 0 && ex.ClientCookie != 0 && ex.ClientCookie != in.ClientCookie:
		// The peer has begun anew.
		return Answer{Verdict: Take, Lost: p.ResetCheck}
	case ex.ClientCookie != 0 && ex.ClientCookie == in.ClientCookie:
		// A SERVER_IDENT of ours did not arrive.
		return Answer{Verdict: Take}
	case ex.State == Open, ex.State == Standby:
		return Answer{Verdict: Take}
	}
	return race(ex, in)
}

// reconnect is the table for SESSION_RECONNECT. The server cookies need not be
// the same: of two idents that cross, each side may have answered one.
func (p Policy) reconnect(ex *Session, in Incoming) Answer {
	switch {
	case ex == nil, ex.State == Closed:
		return Answer{Verdict: SendReset, Full: p.ResetCheck}
	case ex.State == Accepting && !ex.takenInBefore(in):
		return Answer{Verdict: SendRetryGlobal, Seq: ex.PeerGlobalSeq}
	case in.ClientCookie != 0 && in.ClientCookie == ex.asked && in.ClientCookie != ex.ClientCookie:
		return Answer{Verdict: SendReset} // it has not lost our session, we do not know its cookie
	case ex.ClientCookie != in.ClientCookie, in.ClientCookie == 0:
		return Answer{Verdict: SendReset, Full: p.ResetCheck}
	case ex.ServerCookie == 0:
		return Answer{Verdict: SendReset}
	case ex.PeerGlobalSeq > in.GlobalSeq:
		return Answer{Verdict: SendRetryGlobal, Seq: ex.PeerGlobalSeq}
	case ex.ConnectSeq > in.ConnectSeq:
		return Answer{Verdict: SendRetry, Seq: ex.ConnectSeq}
	case in.MsgSeq > ex.OutSeq:
		return Answer{Verdict: Drop} // it has received what was never sent
	case ex.ConnectSeq == in.ConnectSeq && ex.State != Accepting:
		return race(ex, in)
	}
	return Answer{Verdict: Take}
}

// takenInBefore reports whether the transport that is being taken in is one that
// the peer has given up for in: a later attempt of its in the same session. It may
// have had our answer, and have lost the transport since, before we know that it
// was sent.
func (s *Session) takenInBefore(in Incoming) bool {
	return in.ClientCookie != 0 && in.ClientCookie == s.ClientCookie && s.ServerCookie != 0 &&
		in.GlobalSeq > s.PeerGlobalSeq && in.ConnectSeq >= s.ConnectSeq
}

// race decides between our attempt and the peer's: of the two, that of the one
// whose address goes first is taken.
func race(ex *Session, in Incoming) Answer {
	if in.PeerFirst || ex.Policy.Server || !ex.Dialable {
		return Answer{Verdict: Take}
	}
	return Answer{Verdict: SendWait}
}

// Accepted makes s, a new session, the one that the client asks for. cookie is
// ours.
func (s *Session) Accepted(in Incoming, cookie uint64) { s.Take(in, cookie) }

// Take moves s to a transport of the peer's, which is open with Opened. Where
// the answer said so, Reset comes first. The reply is SERVER_IDENT with
// ServerCookie, or SESSION_RECONNECT_OK with InSeq. Messages up to Acked need
// not be sent again.
func (s *Session) Take(in Incoming, cookie uint64) {
	s.State = Accepting
	s.PeerGlobalSeq = in.GlobalSeq
	if in.Reconnect {
		s.ConnectSeq = in.ConnectSeq
		s.Acknowledged(in.MsgSeq)
		s.AckSent = s.InSeq
		return
	}
	s.Policy.Lossy = s.Policy.Lossy || in.Lossy
	s.restart()
	s.ConnectSeq = 0
	if s.ServerCookie == 0 && s.ClientCookie != in.ClientCookie {
		s.asked = s.ClientCookie
	}
	s.ClientCookie, s.ServerCookie = in.ClientCookie, cookie
	if s.Policy.Lossy {
		s.ClientCookie, s.ServerCookie = 0, 0
	}
}

// TakenIn notes that the transport that Take took has been answered.
func (s *Session) TakenIn() { s.open() }
