package messenger

import (
	"crypto/hmac"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/argonaut-rdma/argonaut/messenger/internal/msgr2"
)

// The authentication phase of a handshake: methods, modes, and the signatures of
// all that came before. With AUTH_DONE the mode is fixed: in secure mode the
// signatures are sealed already.

// minSessionKey is the least that a signature is made with, bytes.
const minSessionKey = 16

func (h *handshake) clientAuthFrame(f msgr2.Frame) ([][]byte, error) {
	switch f := f.(type) {
	case *msgr2.AuthBadMethod:
		if h.at != hsAuth || uint32(f.Method) != h.method.Method() {
			break
		}
		h.refused = append(h.refused, uint32(f.Method))
		h.next++
		return h.tryAuth(f)
	case *msgr2.AuthReplyMore:
		if h.at != hsAuth {
			break
		}
		out, _, err := h.step(f.Payload, false)
		if err != nil {
			return nil, err
		}
		return h.frame(nil, &msgr2.AuthRequestMore{Payload: out}), nil
	case *msgr2.AuthDone:
		if h.at != hsAuth {
			break
		}
		if offered := h.modes(h.method); !slices.Contains(offered, Mode(f.Mode)) {
			return nil, fmt.Errorf("%w: peer chose mode %v, only %v was offered", ErrProtocol, f.Mode, offered)
		}
		_, r, err := h.step(f.Payload, true)
		if err != nil {
			return nil, err
		}
		if !r.Done {
			return nil, fmt.Errorf("%w: peer is satisfied too early", ErrAuth)
		}
		r.GlobalID = f.GlobalID
		if err := h.authenticated(r, Mode(f.Mode)); err != nil {
			return nil, err
		}
		return h.sign(nil), nil
	case *msgr2.AuthSignature:
		if h.at != hsSignature {
			break
		}
		if err := h.verify(f); err != nil {
			return nil, err
		}
		h.at = hsIdent
		return h.opening()
	}
	return nil, h.unexpected(f)
}

// modesOf is the modes of all that a method has keys for.
func modesOf(a Auth, all []Mode) []Mode {
	return slices.DeleteFunc(slices.Clone(all), func(m Mode) bool { return m == ModeSecure && !a.Keyed() })
}

// modes is the modes that the peer may have with method a.
func (h *handshake) modes(a Auth) []Mode {
	if h.p.policy(h.peerType).Secure {
		return modesOf(a, []Mode{ModeSecure})
	}
	return modesOf(a, h.p.modes)
}

// usable reports whether method a can be used with this peer.
func (h *handshake) usable(a Auth) bool {
	return (a.Method() < ownMethods || h.result.own&featureOwnAuth != 0) && len(h.modes(a)) > 0
}

func (h *handshake) info() AuthInfo {
	return AuthInfo{Self: h.p.name, Peer: h.peerType, Remote: h.p.remote, Ended: h.p.ended}
}

// tryAuth asks for the next method that both can use; bad is what the peer said
// to the last one.
func (h *handshake) tryAuth(bad *msgr2.AuthBadMethod) ([][]byte, error) {
	for ; h.next < len(h.p.auth); h.next++ {
		a := h.p.auth[h.next]
		if !h.usable(a) || (bad != nil && !slices.Contains(bad.Methods, a.Method())) {
			continue
		}
		h.method, h.auth = a, a.Client(h.info())
		payload, _, err := h.step(nil, false)
		if err != nil {
			return nil, err
		}
		return h.frame(nil, &msgr2.AuthRequest{
			Method:  msgr2.AuthMethod(a.Method()),
			Modes:   wireModes(h.modes(a)),
			Payload: payload,
		}), nil
	}
	if bad == nil {
		return nil, fmt.Errorf("%w: none of our methods and modes can be used with the peer", ErrAuth)
	}
	return nil, fmt.Errorf("%w: peer refused methods %v (result %d) and accepts %v with modes %v",
		ErrAuth, named[msgr2.AuthMethod](h.refused), bad.Result, named[msgr2.AuthMethod](bad.Methods), named[Mode](bad.Modes))
}

// named is numbers by their names, for people.
func named[T ~uint32](numbers []uint32) []T {
	var v []T
	for _, n := range numbers {
		v = append(v, T(n))
	}
	return v
}

func wireModes(modes []Mode) []uint32 {
	var w []uint32
	for _, m := range modes {
		w = append(w, uint32(m))
	}
	return w
}

// step runs one step of the method, and bounds their number.
func (h *handshake) step(in []byte, done bool) ([]byte, AuthResult, error) {
	if h.tries++; h.tries > maxAuthTries {
		return nil, AuthResult{}, fmt.Errorf("%w: no end after %d rounds", ErrAuth, maxAuthTries)
	}
	out, r, err := h.auth(in, done)
	if err != nil && !errors.Is(err, ErrAuth) {
		err = fmt.Errorf("%w: %w", ErrAuth, err)
	}
	if err == nil && len(out) > MaxAuthPayload {
		err = fmt.Errorf("%w: method %v answers with %d bytes, at most %d travel", ErrAuth, msgr2.AuthMethod(h.method.Method()), len(out), MaxAuthPayload)
	}
	return out, r, err
}

