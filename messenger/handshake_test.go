package messenger

import (
	"bufio"
	"bytes"
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/argonaut-rdma/argonaut/messenger/internal/msgr2"
)

var rewrite = flag.Bool("rewrite", false, "write the expectations of testdata/*.txt from what the tests see")

// A script drives one side of a handshake. Its lines:
//
//	# a sentence about what is shown
//	side client|server [key=value ...]   who we are
//	< NAME [key=value ...]               the peer sends this
//	> ...                                what we send (written by -rewrite)
//	= ...                                how it ends (written by -rewrite)
//
// Keys of side: auth=none,key (methods), require=0x.., supported=0x..,
// lossless, own (offer our own features), iwarp (bound there, too), modes=crc,secure (in order of
// preference), secure (the policy takes nothing else); of the session that is
// there: state=.., cc=.., sc=.. (cookies), cs=, pgs=, out=, in=.
func TestHandshakeScripts(t *testing.T) {
	files, err := filepath.Glob("testdata/handshake/*.txt")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			want, err := os.ReadFile(file)
			require.NoError(t, err)
			got := runScript(t, string(want))
			if *rewrite {
				require.NoError(t, os.WriteFile(file, []byte(got), 0o644))
				return
			}
			require.Equal(t, string(want), got)
		})
	}
}

func runScript(t *testing.T, script string) string {
	var out strings.Builder
	var h *handshake
	var ended bool
	show := func(units [][]byte, err error) {
		for _, u := range units {
			fmt.Fprintf(&out, "> %s\n", describe(t, u))
		}
		switch {
		case ended:
		case err != nil:
			fmt.Fprintf(&out, "= error: %v\n", err)
			ended = true
		case h.done():
			r := h.result
			if s := &h.p.session.(*scriptSession).s; r.resumed {
				fmt.Fprintf(&out, "= open: goes on, sent=%d received=%d\n", s.Acked, s.InSeq)
			} else {
				fmt.Fprintf(&out, "= open: peer=%v features=%#x own=%#x lossy=%v global_id=%d\n",
					r.peer, r.features, r.own>>60, r.lossy, r.globalID)
			}
			ended = true
		}
	}
	lines := bufio.NewScanner(strings.NewReader(script))
	for lines.Scan() {
		line := lines.Text()
		switch {
		case line == "" || strings.HasPrefix(line, "#"):
			fmt.Fprintln(&out, line)
		case strings.HasPrefix(line, "side "):
			fmt.Fprintln(&out, line)
			h = newHandshake(scriptParams(strings.Fields(line)[1:]))
			show(h.start(), nil)
		case strings.HasPrefix(line, "< "):
			fmt.Fprintln(&out, line)
			require.NotNil(t, h, "a script begins with side")
			show(h.input(scriptUnit(t, strings.Fields(line[2:]))))
		}
	}
	return out.String()
}

var (
	ourAddr   = msgr2.AddrFrom(msgr2.AddrMsgr2, netip.MustParseAddrPort("192.0.2.1:6800"), 11)
	ourIWARP  = msgr2.AddrFrom(msgr2.AddrIWARP, netip.MustParseAddrPort("192.0.2.1:6801"), 11)
	theirAddr = msgr2.AddrFrom(msgr2.AddrMsgr2, netip.MustParseAddrPort("192.0.2.2:3300"), 0)
)

// fields are the words of a line: flags and key=value.
type fields map[string]string

func parseFields(words []string) fields {
	f := fields{}
	for _, w := range words {
		k, v, _ := strings.Cut(w, "=")
		f[k] = v
	}
	return f
}

func (f fields) num(key string, def uint64) uint64 {
	v, ok := f[key]
	if !ok {
		return def
	}
	var n uint64
	if _, err := fmt.Sscan(v, &n); err != nil {
		panic(err)
	}
	return n
}

func (f fields) has(key string) bool { _, ok := f[key]; return ok }

