package messenger

import (
	"crypto/hmac"
	"crypto/sha256"
	"fmt"
	"slices"

	"github.com/argonaut-rdma/argonaut/messenger/internal/msgr2"
)

// The authentication phase of a handshake: methods, modes, and the signatures of
// all that came before.

func (h *handshake) clientAuthFrame(f msgr2.Frame) ([][]byte, error) {
	switch f := f.(type) {
	case *msgr2.AuthBadMethod:
		if h.at != hsAuth {
			break
		}
		h.refused = append(h.refused, uint32(f.Method))
		for h.method++; h.method < len(h.p.auth); h.method++ {
			if slices.Contains(f.Methods, h.p.auth[h.method].Method()) {
				return h.tryAuth()
			}
		}
		return nil, fmt.Errorf("%w: peer refused methods %v (result %d) and accepts %v with modes %v",
			ErrAuth, h.refused, f.Result, f.Methods, f.Modes)
	case *msgr2.AuthReplyMore:
		if h.at != hsAuth {
			break
		}
		if h.tries++; h.tries > maxAuthTries {
			return nil, fmt.Errorf("%w: no end after %d rounds", ErrAuth, maxAuthTries)
		}
		out, _, err := h.auth(f.Payload, false)
		if err != nil {
			return nil, err
		}
		return h.frame(nil, &msgr2.AuthRequestMore{Payload: out}), nil
	case *msgr2.AuthDone:
		if h.at != hsAuth {
			break
		}
		if f.Mode != msgr2.ModeCRC {
			return nil, fmt.Errorf("%w: peer chose mode %v, only crc was offered", ErrProtocol, f.Mode)
		}
		_, r, err := h.auth(f.Payload, true)
		if err != nil {
			return nil, err
		}
		if !r.Done {
			return nil, fmt.Errorf("%w: peer is satisfied too early", ErrAuth)
		}
		h.authResult, h.result.globalID = r, f.GlobalID
		h.at = hsSignature
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

func (h *handshake) info() AuthInfo {
	return AuthInfo{Self: h.p.name, Peer: h.peerType, Remote: h.p.remote}
}

func (h *handshake) tryAuth() ([][]byte, error) {
	a := h.p.auth[h.method]
	h.auth = a.Client(h.info())
	payload, _, err := h.auth(nil, false)
	if err != nil {
		return nil, err
	}
	return h.frame(nil, &msgr2.AuthRequest{
		Method:  msgr2.AuthMethod(a.Method()),
		Modes:   []uint32{uint32(msgr2.ModeCRC)},
		Payload: payload,
	}), nil
}

func (h *handshake) serverAuthFrame(f msgr2.Frame) ([][]byte, error) {
	switch f := f.(type) {
	case *msgr2.AuthRequest:
		if h.at != hsAuth {
			break
		}
		if h.tries++; h.tries > maxAuthTries {
			return nil, fmt.Errorf("%w: %d methods tried", ErrAuth, h.tries)
		}
		i := slices.IndexFunc(h.p.auth, func(a Auth) bool { return a.Method() == uint32(f.Method) })
		if i < 0 || !slices.Contains(f.Modes, uint32(msgr2.ModeCRC)) {
			return h.badMethod(f.Method, errnoNotSupported), nil
		}
		h.method, h.auth = i, h.p.auth[i].Server(h.info())
		return h.serverAuth(f.Payload)
	case *msgr2.AuthRequestMore:
		if h.at != hsAuth || h.auth == nil {
			break
		}
		if h.tries++; h.tries > maxAuthTries {
			return nil, fmt.Errorf("%w: no end after %d rounds", ErrAuth, maxAuthTries)
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

func (h *handshake) badMethod(m msgr2.AuthMethod, result int32) [][]byte {
	f := &msgr2.AuthBadMethod{Method: m, Result: result, Modes: []uint32{uint32(msgr2.ModeCRC)}}
	for _, a := range h.p.auth {
		f.Methods = append(f.Methods, a.Method())
	}
	return h.frame(nil, f)
}

func (h *handshake) serverAuth(payload []byte) ([][]byte, error) {
	out, r, err := h.auth(payload, false)
	if err != nil {
		return h.badMethod(msgr2.AuthMethod(h.p.auth[h.method].Method()), errnoAccess), err
	}
	if !r.Done {
		return h.frame(nil, &msgr2.AuthReplyMore{Payload: out}), nil
	}
	if r.GlobalID == 0 {
		r.GlobalID = h.p.globalID
	}
	h.authResult, h.result.globalID = r, r.GlobalID
	frames := h.frame(nil, &msgr2.AuthDone{GlobalID: r.GlobalID, Mode: msgr2.ModeCRC, Payload: out})
	h.at = hsSignature
	return h.sign(frames), nil
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
	h.received, h.sent = nil, nil
	if !hmac.Equal(want[:], f.Sum[:]) {
		return fmt.Errorf("%w: the signature of the exchange is wrong: somebody has changed it on its way", ErrAuth)
	}
	return nil
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
