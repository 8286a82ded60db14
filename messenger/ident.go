package messenger

import (
	"fmt"
	"slices"

	"github.com/argonaut-rdma/argonaut/messenger/internal/msgr2"
)

// The last part of the handshake, behind authentication: which session the
// transport is for, and what both sides need of each other.

// clientIdentFrame takes what a server answers.
func (h *handshake) clientIdentFrame(f msgr2.Frame) ([][]byte, error) {
	switch f := f.(type) {
	case *msgr2.IdentMissingFeatures:
		return nil, fmt.Errorf("%w: peer requires %#x, which Policy.Supported lacks", ErrFeatures, f.Features)
	case *msgr2.ServerIdent:
		return nil, h.finish(f.Addrs, f.GID, f.Supported, f.Required, f.Flags, f.Cookie)
	}
	return nil, fmt.Errorf("%w: %v while waiting for %v", ErrProtocol, f.Tag(), h.at)
}

// serverIdentFrame takes what a client asks for.
func (h *handshake) serverIdentFrame(f msgr2.Frame) ([][]byte, error) {
	switch f := f.(type) {
	case *msgr2.SessionReconnect:
		// No session survives its transport here: the client is to start over.
		return h.frame(nil, &msgr2.SessionReset{Full: true}), nil
	case *msgr2.ClientIdent:
		return h.serverIdent(f)
	}
	return nil, fmt.Errorf("%w: %v while waiting for %v", ErrProtocol, f.Tag(), h.at)
}

func (h *handshake) clientIdent() *msgr2.ClientIdent {
	h.result.policy = h.p.policy(h.peerType)
	pol := h.result.policy
	addrs := h.wireAddrs()
	if len(addrs) == 0 { // not bound: nobody can connect to us
		a := h.learned
		a.Type, a.Nonce, a.Port = msgr2.AddrAny, h.p.nonce, 0
		addrs = msgr2.AddrVec{a}
	}
	f := &msgr2.ClientIdent{
		Addrs: addrs, Target: h.p.target, GID: h.gid(), GlobalSeq: h.p.globalSeq,
		Supported: baseFeatures | pol.Supported, Required: pol.Required,
	}
	if pol.Lossy {
		f.Flags = msgr2.IdentLossy
	} else {
		f.Cookie = h.p.cookie
	}
	return f
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
	if h.result.own != 0 {
		return h.p.addrs
	}
	return slices.DeleteFunc(slices.Clone(h.p.addrs), func(a msgr2.Addr) bool { return a.Type > msgr2.AddrAny })
}

func (h *handshake) serverIdent(f *msgr2.ClientIdent) ([][]byte, error) {
	if h.p.acceptable != nil && !h.p.acceptable(f.Target) {
		return nil, fmt.Errorf("%w: peer means to reach %v, which is not us", ErrProtocol, f.Target)
	}
	pol := h.p.policy(h.peerType)
	h.result.policy = pol
	if missing := pol.Required &^ f.Supported; missing != 0 {
		return h.frame(nil, &msgr2.IdentMissingFeatures{Features: missing}),
			fmt.Errorf("%w: peer lacks %#x of Policy.Required", ErrFeatures, missing)
	}
	if err := h.finish(f.Addrs, f.GID, f.Supported, f.Required, f.Flags, f.Cookie); err != nil {
		return nil, err
	}
	s := &msgr2.ServerIdent{
		Addrs: h.wireAddrs(), GID: h.p.name.Num, GlobalSeq: h.p.globalSeq,
		Supported: baseFeatures | pol.Supported, Required: pol.Required,
	}
	if pol.Lossy {
		s.Flags = msgr2.IdentLossy
	} else {
		s.Cookie = h.p.cookie
	}
	return h.frame(nil, s), nil
}

// finish checks the peer's ident and completes the result.
func (h *handshake) finish(addrs msgr2.AddrVec, gid int64, supported, required, flags, cookie uint64) error {
	ours := baseFeatures | h.result.policy.Supported
	if missing := required &^ ours; missing != 0 {
		return fmt.Errorf("%w: peer requires %#x, which Policy.Supported lacks", ErrFeatures, missing)
	}
	if missing := h.result.policy.Required &^ supported; missing != 0 {
		return fmt.Errorf("%w: peer lacks %#x of Policy.Required", ErrFeatures, missing)
	}
	if v := h.authResult.Peer; v.Num >= 0 && v.Num != gid && !h.p.client {
		return fmt.Errorf("%w: peer authenticated as %v and says that its number is %d", ErrAuth, v, gid)
	}
	h.result.peer = EntityName{h.peerType, gid}
	h.result.addrs, h.result.cookie = addrs, cookie
	h.result.features = ours & supported
	h.result.lossy = flags&msgr2.IdentLossy != 0
	h.result.keys = h.authResult
	h.at = hsDone
	return nil
}
