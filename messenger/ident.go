package messenger

import (
	"fmt"
	"slices"

	"github.com/argonaut-rdma/argonaut/messenger/internal/msgr2"
	"github.com/argonaut-rdma/argonaut/messenger/internal/session"
)

// The last part of the handshake, behind authentication: which session the
// transport is for, and what both sides need of each other.

// sessionSide is the session that a handshake asks, one goroutine at a time.
type sessionSide interface {
	// begin is what a client asks for, once more after each of the four.
	begin() (session.Opening, error)
	reset(full bool) error
	retry(connectSeq uint64) error
	retryGlobal(globalSeq uint64) error
	// lostRace is a client's: the transport is given up.
	lostRace() error
	// opened and resumed are a client's: the server has agreed.
	opened(cookie, globalSeq uint64, r *hsResult) error
	resumed(msgSeq uint64) error
	// answer is a server's. After AcceptNew and Take the session is claimed for
	// this transport, and taken says what the client is told.
	answer(in session.Incoming, r *hsResult) (session.Answer, taken, error)
}

// taken is what a server tells the client about the session.
type taken struct {
	cookie, globalSeq uint64
	lossy             bool
	msgSeq            uint64
}

// maxIdentTries bounds the rounds about a session on one transport.
const maxIdentTries = 16

// opening asks for a session.
func (h *handshake) opening() ([][]byte, error) {
	if h.identTries++; h.identTries > maxIdentTries {
		return nil, fmt.Errorf("%w: no session after %d rounds", ErrTimeout, maxIdentTries)
	}
	o, err := h.p.session.begin()
	if err != nil {
		return nil, err
	}
	h.result.policy = h.p.policy(h.peerType)
	h.resuming = o.Reconnect
	if o.Reconnect {
		return h.frame(nil, &msgr2.SessionReconnect{
			Addrs: h.ownAddrs(), ClientCookie: o.ClientCookie, ServerCookie: o.ServerCookie,
			GlobalSeq: o.GlobalSeq, ConnectSeq: o.ConnectSeq, MsgSeq: o.MsgSeq,
		}), nil
	}
	pol := h.result.policy
	f := &msgr2.ClientIdent{
		Addrs: h.ownAddrs(), Target: h.p.target, GID: h.gid(), GlobalSeq: o.GlobalSeq,
		Supported: baseFeatures | pol.Supported, Required: pol.Required, Cookie: o.ClientCookie,
	}
	if pol.Lossy {
		f.Flags = msgr2.IdentLossy
	}
	return h.frame(nil, f), nil
}

// answers reports whether a server may say f to what the client has asked for. A
// SERVER_IDENT to who goes on with a session would be another one with the numbers
// of the old; a SESSION_RECONNECT_OK to who asks for a new one would be one that
// nobody has agreed to. WAIT answers both.
func (h *handshake) answers(f msgr2.Frame) bool {
	switch f.(type) {
	case *msgr2.ServerIdent, *msgr2.IdentMissingFeatures:
		return !h.resuming
	case *msgr2.SessionReconnectOK, *msgr2.SessionReset, *msgr2.SessionRetry, *msgr2.SessionRetryGlobal:
		return h.resuming
	}
	return true
}