func (h *handshake) serverAuthFrame(f msgr2.Frame) ([][]byte, error) {
	switch f := f.(type) {
	case *msgr2.AuthRequest:
		if h.at != hsAuth {
			break
		}
		h.auth, h.method = nil, nil
		if h.requests++; h.requests > maxAuthRequests {
			return nil, fmt.Errorf("%w: %d methods tried", ErrAuth, h.requests)
		}
		i := slices.IndexFunc(h.p.auth, func(a Auth) bool { return a.Method() == uint32(f.Method) })
		if i < 0 || !h.usable(h.p.auth[i]) {
			return h.badMethod(f.Method, errnoNotSupported), nil
		}
		ours := h.modes(h.p.auth[i])
		k := slices.IndexFunc(ours, func(m Mode) bool { return slices.Contains(f.Modes, uint32(m)) })
		if k < 0 {
			return h.badMethod(f.Method, errnoNotSupported), nil
		}
		h.mode, h.method, h.auth = ours[k], h.p.auth[i], h.p.auth[i].Server(h.info())
		return h.serverAuth(f.Payload)
	case *msgr2.AuthRequestMore:
		if h.at != hsAuth || h.auth == nil {
			break
		}
		return h.serverAuth(f.Payload)
	case *msgr2.AuthSignature:
		if h.at != hsSignature {
			break
		}
		if err := h.verify(f); err != nil {
			return nil, err
		}
		h.at = hsIdent
		return nil, nil
	}
	return nil, h.unexpected(f)
}

// left is err, the end of the transport, and what it means: a client that was told
// that its method will not do, and has no other, leaves.
func (h *handshake) left(err error) error {
	if h.p.client || h.at != hsAuth || h.requests == 0 || h.method != nil {
		return err
	}
	if errors.Is(err, io.EOF) || errors.Is(err, ErrPeerClosed) {
		return fmt.Errorf("%w: none of the peer's methods and modes is one of ours, and it left: %w", ErrAuth, err)
	}
	return err
}

// badMethod says what would do.
func (h *handshake) badMethod(m msgr2.AuthMethod, result int32) [][]byte {
	f := &msgr2.AuthBadMethod{Method: m, Result: result}
	for _, a := range h.p.auth {
		if !h.usable(a) {
			continue
		}
		f.Methods = append(f.Methods, a.Method())
		for _, mode := range wireModes(h.modes(a)) {
			if !slices.Contains(f.Modes, mode) {
				f.Modes = append(f.Modes, mode)
			}
		}
	}
	return h.frame(nil, f)
}

func (h *handshake) serverAuth(payload []byte) ([][]byte, error) {
	out, r, err := h.step(payload, false)
	if err != nil {
		return h.badMethod(msgr2.AuthMethod(h.method.Method()), errnoAccess), err
	}
	if !r.Done {
		return h.frame(nil, &msgr2.AuthReplyMore{Payload: out}), nil
	}
	if r.GlobalID == 0 {
		r.GlobalID = h.p.globalID
	}
	frames := h.frame(nil, &msgr2.AuthDone{GlobalID: r.GlobalID, Mode: msgr2.Mode(h.mode), Payload: out})
	if err := h.authenticated(r, h.mode); err != nil {
		return nil, err
	}
	return h.sign(frames), nil
}

// authenticated takes what the method has established. What follows is
// protected by mode.
func (h *handshake) authenticated(r AuthResult, mode Mode) error {
	if h.method.Keyed() {
		if len(r.SessionKey) < minSessionKey || len(r.Secret) < msgr2.SecretLen {
			return fmt.Errorf("%w: method %v gave a session key of %d bytes and a secret of %d", ErrAuth,
				msgr2.AuthMethod(h.method.Method()), len(r.SessionKey), len(r.Secret))
		}
		if r.Peer.Type != h.peerType {
			return fmt.Errorf("%w: peer said hello as %v and authenticated as %v", ErrAuth, h.peerType, r.Peer)
		}
	}
	if mode == ModeSecure {
		s, err := newShield(r.Secret, h.p.client)
		if err != nil {
			return fmt.Errorf("%w: %w", ErrAuth, err)
		}
		h.shield = s
	}
	h.authResult, h.result.globalID, h.result.mode = r, r.GlobalID, mode
	h.at = hsSignature
	return nil
}

// sign ends the transcript of this side and appends the signature of all that
// was received.
func (h *handshake) sign(out [][]byte) [][]byte {
	h.transcript = false
	return h.frame(out, &msgr2.AuthSignature{Sum: signature(h.authResult.SessionKey, h.received)})
}

// verify checks the peer's signature of all that we have sent.
func (h *handshake) verify(f *msgr2.AuthSignature) error {
	want := signature(h.authResult.SessionKey, h.sent)
	h.received, h.sent, h.auth = nil, nil, nil
	if !hmac.Equal(want[:], f.Sum[:]) {
		return fmt.Errorf("%w: %w", ErrAuth, errSignature)
	}
	return nil
}

var errSignature = errors.New("the signature of the exchange is wrong: somebody has changed it on its way")

// checkNumber refuses a peer whose ident has another number than it has
// authenticated with. One that has authenticated without a number has the one
// that the server gave it.
func (h *handshake) checkNumber(gid int64) error {
	v := h.authResult.Peer
	keyed := len(h.authResult.SessionKey) > 0
	switch {
	case v.Num >= 0 && v.Num == gid,
		v.Num < 0 && !keyed,
		v.Num < 0 && !h.p.client && gid == int64(h.result.globalID),
		v.Num < 0 && h.p.client && gid < 0,
		h.p.client && !keyed:
		return nil
	}
	return fmt.Errorf("%w: peer authenticated as %v and says that its number is %d", ErrAuth, v, gid)
}

// signature is all zero when the method has no key.
func signature(key, transcript []byte) (sum [msgr2.SignatureLen]byte) {
	if len(key) == 0 {
		return sum
	}
	mac := hmac.New(sha256.New, key)
	mac.Write(transcript)
	mac.Sum(sum[:0])
	return sum
}
