package messenger

import (
	"fmt"
	"math"
	"net/netip"

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

	method     Auth     // in use
	next       int      // client: index in p.auth of the method to try
	refused    []uint32 // client: methods that the peer would not have
	identTries int
	resuming   bool    // client: it has asked to go on with a session, not for a new one
	mode       Mode    // server: what it has chosen
	tries      int     // steps of methods
	requests   int     // server: methods that the peer has asked for
	shield     *shield // in secure mode, from AUTH_DONE on
	pre        msgr2.Preamble
	inline     []byte // of the sealed frame whose preamble has been opened
	opened     bool   // it has
	broken     error  // it has failed
	stepErr    error  // of p.step, for what was to be sent
	authResult AuthResult
	peerType   EntityType
	learned    msgr2.Addr // we, as the peer sees us
	result     hsResult
	toldWhy    bool // server: the client has been told why it is refused
}

// hsParams is what one side brings.
type hsParams struct {
	client     bool
	name       EntityName
	nonce      uint32
	addrs      msgr2.AddrVec                                     // bound; empty for a client that is not
	others     msgr2.AddrVec                                     // further ones, for peers of our own
	ours       func(at netip.Addr) (addrs, others msgr2.AddrVec) // of who is reached there; nil: addrs are
	here       netip.Addr                                        // our end of the transport, if it is known
	seen       msgr2.Addr                                        // the peer, as the transport sees it
	target     msgr2.Addr                                        // client: whom it means to reach
	expect     EntityType                                        // client: what the peer has to be; 0 for anything
	offered    uint64                                            // our banner features
	auth       []Auth
	modes      []Mode
	heads      bool            // frames travel as heads, see rdmaTransport
	ended      <-chan struct{} // closed when the handshake has ended
	remote     string
	globalID   uint64
	policy     func(EntityType) Policy // towards a peer of that type
	acceptable func(target msgr2.Addr) bool
	session    sessionSide
	step       func(frame string, sending bool) error // nil: none
	limits     msgr2.Limits                           // that we announce; none: Data 0
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
	mode     Mode
	policy   Policy
	limits   msgr2.Limits // of the peer; Data 0: not known
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
	// maxAuthTries bounds the steps of all methods together: a certificate chain
	// takes some. maxAuthRequests bounds the methods that a client may try.
	maxAuthTries    = 32
	maxAuthRequests = 16
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
	h.stepped(stepBanner)
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
	if h.broken == nil {
		out, h.broken = h.unit(raw)
		if h.broken != nil && !h.p.client && h.result.own&featureRefusals != 0 {
			out = h.refusal(out, h.broken)
		}
	}
	if h.stepErr != nil {
		return nil, h.stepErr
	}
	return out, h.broken
}

