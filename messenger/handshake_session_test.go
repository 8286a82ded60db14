package messenger

import (
	"github.com/argonaut-rdma/argonaut/messenger/internal/session"
)

// scriptSession is the session layer of a handshake under test: one session,
// without locks, transports or messages.
type scriptSession struct {
	s     session.Session
	there bool
	gs    uint64
}

func newScriptSession(f fields, pol Policy) *scriptSession {
	x := &scriptSession{gs: 1, there: f.has("state")}
	x.s = session.Session{
		Policy: pol.rules(), Dialable: true, ClientCookie: f.num("cc", 0), ServerCookie: f.num("sc", 0),
		ConnectSeq: f.num("cs", 0), PeerGlobalSeq: f.num("pgs", 0), OutSeq: f.num("out", 0), InSeq: f.num("in", 0),
	}
	switch f["state"] {
	case "open":
		x.s.State = session.Open
	case "standby":
		x.s.State = session.Standby
	case "accepting":
		x.s.State = session.Accepting
	}
	return x
}

func (x *scriptSession) begin() (session.Opening, error) { return x.s.Begin(x.gs, 77), nil }
func (x *scriptSession) reset(full bool) error           { x.s.SessionReset(full); return nil }
func (x *scriptSession) retry(cs uint64) error           { return protocolError(x.s.Retry(cs)) }
func (x *scriptSession) lostRace() error                 { x.s.LostRace(); return nil }
func (x *scriptSession) resumed(msg uint64) error        { return protocolError(x.s.ReconnectOK(msg)) }

func (x *scriptSession) retryGlobal(gs uint64) error {
	x.gs = gs + 1
	return protocolError(x.s.RetryGlobal(gs, 1<<62))
}

func (x *scriptSession) opened(cookie, gs uint64, r *hsResult) error {
	x.s.ServerIdent(cookie, gs, r.lossy)
	return nil
}

func (x *scriptSession) answer(in session.Incoming, r *hsResult) (session.Answer, taken, error) {
	ex := &x.s
	if !x.there {
		ex = nil
	}
	a := r.policy.rules().Answer(ex, in)
	switch a.Verdict {
	case session.AcceptNew, session.ReplaceLossy, session.Take:
		if a.Lost {
			x.s.Reset()
		}
		x.s.Take(in, 78)
		x.s.TakenIn()
	}
	return a, taken{cookie: x.s.ServerCookie, globalSeq: x.gs, lossy: x.s.Policy.Lossy, msgSeq: x.s.InSeq}, nil
}