// clientIdentFrame takes what a server answers.
func (h *handshake) clientIdentFrame(f msgr2.Frame) ([][]byte, error) {
	if !h.answers(f) {
		asked := msgr2.TagClientIdent
		if h.resuming {
			asked = msgr2.TagSessionReconnect
		}
		return nil, fmt.Errorf("%w: %v in answer to %v", ErrProtocol, f.Tag(), asked)
	}
	again := func(err error) ([][]byte, error) {
		if err != nil {
			return nil, err
		}
		return h.opening()
	}
	switch f := f.(type) {
	case *msgr2.IdentMissingFeatures:
		return nil, fmt.Errorf("%w: peer requires %#x, which Policy.Supported lacks", ErrFeatures, f.Features)
	case *msgr2.ServerIdent:
		if err := h.check(f.GID, f.Supported, f.Required); err != nil {
			return nil, err
		}
		h.setAddrs(f.Addrs)
		h.setPeer(f.GID, f.Supported)
		h.result.lossy = h.result.policy.Lossy || f.Flags&msgr2.IdentLossy != 0
		if err := h.p.session.opened(f.Cookie, f.GlobalSeq, &h.result); err != nil {
			return nil, err
		}
		h.at = hsDone
		return nil, nil
	case *msgr2.SessionReconnectOK:
		h.setAddrs(nil)
		h.setPeer(0, 0)
		h.result.resumed = true
		if err := h.p.session.resumed(f.MsgSeq); err != nil {
			return nil, err
		}
		h.at = hsDone
		return nil, nil
	case *msgr2.SessionReset:
		return again(h.p.session.reset(f.Full))
	case *msgr2.SessionRetry:
		return again(h.p.session.retry(f.ConnectSeq))
	case *msgr2.SessionRetryGlobal:
		return again(h.p.session.retryGlobal(f.GlobalSeq))
	case *msgr2.Wait:
		if err := h.p.session.lostRace(); err != nil {
			return nil, err
		}
		return nil, errLostRace
	}
	return nil, fmt.Errorf("%w: %v while waiting for %v", ErrProtocol, f.Tag(), h.at)
}

// serverIdentFrame takes what a client asks for.
func (h *handshake) serverIdentFrame(f msgr2.Frame) ([][]byte, error) {
	if h.identTries++; h.identTries > maxIdentTries {
		return nil, fmt.Errorf("%w: no session after %d rounds", ErrProtocol, maxIdentTries)
	}
	switch f := f.(type) {
	case *msgr2.SessionReconnect:
		h.setAddrs(f.Addrs)
		h.result.policy = h.p.policy(h.peerType)
		h.setPeer(-1, 0)
		return h.answer(session.Incoming{Opening: session.Opening{
			Reconnect: true, ClientCookie: f.ClientCookie, ServerCookie: f.ServerCookie,
			GlobalSeq: f.GlobalSeq, ConnectSeq: f.ConnectSeq, MsgSeq: f.MsgSeq,
		}})
	case *msgr2.ClientIdent:
		if h.p.acceptable != nil && !h.p.acceptable(f.Target) {
			return nil, fmt.Errorf("%w: %v was asked for, here is %v at %v", ErrWrongPeer, f.Target, h.p.name, h.p.addrs)
		}
		h.setAddrs(f.Addrs)
		h.result.policy = h.p.policy(h.peerType)
		pol := h.result.policy
		if missing := pol.Required &^ f.Supported; missing != 0 {
			return h.frame(nil, &msgr2.IdentMissingFeatures{Features: missing}),
				fmt.Errorf("%w: peer lacks %#x of Policy.Required", ErrFeatures, missing)
		}
		if err := h.check(f.GID, f.Supported, f.Required); err != nil {
			return nil, err
		}
		h.setPeer(f.GID, f.Supported)
		return h.answer(session.Incoming{
			Lossy:   f.Flags&msgr2.IdentLossy != 0,
			Opening: session.Opening{ClientCookie: f.Cookie, GlobalSeq: f.GlobalSeq},
		})
	}
	return nil, fmt.Errorf("%w: %v while waiting for %v", ErrProtocol, f.Tag(), h.at)
}