func (h *handshake) unit(raw []byte) ([][]byte, error) {
	if h.transcript {
		if len(h.received)+len(raw) > maxTranscript {
			return nil, fmt.Errorf("%w: more than %d bytes before authentication", ErrProtocol, maxTranscript)
		}
		h.received = append(h.received, raw...)
	}
	if h.at == hsBanner {
		if h.p.step != nil {
			if err := h.p.step(stepBanner, false); err != nil {
				return nil, err
			}
		}
		return h.banner(raw)
	}
	tag, payload, err := h.open(raw)
	if err != nil {
		return nil, err
	}
	f := msgr2.New(tag)
	if err := f.Decode(payload); err != nil {
		return nil, err
	}
	if err := h.arrived(tag); err != nil {
		return nil, err
	}
	if r, ok := f.(*msgr2.Refused); ok && h.p.client && h.result.own&featureRefusals != 0 {
		return nil, refused(r)
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

// open checks a whole control frame and returns its payload. A sealed one is
// opened in place.
func (h *handshake) open(raw []byte) (msgr2.Tag, []byte, error) {
	switch {
	case h.shield == nil:
		return h.plain(raw)
	case h.p.heads:
		head, err := h.shield.rx.Open(raw)
		if err != nil {
			return 0, nil, err
		}
		return h.plain(head)
	}
	if len(raw) < msgr2.SecurePreambleLen {
		return 0, nil, fmt.Errorf("%w: sealed frame of %d bytes", ErrProtocol, len(raw))
	}
	if !h.opened {
		if err := h.openPreamble(raw[:msgr2.SecurePreambleLen]); err != nil {
			return 0, nil, err
		}
	}
	h.opened = false
	if int64(len(raw)) != h.pre.SecureLen() {
		return 0, nil, fmt.Errorf("%w: %v of %d bytes, announced as %d", ErrProtocol, h.pre.Tag, len(raw), h.pre.SecureLen())
	}
	payload := h.inline
	if raw = raw[msgr2.SecurePreambleLen:]; len(raw) > 0 {
		rest, err := h.shield.rx.OpenRest(raw, &h.pre)
		if err != nil {
			return 0, nil, err
		}
		payload = append(payload, rest...)
	}
	return h.pre.Tag, payload, nil
}

func (h *handshake) openPreamble(b []byte) (err error) {
	if h.inline, err = h.shield.rx.OpenPreamble(b, &h.pre, h.limits()); err != nil {
		return err
	}
	h.opened = true
	return h.checkTag(h.pre.Tag)
}

func (h *handshake) checkTag(t msgr2.Tag) error {
	if t == msgr2.TagMessage {
		return fmt.Errorf("%w: MESSAGE while waiting for %v", ErrProtocol, h.at)
	}
	return nil
}

func (h *handshake) plain(raw []byte) (msgr2.Tag, []byte, error) {
	var p msgr2.Preamble
	if err := p.Decode(raw, h.limits()); err != nil {
		return 0, nil, err
	}
	if err := h.checkTag(p.Tag); err != nil {
		return 0, nil, err
	}
	if int64(len(raw)) != p.WireLen() {
		return 0, nil, fmt.Errorf("%w: %v of %d bytes, announced as %d", ErrProtocol, p.Tag, len(raw), p.WireLen())
	}
	payload, err := p.CheckSegZero(raw[msgr2.PreambleLen:])
	return p.Tag, payload, err
}

// prefixLen is how many bytes of the next unit of a stream tell its length.
func (h *handshake) prefixLen() int {
	switch {
	case h.at == hsBanner:
		return msgr2.BannerPrefixLen
	case h.shield != nil:
		return msgr2.SecurePreambleLen
	}
	return msgr2.PreambleLen
}

// unitLen is the length of the unit that begins with prefix, which a sealed one
// is opened in. input takes the unit next.
func (h *handshake) unitLen(prefix []byte) (int, error) {
	switch {
	case h.at == hsBanner:
		n, err := msgr2.DecodeBannerPrefix(prefix)
		return msgr2.BannerPrefixLen + n, err
	case h.shield != nil:
		err := h.openPreamble(prefix)
		return int(h.pre.SecureLen()), err
	}
	var p msgr2.Preamble
	if err := p.Decode(prefix, h.limits()); err != nil {
		return 0, err
	}
	return int(p.WireLen()), h.checkTag(p.Tag)
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
		h.stepped(stepBanner)
		out = h.send(out, msgr2.Banner{Supported: h.p.offered, Required: msgr2.FeatureRevision1}.Append(nil))
	}
	hello := &msgr2.Hello{Entity: msgr2.EntityType(h.p.name.Type), PeerAddr: h.p.seen}
	if h.result.own&featureLimits != 0 {
		hello.MaxFront, hello.MaxData = h.p.limits.Front, uint64(h.p.limits.Data)
	}
	return h.frame(out, hello), nil
}

// hello takes the peer's HELLO.
func (h *handshake) hello(f *msgr2.Hello) {
	h.peerType, h.learned = EntityType(f.Entity), f.PeerAddr
	if h.result.own&featureLimits != 0 && f.MaxData > 0 {
		data := uint32(min(f.MaxData, math.MaxUint32))
		h.result.limits = msgr2.Limits{Front: f.MaxFront, Middle: f.MaxFront, Data: data}
	}
	if h.p.ours != nil {
		h.p.addrs, h.p.others = h.p.ours(h.end())
	}
	h.at = hsAuth
}

func (h *handshake) clientFrame(f msgr2.Frame) ([][]byte, error) {
	switch f := f.(type) {
	case *msgr2.Hello:
		if h.at != hsHello {
			break
		}
		h.hello(f)
		if h.p.expect != 0 && h.peerType != h.p.expect {
			return nil, fmt.Errorf("%w: peer is %v, not %v", errWrongType, h.peerType, h.p.expect)
		}
		return h.tryAuth(nil)
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
		h.hello(f)
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
	h.stepped(f.Tag().String())
	if h.shield == nil {
		return h.send(out, msgr2.AppendControl(nil, f))
	}
	return append(out, h.shield.control(f, h.p.heads))
}

func (h *handshake) send(out [][]byte, raw []byte) [][]byte {
	if h.transcript {
		h.sent = append(h.sent, raw...)
	}
	return append(out, raw)
}