func scriptParams(words []string) hsParams {
	f := parseFields(words)
	p := hsParams{
		client: words[0] == "client", nonce: 11, seen: theirAddr, target: theirAddr, remote: "192.0.2.2:3300",
		offered: msgr2.FeatureRevision1, globalID: 4100, auth: []Auth{AuthNone{}},
		modes: []Mode{ModeCRC},
	}
	switch f["modes"] {
	case "secure":
		p.modes = []Mode{ModeSecure}
	case "secure,crc":
		p.modes = []Mode{ModeSecure, ModeCRC}
	case "crc,secure":
		p.modes = []Mode{ModeCRC, ModeSecure}
	}
	pol := StatelessServer()
	p.name = EntityName{OSD, 3}
	if p.client {
		p.name, p.expect, pol = EntityName{Client, -1}, EntityType(f.num("expect", uint64(Mon))), LossyClient()
	} else {
		p.addrs = msgr2.AddrVec{ourAddr}
		p.acceptable = func(a msgr2.Addr) bool { return a.AddrPort() == ourAddr.AddrPort() }
	}
	if f.has("iwarp") {
		p.addrs = msgr2.AddrVec{ourIWARP, ourAddr}
	}
	pol.Lossy, pol.Secure = !f.has("lossless"), f.has("secure")
	pol.Supported, pol.Required = f.num("supported", 0), f.num("require", 0)
	p.policy = func(EntityType) Policy { return pol }
	p.session = newScriptSession(f, pol)
	if f.has("own") {
		p.offered |= ownFeatures
	}
	if f.has("auth") {
		p.auth = nil
		for _, a := range strings.Split(f["auth"], ",") {
			switch a {
			case "none":
				p.auth = append(p.auth, AuthNone{})
			case "key":
				p.auth = append(p.auth, keyAuth{})
			}
		}
	}
	return p
}

// keyAuth is a method with two rounds and a session key, for the scripts.
type keyAuth struct{}

func (keyAuth) Method() uint32 { return 0x4000_0001 }

func (keyAuth) Keyed() bool { return true }

// keyResult is what both sides get; a real method makes new keys each time.
func keyResult(peer EntityName) AuthResult {
	r := AuthResult{Done: true, Peer: peer, SessionKey: []byte("secret of the session"), Secret: make([]byte, 64)}
	for i := range r.Secret {
		r.Secret[i] = byte(i)
	}
	return r
}

func (keyAuth) Client(i AuthInfo) AuthStep {
	round := 0
	return func(in []byte, done bool) ([]byte, AuthResult, error) {
		round++
		if done {
			return nil, keyResult(EntityName{i.Peer, 3}), nil
		}
		return []byte(fmt.Sprintf("round%d", round)), AuthResult{}, nil
	}
}

func (keyAuth) Server(i AuthInfo) AuthStep {
	return func(in []byte, _ bool) ([]byte, AuthResult, error) {
		switch string(in) {
		case "round1":
			return []byte("more"), AuthResult{}, nil
		case "round2":
			return []byte("welcome"), keyResult(EntityName{i.Peer, -1}), nil
		}
		return nil, AuthResult{}, fmt.Errorf("%w: wrong answer", ErrAuth)
	}
}

