package messenger

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/argonaut-rdma/argonaut/buffer"
	"github.com/argonaut-rdma/argonaut/conn"
	"github.com/argonaut-rdma/argonaut/messenger/internal/msgr2"
	"github.com/argonaut-rdma/argonaut/messenger/internal/session"
)

// What two peers of this project say to each other, from the banners on, is the
// bytes in testdata/exchange, on both carriers and in both modes, and those bytes
// are understood: whoever changes the wire changes these files, with -rewrite, and
// knows that peers of another release speak as before. What is drawn or read off a
// clock elsewhere is fixed here, and so are the keys (see keyAuth).
func TestExchangeIsGolden(t *testing.T) {
	for _, scheme := range []string{SchemeTCP, SchemeIWARP} {
		for _, mode := range []Mode{ModeCRC, ModeSecure} {
			name := fmt.Sprintf("%s_%v", scheme, mode)
			t.Run(name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { // deadlines that travel are counted from now
					requireGolden(t, name, exchange(t, scheme, mode))
				})
			})
		}
	}
}

// speaker is one of the two.
type speaker struct {
	name     string
	h        *handshake
	say      *Connection // encodes what it says, to wire
	link     *link       // of say
	out      *streamTransport
	wire     *recording
	in       *link    // of another Connection, which hears what the other one says
	expected []string // what the other one's messages are
	heard    []string
}

// recording is a stream that keeps what is written.
type recording struct {
	scripted
	bytes []byte
}

func (r *recording) Write(p []byte) (int, error) {
	r.bytes = append(r.bytes, p...)
	return len(p), nil
}

// exchange runs it, and returns its bytes as text.
func exchange(t *testing.T, scheme string, mode Mode) string {
	var out strings.Builder
	fmt.Fprintf(&out, "# A session of two peers of this project over %s, %v mode.\n", scheme, mode)
	line := func(who, what string, b []byte) { hexLines(&out, who, what, b) }
	c, s := &speaker{name: "client"}, &speaker{name: "server"}
	goldenHandshake(t, scheme, mode, func(*speaker) Auth { return keyAuth{} }, c, s, func(x *speaker, u []byte) {
		line(x.name, describe(t, u), u)
	})
	x := newTarget(t)
	for _, me := range []*speaker{c, s} {
		open := func() *link {
			l := x.open(t, scheme, true, me.h.shield, func(l *link) transport {
				tr := &sink{}
				tr.init(l, scheme != SchemeTCP, rdmaChunk)
				return tr
			})
			l.own = me.h.result.own
			return l
		}
		me.link, me.in = open(), open()
		me.say = me.link.owner.Load()
		// Both sides have said something before: the numbers are not all 1.
		for _, l := range []*link{me.link, me.in} {
			c := l.owner.Load()
			c.mu.Lock()
			c.session.InSeq, c.session.OutSeq, l.numbered = 300, 300, 300
			c.mu.Unlock()
		}
		me.wire = &recording{}
		me.out = me.link.newStream(me.wire)
	}
	for i, said := range goldenTalk(t, x.arena) {
		from, to := c, s
		if !said.client {
			from, to = s, c
		}
		e := said.entry
		if e.m != nil {
			e.size = e.m.size()
			if e.m.Type < ReservedTypes && e.flags&flagReply == 0 {
				to.expected = append(to.expected, textOf(e.m, e.flags, e.deadline))
			}
		}
		from.say.mu.Lock()
		from.say.session.OutSeq += said.skip
		f := from.say.frame(nil, from.link, &e)
		from.say.mu.Unlock()
		x.show = func(m *Message) {
			deadline, _ := m.Deadline()
			to.heard = append(to.heard, textOf(m, m.flags, deadline))
		}
		if scheme == SchemeTCP {
			from.wire.bytes = nil
			require.NoError(t, from.out.send(f))
			require.NoError(t, from.out.flush())
			line(from.name, said.what, from.wire.bytes)
			to.hearStream(t, from.wire.bytes)
		} else {
			msg := from.sealedRDMA(t, x.arena, f)
			line(from.name, said.what+", head", msg.Head)
			if msg.Payload != nil {
				line(from.name, said.what+", payload", bytesOf(msg.Payload))
			}
			require.NoError(t, to.in.rdmaFrame(msg), "%d", i)
		}
		if e.m != nil {
			from.told(func(s *session.Session) { s.OutSeq += 1 + said.skip }) // it may be acknowledged
			to.say.mu.Lock()
			to.say.session.InSeq += 1 + said.skip // its next frame acknowledges this one
			to.say.mu.Unlock()
			e.m.Release()
		}
	}
	for _, me := range []*speaker{c, s} {
		require.Equal(t, me.expected, me.heard)
		require.NoError(t, me.in.failure())
	}
	return out.String()
}

