package messenger

import (
	"fmt"

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
//	CLIENT_IDENT |                    <-  SERVER_IDENT | IDENT_MISSING_FEATURES | WAIT
//	SESSION_RECONNECT   ->            <-  SESSION_RECONNECT_OK | SESSION_RESET | SESSION_RETRY |
//	                                      SESSION_RETRY_GLOBAL | WAIT
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
	identTries int
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
	globalID   uint64
	policy     func(EntityType) Policy // towards a peer of that type
	acceptable func(target msgr2.Addr) bool
	session    sessionSide
}

// hsResult is what both sides know at the end.
type hsResult struct {
	peer     EntityName
	verified EntityName // as authentication has it
	wire     msgr2.AddrVec
	addrs    AddrVec // the same
	features uint64  // of Ceph's, that both have
	own      uint64  // of ours, that both have
	lossy    bool    // the session is, as both know
	resumed  bool    // an old session goes on: peer, addrs and features are its
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
	default:
		return h.clientAuthFrame(f)
	}
	return nil, h.unexpected(f)
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
	default:
		return h.serverAuthFrame(f)
	}
	return nil, h.unexpected(f)
}

// unexpected refuses a frame that does not belong to the phase.
func (h *handshake) unexpected(f msgr2.Frame) error {
	return fmt.Errorf("%w: %v while waiting for %v", ErrProtocol, f.Tag(), h.at)
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