// scriptUnit encodes what the peer sends.
func scriptUnit(t *testing.T, words []string) []byte {
	f := parseFields(words[1:])
	peer := msgr2.EntityType(f.num("type", uint64(Client)))
	var frame msgr2.Frame
	switch words[0] {
	case "BANNER":
		return msgr2.Banner{Supported: f.num("supported", 1), Required: f.num("required", 1)}.Append(nil)
	case "GARBAGE":
		return []byte("GET / HTTP/1.1\r\n\r\n")
	case "MESSAGE":
		b, p, e := msgr2.AppendMessageHead(nil, &msgr2.Header{Seq: 1}, nil, nil, 0)
		return msgr2.AppendMessageTail(b, &p, e, 0)
	case "HUGE":
		p := msgr2.ControlPreamble(msgr2.TagAuthRequest, 1<<31)
		return p.Append(nil)
	case "FLIPPED":
		b := msgr2.AppendControl(nil, &msgr2.Hello{Entity: peer, PeerAddr: ourAddr})
		b[len(b)-1] ^= 1
		return b
	case "HELLO":
		frame = &msgr2.Hello{Entity: peer, PeerAddr: ourAddr}
	case "AUTH_REQUEST":
		r := &msgr2.AuthRequest{Method: msgr2.AuthMethod(f.num("method", 1)), Modes: []uint32{uint32(f.num("mode", 1))}}
		if f.has("modes") {
			r.Modes = nil
			for _, m := range strings.Split(f["modes"], ",") {
				r.Modes = append(r.Modes, uint32(fields{"m": m}.num("m", 0)))
			}
		}
		if r.Method == msgr2.AuthNone {
			r.Payload = appendNonePayload(nil, AuthInfo{Self: EntityName{EntityType(f.num("as", uint64(peer))), int64(f.num("id", 9))}, Peer: OSD})
		} else {
			r.Payload = []byte(f["payload"])
		}
		frame = r
	case "AUTH_REQUEST_MORE":
		frame = &msgr2.AuthRequestMore{Payload: []byte(f["payload"])}
	case "AUTH_REPLY_MORE":
		frame = &msgr2.AuthReplyMore{Payload: []byte(f["payload"])}
	case "AUTH_BAD_METHOD":
		frame = &msgr2.AuthBadMethod{Method: msgr2.AuthMethod(f.num("method", 1)), Result: -95, Methods: []uint32{uint32(f.num("allowed", 2))}, Modes: []uint32{1}}
	case "AUTH_DONE":
		frame = &msgr2.AuthDone{GlobalID: f.num("global_id", 4097), Mode: msgr2.Mode(f.num("mode", 1))}
	case "AUTH_SIGNATURE":
		s := &msgr2.AuthSignature{}
		s.Sum[0] = byte(f.num("sum", 0))
		frame = s
	case "CLIENT_IDENT":
		target := ourAddr
		target.Nonce = 0
		if f.has("elsewhere") {
			target.Port++
		}
		frame = &msgr2.ClientIdent{Addrs: msgr2.AddrVec{theirAddr}, Target: target, GID: int64(f.num("id", 9)),
			Supported: f.num("supported", baseFeatures), Required: f.num("required", 0), Flags: f.num("flags", 1),
			Cookie: f.num("cookie", 0), GlobalSeq: f.num("gs", 5)}
	case "SERVER_IDENT":
		frame = &msgr2.ServerIdent{Addrs: msgr2.AddrVec{theirAddr}, GID: int64(f.num("id", 0)),
			Supported: f.num("supported", baseFeatures), Required: f.num("required", 0), Flags: f.num("flags", 1),
			Cookie: f.num("cookie", 0)}
	case "IDENT_MISSING_FEATURES":
		frame = &msgr2.IdentMissingFeatures{Features: f.num("features", 1)}
	case "SESSION_RECONNECT":
		frame = &msgr2.SessionReconnect{Addrs: msgr2.AddrVec{theirAddr}, ClientCookie: f.num("cc", 1), ServerCookie: f.num("sc", 2),
			GlobalSeq: f.num("gs", 5), ConnectSeq: f.num("cs", 1), MsgSeq: f.num("msg", 0)}
	case "SESSION_RECONNECT_OK":
		frame = &msgr2.SessionReconnectOK{MsgSeq: f.num("msg", 0)}
	case "SESSION_RESET":
		frame = &msgr2.SessionReset{Full: f.has("full")}
	case "SESSION_RETRY":
		frame = &msgr2.SessionRetry{ConnectSeq: f.num("cs", 0)}
	case "SESSION_RETRY_GLOBAL":
		frame = &msgr2.SessionRetryGlobal{GlobalSeq: f.num("gs", 0)}
	case "WAIT":
		frame = &msgr2.Wait{}
	default:
		t.Fatalf("unknown frame %s", words[0])
	}
	return msgr2.AppendControl(nil, frame)
}