// hexLines writes b as text.
func hexLines(out *strings.Builder, who, what string, b []byte) {
	fmt.Fprintf(out, "\n%s: %s, %d bytes\n", who, what, len(b))
	for len(b) > 0 {
		n := min(32, len(b))
		fmt.Fprintln(out, hex.EncodeToString(b[:n]))
		b = b[n:]
	}
}

// requireGolden compares text with testdata/exchange/name.txt, or writes that.
func requireGolden(t *testing.T, name, got string) {
	t.Helper()
	file := filepath.Join("testdata", "exchange", name+".txt")
	if *rewrite {
		require.NoError(t, os.WriteFile(file, []byte(got), 0o644))
	}
	want, err := os.ReadFile(file)
	require.NoError(t, err)
	is, was := strings.Split(got, "\n"), strings.Split(string(want), "\n")
	for i := range min(len(is), len(was)) {
		require.Equal(t, was[i], is[i], "the wire has changed: %s, line %d", file, i+1)
	}
	require.Len(t, is, len(was))
}

// goldenHandshake runs it, shows each unit, and leaves the two with their keys.
func goldenHandshake(t *testing.T, scheme string, mode Mode, auth func(*speaker) Auth, c, s *speaker,
	show func(from *speaker, unit []byte)) {
	for _, me := range []*speaker{c, s} {
		p := scriptParams([]string{me.name, "expect=4", "lossless"})
		p.offered = offered(&Config{})
		p.auth, p.modes, p.heads = []Auth{auth(me)}, []Mode{mode}, scheme != SchemeTCP
		p.target = ourAddr
		if me == c {
			p.addrs = msgr2.AddrVec{theirAddr, EntityAddr{URL: "iwarp://192.0.2.2:3301", Nonce: 7}.toWire()}
		}
		if !p.heads {
			p.limits = msgr2.Limits{Front: 1 << 20, Data: 1 << 30}
		}
		me.h = newHandshake(p)
	}
	type unit struct {
		from *speaker
		b    []byte
	}
	var way []unit
	add := func(from *speaker, units [][]byte) {
		for _, u := range units {
			way = append(way, unit{from, bytes.Clone(u)})
		}
	}
	add(c, c.h.start())
	add(s, s.h.start())
	for len(way) > 0 {
		u := way[0]
		way = way[1:]
		show(u.from, u.b)
		to := c
		if u.from == c {
			to = s
		}
		units, err := to.h.input(u.b)
		require.NoError(t, err)
		add(to, units)
	}
	require.True(t, c.h.done() && s.h.done())
	require.Equal(t, ownFeatures&^featureNoDataCRC, c.h.result.own)
	require.Equal(t, c.h.result.own, s.h.result.own)
}

// told changes the session that hears.
func (s *speaker) told(f func(*session.Session)) {
	c := s.in.owner.Load()
	c.mu.Lock()
	defer c.mu.Unlock()
	f(&c.session)
}

// sealedRDMA is f as it travels on a queue pair. It takes f's data.
func (s *speaker) sealedRDMA(t *testing.T, a *buffer.Arena, f outFrame) conn.Message {
	sh := s.h.shield
	if sh == nil {
		return conn.Message{Head: bytes.Clone(f.head), Payload: f.data}
	}
	var tags []byte
	var data *buffer.List
	if f.data != nil {
		var err error
		data, err = a.GetList(t.Context(), f.data.Len(), buffer.Anonymous)
		require.NoError(t, err)
		tags = sh.sealData(data, f.data)
		sh.txData++
		f.data.Release()
	}
	head, err := sh.sealHead(f.head, tags)
	require.NoError(t, err)
	return conn.Message{Head: bytes.Clone(head), Payload: data}
}

