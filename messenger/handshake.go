package messenger

import (
	"crypto/hmac"
	"crypto/sha256"
	"fmt"
	"slices"

	"github.com/argonaut-rdma/argonaut/messenger/internal/msgr2"
)

// handshake takes a connection from the banners to the idents, in either role.
// It is pure: bytes in, bytes out; no clock, lock, goroutine or socket. Whoever
// drives it bounds its time.
//
//	client                                server
//	BANNER              ->            <-  BANNER, HELLO       (once the client's banner is there)
//	HELLO               ->
//	AUTH_REQUEST        ->            <-  AUTH_REPLY_MORE | AUTH_BAD_METHOD | AUTH_DONE, AUTH_SIGNATURE
//	AUTH_REQUEST_MORE   ->
//	AUTH_SIGNATURE      ->
//	CLIENT_IDENT        ->            <-  SERVER_IDENT | IDENT_MISSING_FEATURES
type handshake struct {
	p    hsParams
	at   hsPhase
	auth AuthStep

	// transcript is what has been received and sent before the signatures.
	transcript     bool
	received, sent []byte

	method     int      // index in p.auth of the method in use
	refused    []uint32 // client: methods that the peer would not have
	tries      int
	authResult AuthResult
	peerType   EntityType
	learned    msgr2.Addr // we, as the peer sees us
	result     hsResult
}

// hsParams is what one side brings.
type hsParams struct {
	client     bool
	name       EntityName
	nonce      uint32
	addrs      msgr2.AddrVec // bound; empty for a client that is not
	seen       msgr2.Addr    // the peer, as the transport sees it
	target     msgr2.Addr    // client: whom it means to reach
	expect     EntityType    // client: what the peer has to be; 0 for anything
	offered    uint64        // our banner features
	auth       []Auth
	remote     string
	globalSeq  uint64
	cookie     uint64
	globalID   uint64
	policy     func(EntityType) Policy // towards a peer of that type
	acceptable func(target msgr2.Addr) bool
}

// hsResult is what both sides know at the end.
type hsResult struct {
	peer     EntityName
	addrs    msgr2.AddrVec
	features uint64 // of Ceph's, that both have
	own      uint64 // of ours, that both have
	lossy    bool   // the peer's side is
	cookie   uint64
	globalID uint64
	keys     AuthResult
	policy   Policy
}

type hsPhase uint8

const (
	hsBanner hsPhase = iota
	hsHello
	hsAuth
	hsSignature
	hsIdent
	hsDone
)

var hsPhaseNames = [...]string{"the banner", "HELLO", "authentication", "the signature", "the ident", "nothing"}

func (p hsPhase) String() string { return hsPhaseNames[p] }

const (
	// maxAuthTries bounds the methods that a client may try, and the rounds of
	// one method.
	maxAuthTries = 16
	// maxTranscript bounds what is kept of one direction until it is signed.
	maxTranscript = 64 << 10

	errnoAccess       = -13
	errnoNotSupported = -95
)

func newHandshake(p hsParams) *handshake { return &handshake{p: p, transcript: true} }

func (h *handshake) done() bool { return h.at == hsDone }

// start returns what is to be sent first: a client's banner. A server waits.
func (h *handshake) start() [][]byte {
	if !h.p.client {
		return nil
	}
	return h.send(nil, msgr2.Banner{Supported: h.p.offered, Required: msgr2.FeatureRevision1}.Append(nil))
}

// limits is what the peer may send now.
func (h *handshake) limits() msgr2.Limits {
	if h.at < hsIdent {
		return msgr2.Limits{Control: msgr2.PreAuthControl}
	}
	return msgr2.Limits{}
}

// input takes one unit from the peer, the banner first, then whole frames, and
// returns the units to send. On an error what it returned is still to be sent,
// then the connection is to be closed.
func (h *handshake) input(raw []byte) (out [][]byte, err error) {
	if h.transcript {
		if len(h.received)+len(raw) > maxTranscript {
			return nil, fmt.Errorf("%w: more than %d bytes before authentication", ErrProtocol, maxTranscript)
		}
		h.received = append(h.received, raw...)
	}
	if h.at == hsBanner {
		return h.banner(raw)
	}
	var p msgr2.Preamble
	if err := p.Decode(raw, h.limits()); err != nil {
		return nil, err
	}
	if p.Tag == msgr2.TagMessage {
		return nil, fmt.Errorf("%w: MESSAGE while waiting for %v", ErrProtocol, h.at)
	}
	if int64(len(raw)) != p.WireLen() {
		return nil, fmt.Errorf("%w: %v of %d bytes, announced as %d", ErrProtocol, p.Tag, len(raw), p.WireLen())
	}
	payload, err := p.CheckSegZero(raw[msgr2.PreambleLen:])
	if err != nil {
		return nil, err
	}
	f := msgr2.New(p.Tag)
	if err := f.Decode(payload); err != nil {
		return nil, err
	}
	switch {
	case h.at == hsIdent && h.p.client:
		return h.clientIdentFrame(f)
	case h.at == hsIdent:
		return h.serverIdentFrame(f)
	case h.p.client:
		return h.clientFrame(f)
	}
	return h.serverFrame(f)
}

func (h *handshake) banner(raw []byte) ([][]byte, error) {
	var b msgr2.Banner
	if err := b.Decode(raw); err != nil {
		return nil, err
	}
	if missing := b.Required &^ h.p.offered; missing != 0 {
		return nil, fmt.Errorf("%w: peer's protocol requires %#x", ErrFeatures, missing)
	}
	if b.Supported&msgr2.FeatureRevision1 == 0 {
		return nil, fmt.Errorf("%w: peer does not speak msgr v2.1", ErrFeatures)
	}
	h.result.own = negotiated(h.p.offered, b.Supported)
	h.at = hsHello
	var out [][]byte
	if !h.p.client {
		out = h.send(out, msgr2.Banner{Supported: h.p.offered, Required: msgr2.FeatureRevision1}.Append(nil))
	}
	return h.frame(out, &msgr2.Hello{Entity: msgr2.EntityType(h.p.name.Type), PeerAddr: h.p.seen}), nil
}

func (h *handshake) clientFrame(f msgr2.Frame) ([][]byte, error) {
	switch f := f.(type) {
	case *msgr2.Hello:
		if h.at != hsHello {
			break
		}
		h.peerType, h.learned = EntityType(f.Entity), f.PeerAddr
		if h.p.expect != 0 && h.peerType != h.p.expect {
			return nil, fmt.Errorf("%w: peer is %v, not %v", ErrProtocol, h.peerType, h.p.expect)
		}
		h.at = hsAuth
		return h.tryAuth()
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
		return h.frame(nil, h.clientIdent()), nil
	}
	return nil, fmt.Errorf("%w: %v while waiting for %v", ErrProtocol, f.Tag(), h.at)
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

func (h *handshake) serverFrame(f msgr2.Frame) ([][]byte, error) {
	switch f := f.(type) {
	case *msgr2.Hello:
		if h.at != hsHello {
			break
		}
		h.peerType, h.learned = EntityType(f.Entity), f.PeerAddr
		h.at = hsAuth
		return nil, nil
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
	return nil, fmt.Errorf("%w: %v while waiting for %v", ErrProtocol, f.Tag(), h.at)
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

func (h *handshake) frame(out [][]byte, f msgr2.Frame) [][]byte {
	return h.send(out, msgr2.AppendControl(nil, f))
}

func (h *handshake) send(out [][]byte, raw []byte) [][]byte {
	if h.transcript {
		h.sent = append(h.sent, raw...)
	}
	return append(out, raw)
}