// describe prints a unit that we send.
func describe(t *testing.T, raw []byte) string {
	var b msgr2.Banner
	if bytes.HasPrefix(raw, []byte("ceph v2\n")) {
		require.NoError(t, b.Decode(raw))
		return fmt.Sprintf("BANNER supported=%#x required=%#x", b.Supported, b.Required)
	}
	var p msgr2.Preamble
	if p.Decode(raw, msgr2.Limits{}) != nil {
		return fmt.Sprintf("SEALED %d bytes", len(raw))
	}
	payload, err := p.CheckSegZero(raw[msgr2.PreambleLen:])
	require.NoError(t, err)
	f := msgr2.New(p.Tag)
	require.NoError(t, f.Decode(payload))
	switch f := f.(type) {
	case *msgr2.AuthRequest:
		return fmt.Sprintf("%v method=%v modes=%v payload=%q", p.Tag, f.Method, f.Modes, f.Payload)
	case *msgr2.AuthSignature:
		return fmt.Sprintf("%v %x", p.Tag, f.Sum)
	case *msgr2.AuthRequestMore:
		return fmt.Sprintf("%v %q", p.Tag, f.Payload)
	case *msgr2.AuthReplyMore:
		return fmt.Sprintf("%v %q", p.Tag, f.Payload)
	case *msgr2.AuthDone:
		return fmt.Sprintf("%v global_id=%d mode=%v payload=%q", p.Tag, f.GlobalID, f.Mode, f.Payload)
	}
	return fmt.Sprintf("%v %+v", p.Tag, f)
}

// Both sides together, with a method that has a key: the signatures must match.
func TestHandshakeBothSides(t *testing.T) {
	for _, auth := range [][]Auth{{AuthNone{}}, {keyAuth{}}} {
		bothSides(t, auth, ModeCRC, false)
	}
	bothSides(t, []Auth{keyAuth{}}, ModeSecure, false)
	bothSides(t, []Auth{keyAuth{}}, ModeSecure, true)
}

func bothSides(t *testing.T, auth []Auth, mode Mode, heads bool) {
	cp, sp := scriptParams([]string{"client", "expect=4", "own"}), scriptParams([]string{"server", "own"})
	cp.modes, sp.modes, cp.heads, sp.heads = []Mode{mode}, []Mode{mode}, heads, heads
	cp.auth, sp.auth = auth, auth
	cp.target = ourAddr
	c, s := newHandshake(cp), newHandshake(sp)
	toServer, toClient := c.start(), s.start()
	for len(toServer)+len(toClient) > 0 {
		var next [][]byte
		for _, u := range toServer {
			out, err := s.input(u)
			require.NoError(t, err)
			toClient = append(toClient, out...)
		}
		for _, u := range toClient {
			out, err := c.input(u)
			require.NoError(t, err)
			next = append(next, out...)
		}
		toServer, toClient = next, nil
	}
	require.True(t, c.done())
	require.True(t, s.done())
	require.Equal(t, EntityName{OSD, 3}, c.result.peer)
	require.Equal(t, EntityName{Client, 4100}, s.result.peer)
	require.Equal(t, ownFeatures, c.result.own)
	require.Equal(t, ownFeatures, s.result.own)
	require.Equal(t, c.result.globalID, s.result.globalID)
	require.Equal(t, mode, c.result.mode)
	require.Equal(t, mode == ModeSecure, c.shield != nil)
}

// Any change of a byte on the way before the signatures is noticed.
func TestHandshakeTamperedWith(t *testing.T) {
	run := func(flip int) (changed bool, err error) {
		cp, sp := scriptParams([]string{"client", "expect=4", "own"}), scriptParams([]string{"server", "own"})
		cp.auth, sp.auth, cp.target = []Auth{keyAuth{}}, []Auth{keyAuth{}}, ourAddr
		c, s := newHandshake(cp), newHandshake(sp)
		toServer := c.start()
		// A middleman who takes the lower feature bits out of the client's
		// banner: valid, but not what was sent.
		if flip >= 0 {
			toServer[0][flip] ^= 0x80
			changed = true
		}
		for len(toServer) > 0 && !s.done() {
			var next [][]byte
			for _, u := range toServer {
				out, err := s.input(u)
				if err != nil {
					return changed, err
				}
				for _, u := range out {
					out, err := c.input(u)
					if err != nil {
						return changed, err
					}
					next = append(next, out...)
				}
			}
			toServer = next
		}
		return changed, nil
	}
	_, err := run(-1)
	require.NoError(t, err)
	_, err = run(msgr2.BannerPrefixLen + 6) // an unknown feature that nobody requires
	require.ErrorIs(t, err, ErrAuth)
}