// hearStream has b read as one frame of a stream.
func (s *speaker) hearStream(t *testing.T, b []byte) {
	nc := &scripted{}
	nc.Reset(b)
	r := streamReader{l: s.in, t: s.in.newStream(nc), woken: make(chan struct{}, 1)}
	r.wake = func() { r.woken <- struct{}{} }
	require.NoError(t, r.frame(t.Context()))
	require.Zero(t, nc.Len(), "it is read to its end")
}

// textOf is all of a message that travels.
func textOf(m *Message, flags uint8, deadline time.Time) string {
	var data []byte
	if m.Data != nil {
		data = bytesOf(m.Data)
	}
	if !deadline.IsZero() {
		deadline = deadline.Round(0)
	}
	return fmt.Sprintf("type %d priority %d version %d/%d tid %d flags %#x front %q middle %q data %x trace %x until %v",
		m.Type, m.Priority, m.Version, m.CompatVersion, m.TID, flags, m.Front, m.Middle, data, m.Trace, deadline.UnixNano())
}

// goldenSaid is one frame of the exchange.
type goldenSaid struct {
	client bool
	what   string
	entry  entry
	skip   uint64 // numbers before that are not sent
}

// goldenTalk is what the two say when the session is open: each kind of frame.
func goldenTalk(t *testing.T, a *buffer.Arena) []goldenSaid {
	rnd := rand.New(rand.NewPCG(2026, 11))
	some := func(n int) []byte {
		b := make([]byte, 0, n+8)
		for len(b) < n {
			b = binary.LittleEndian.AppendUint64(b, rnd.Uint64())
		}
		return b[:n]
	}
	msg := func(typ uint16, tid uint64, front string, data int) *Message {
		m := NewMessage(typ)
		m.TID = tid
		m.Front = append(m.Front, front...)
		if data > 0 {
			m.Data = listOf(t, a, some(data))
		}
		return m
	}
	grants := string(AppendGrants(nil, []Grant{
		{Addr: 0x123456789abc, Len: 100, RKey: 0xcafe, Epoch: 3, Framed: true},
		{Addr: 1 << 32, Len: 28, RKey: 0xbeef, Epoch: 3, Write: true, Once: true},
	}))
	whole := msg(42, 0, "front", 9000)
	whole.Middle, whole.Priority, whole.Version, whole.CompatVersion = []byte("middle"), PriorityHigh, 3, 2
	traced := msg(43, 17, "call", 1)
	traced.Trace = TraceContext{TraceID: [16]byte{1, 2, 15: 16}, SpanID: [8]byte{3, 7: 8}, Flags: 1}
	refused := msg(typeRefused, 18, "", 0)
	refused.Front = append(binary.LittleEndian.AppendUint32(append(refused.Front, byte(ReasonRefused)), 5), "no"...)
	since := time.Unix(1_700_000_000, 123456789)
	return []goldenSaid{
		{true, "MESSAGE", entry{m: msg(1, 0, "hello", 0)}, 0},
		{true, "MESSAGE with middle and data", entry{m: whole}, 0},
		{false, "MESSAGE, empty", entry{m: msg(2, 0, "", 0)}, 0},
		{true, "MESSAGE, a call with deadline and trace", entry{m: traced, purpose: purpose{flags: flagCall, deadline: time.Now().Add(1500 * time.Millisecond)}}, 0},
		{false, "MESSAGE, its reply", entry{m: msg(44, 17, "answer", 100), purpose: purpose{flags: flagReply}}, 0},
		{true, "MESSAGE behind two that are not sent", entry{m: msg(45, 0, "later", 0)}, 2},
		{true, "pull", entry{m: msg(typePull, 1, grants, 0)}, 0},
		{false, "pulled", entry{m: msg(typePulled, 1, string([]byte{pulledOK}), 128)}, 0},
		{true, "push", entry{m: msg(typePush, 2, grants, 128)}, 0},
		{false, "pushed", entry{m: msg(typePushed, 2, string([]byte{pulledStale}), 0)}, 0},
		{true, "cancel", entry{m: msg(typeCancel, 17, "", 0)}, 0},
		{false, "refused", entry{m: refused}, 0},
		{true, "KEEPALIVE2", entry{kind: entryKeepalive, since: since}, 0},
		{false, "KEEPALIVE2_ACK", entry{kind: entryKeepaliveAck, since: since}, 0},
		{false, "ACK", entry{kind: entryAck}, 0},
	}
}

var _ net.Conn = (*recording)(nil)