// answer has the session layer decide, and tells the client.
func (h *handshake) answer(in session.Incoming) ([][]byte, error) {
	if len(h.result.wire) == 0 {
		return nil, fmt.Errorf("%w: peer has no address", ErrProtocol)
	}
	if ours := h.ownAddrs(); len(ours) > 0 {
		in.PeerFirst = raceAddr(h.result.wire).Compare(raceAddr(ours)) < 0
	}
	a, t, err := h.p.session.answer(in, &h.result)
	if err != nil {
		return nil, err
	}
	switch a.Verdict {
	case session.Drop:
		return nil, fmt.Errorf("%w: a stale attempt to connect", ErrProtocol)
	case session.SendWait:
		return h.frame(nil, &msgr2.Wait{}), nil
	case session.SendReset:
		return h.frame(nil, &msgr2.SessionReset{Full: a.Full}), nil
	case session.SendRetry:
		return h.frame(nil, &msgr2.SessionRetry{ConnectSeq: a.Seq}), nil
	case session.SendRetryGlobal:
		return h.frame(nil, &msgr2.SessionRetryGlobal{GlobalSeq: a.Seq}), nil
	}
	h.at = hsDone
	if in.Reconnect {
		h.result.resumed = true
		return h.frame(nil, &msgr2.SessionReconnectOK{MsgSeq: t.msgSeq}), nil
	}
	pol := h.result.policy
	h.result.lossy = t.lossy
	s := &msgr2.ServerIdent{
		Addrs: h.wireAddrs(), GID: h.p.name.Num, GlobalSeq: t.globalSeq,
		Supported: baseFeatures | pol.Supported, Required: pol.Required, Cookie: t.cookie,
	}
	if t.lossy {
		s.Flags = msgr2.IdentLossy
	}
	return h.frame(nil, s), nil
}

// raceAddr is the address of an entity that decides races: its first on a plain
// stream, which is the one that Ceph looks at.
func raceAddr(v msgr2.AddrVec) *msgr2.Addr {
	for i := range v {
		if v[i].Type == msgr2.AddrMsgr2 {
			return &v[i]
		}
	}
	return &v[0]
}

// gid is our number: the entity's, or what the server gave us.
func (h *handshake) gid() int64 {
	if h.p.name.Num < 0 && h.p.client && h.result.globalID != 0 {
		return int64(h.result.globalID)
	}
	return h.p.name.Num
}

// wireAddrs are our addresses as far as the peer understands them.
func (h *handshake) wireAddrs() msgr2.AddrVec {
	v := h.understood(h.p.addrs)
	if h.result.own != 0 && len(h.p.others) > 0 {
		v = slices.Concat(v, h.p.others)
	}
	return v
}

func (h *handshake) understood(ours msgr2.AddrVec) msgr2.AddrVec {
	if h.result.own != 0 {
		return ours
	}
	return slices.DeleteFunc(slices.Clone(ours), func(a msgr2.Addr) bool { return a.Type > msgr2.AddrAny })
}

// ownAddrs is wireAddrs, or, of who is not bound and nobody can connect to, the
// address that the peer sees.
func (h *handshake) ownAddrs() msgr2.AddrVec {
	addrs := h.wireAddrs()
	if len(addrs) == 0 {
		a := h.learned
		a.Type, a.Nonce, a.Port = msgr2.AddrAny, h.p.nonce, 0
		addrs = msgr2.AddrVec{a}
	}
	return addrs
}

// check compares the peer's ident with what we need and know.
func (h *handshake) check(gid int64, supported, required uint64) error {
	pol := h.result.policy
	if missing := required &^ (baseFeatures | pol.Supported); missing != 0 {
		return fmt.Errorf("%w: peer requires %#x, which Policy.Supported lacks", ErrFeatures, missing)
	}
	if missing := pol.Required &^ supported; missing != 0 {
		return fmt.Errorf("%w: peer lacks %#x of Policy.Required", ErrFeatures, missing)
	}
	if err := h.checkNumber(gid); err != nil {
		return err
	}
	return nil
}

// setAddrs notes where the peer is, which says whose session it may have.
func (h *handshake) setAddrs(addrs msgr2.AddrVec) {
	r := &h.result
	r.wire, r.addrs = addrs, nil
	for _, a := range addrs {
		r.addrs = append(r.addrs, fromWire(seenAs(a, h.p.seen)))
	}
}

// setPeer notes who the peer is.
func (h *handshake) setPeer(gid int64, supported uint64) {
	r := &h.result
	r.peer, r.verified = EntityName{h.peerType, gid}, h.authResult.Peer
	r.features = (baseFeatures | r.policy.Supported) & supported
	r.keys = h.authResult
}