func FuzzHandshake(f *testing.F) {
	for _, client := range []bool{true, false} {
		var all []byte
		for _, w := range []string{"BANNER", "HELLO type=1", "AUTH_DONE", "AUTH_SIGNATURE", "SERVER_IDENT", "AUTH_REQUEST type=8", "CLIENT_IDENT", "SESSION_RECONNECT"} {
			all = append(all, scriptUnit(nil, strings.Fields(w))...)
		}
		f.Add(client, all, byte(0))
		for _, end := range []string{"SERVER_IDENT", "SESSION_RECONNECT_OK msg=4", "SESSION_RESET", "SESSION_RESET full", "SESSION_RETRY cs=5",
			"SESSION_RETRY_GLOBAL gs=9", "WAIT", "CLIENT_IDENT cookie=5 gs=2", "SESSION_RECONNECT cc=5 sc=6 gs=60 cs=9 msg=1"} {
			all = nil
			for _, w := range honestBefore(client) {
				all = append(all, scriptUnit(nil, strings.Fields(w))...)
			}
			all = append(all, scriptUnit(nil, strings.Fields(end))...)
			for _, sessions := range fuzzedSessions {
				f.Add(client, all, sessions)
			}
		}
	}
	f.Fuzz(func(t *testing.T, client bool, in []byte, sessions byte) {
		words, sw := sessionWords(sessions)
		side := "client"
		if !client {
			side, words = "server", sw
		}
		h := newHandshake(scriptParams(append([]string{side, "auth=none,key"}, words...)))
		h.start()
		for !h.done() && len(in) > 0 {
			n := unitLen(h, in)
			_, err := h.input(in[:n])
			if err != nil {
				return
			}
			in = in[n:]
		}
		require.LessOrEqual(t, len(h.received), maxTranscript)
		if h.done() {
			checkSession(t, h, client, sessions)
		}
	})
}

// honestBefore are the units that come before the ident, to either side.
func honestBefore(client bool) []string {
	if client {
		return []string{"BANNER", "HELLO type=1", "AUTH_DONE", "AUTH_SIGNATURE"}
	}
	return []string{"BANNER", "HELLO", "AUTH_REQUEST", "AUTH_SIGNATURE"}
}

// unitLen cuts the next unit off in, as a stream's reader would, or takes all.
func unitLen(h *handshake, in []byte) int {
	n := len(in)
	if h.at == hsBanner {
		if k, err := msgr2.DecodeBannerPrefix(in); err == nil {
			n = min(n, msgr2.BannerPrefixLen+k)
		}
		return n
	}
	var p msgr2.Preamble
	if p.Decode(in, h.limits()) == nil {
		n = min(n, int(p.WireLen()))
	}
	return n
}

func TestNonePayload(t *testing.T) {
	// What the ceph program sends a monitor, from the recording.
	recorded := []byte{10, 8, 0, 0, 0, 5, 0, 0, 0, 'a', 'd', 'm', 'i', 'n', 0, 0, 0, 0, 0, 0, 0, 0}
	require.Equal(t, recorded, appendNonePayload(nil, AuthInfo{Self: EntityName{Client, -1}, Peer: Mon}))
	name, id, err := parseNonePayload(recorded)
	require.NoError(t, err)
	require.Equal(t, EntityName{Client, -1}, name)
	require.Zero(t, id)
	for n := range recorded {
		_, _, err := parseNonePayload(recorded[:n])
		require.True(t, errors.Is(err, ErrAuth))
	}
}

func FuzzNonePayload(f *testing.F) {
	f.Add(appendNonePayload(nil, AuthInfo{Self: EntityName{OSD, 3}, Peer: Mon}))
	f.Fuzz(func(t *testing.T, p []byte) { parseNonePayload(p) })
}
