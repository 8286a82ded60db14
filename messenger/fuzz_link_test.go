package messenger

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"log/slog"
	"net"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/argonaut-rdma/argonaut/buffer"
	"github.com/argonaut-rdma/argonaut/conn"
	"github.com/argonaut-rdma/argonaut/messenger/internal/msgr2"
)

// The readers of an open link as wholes, fuzzed: whatever a peer that has its
// session, and the keys, sends. Nothing panics, memory and throttles come back,
// and no byte is read or written but those that were granted.

// sink is a transport that keeps what pulls are answered with, and drops the rest.
type sink struct {
	streamBulk
	pulled syncSlice[[]byte]
}

func (s *sink) try(outFrame) (bool, error) { return false, nil }
func (s *sink) ring()                      {}
func (s *sink) send(f outFrame) error {
	var p msgr2.Preamble
	var h msgr2.Header
	if p.Decode(f.head, msgr2.Limits{}) == nil && p.Tag == msgr2.TagMessage && h.Decode(f.head[msgr2.PreambleLen:]) == nil &&
		h.Type == typePulled && f.data != nil {
		s.pulled.add(bytesOf(f.data))
	}
	if f.data != nil {
		f.data.Release()
		f.over()
	}
	return nil
}
func (s *sink) flush() error             { return nil }
func (s *sink) fits(int, int64) error    { return nil }
func (s *sink) rest()                    {}
func (s *sink) progress() (uint64, bool) { return 0, false }
func (s *sink) close()                   { s.streamBulk.end() }
func (s *sink) goodbye(context.Context)  { s.close() }
func (s *sink) frames() *streamBulk      { return &s.streamBulk }

// target is what links are fuzzed on: a messenger that takes all that comes, and
// may show it.
type target struct {
	m     *Messenger
	arena *buffer.Arena
	show  func(*Message) // nil: nobody looks
}

const targetMax = 64 << 10

func newTarget(t testing.TB) *target {
	x := &target{arena: newArena(t)}
	x.m = newMessenger(t, Config{Arena: x.arena, MaxFront: 16 << 10, MaxData: targetMax, Auth: []Auth{AuthNone{}}, Transports: []Transport{},
		Logger: slog.New(slog.DiscardHandler)}) // while a fuzz target runs, its F takes no lines
	x.m.AddDispatcher(&handler{fast: func(m *Message) bool {
		if x.show != nil {
			x.show(m)
		}
		m.Release()
		return true
	}})
	return x
}

// open makes a session with an open link on t, which mode, nil for none, seals.
func (x *target) open(t *testing.T, scheme string, own bool, sh *shield, tr func(l *link) transport) *link {
	c := x.m.newConnection(OSD, LosslessPeer())
	l := x.m.newLink(scheme, "192.0.2.1:6800", true)
	l.shield = sh
	if own {
		l.own = ownFeatures
	}
	l.limit = x.m.throttlesFor(OSD, c.policy)
	l.t, l.isOpen = tr(l), true
	l.owner.Store(c)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.session.TakenIn()
	c.link = l
	c.setReady(true)
	x.m.mu.Lock()
	defer x.m.mu.Unlock()
	x.m.connections[c], x.m.links[l] = struct{}{}, struct{}{}
	l.incoming = false // it is not counted among the half-open
	return l
}

// end ends the session, and requires that all that it held is back.
func (x *target) end(t *testing.T, l *link) {
	c := l.owner.Load()
	c.MarkDown()
	drained(t, c)
	// As the poller does, when the connection is gone.
	for st := &l.rdma; st.admitted > 0; st.admitted-- {
		b := budget{t: l.limit, bytes: st.admittedBytes, held: true}
		st.admittedBytes = 0
		b.release()
	}
	for begin := time.Now(); x.m.Stats().DispatchBytes != 0 || x.arena.Account().Held != 0; runtime.Gosched() {
		require.Less(t, time.Since(begin), patience, "%+v, %+v", x.arena.Account(), x.m.Stats())
	}
}

// drained waits until what is queued on c has been sent, or dropped.
func drained(t *testing.T, c *Connection) {
	for begin := time.Now(); ; runtime.Gosched() {
		c.mu.Lock()
		busy := c.draining
		c.mu.Unlock()
		if !busy {
			return
		}
		require.Less(t, time.Since(begin), patience)
	}
}

// fuzzSecret is the secret of both ends.
var fuzzSecret = bytes.Repeat([]byte("secret"), 16)

func fuzzShields(t testing.TB) (ours, theirs *shield) {
	ours, err := newShield(fuzzSecret, false)
	require.NoError(t, err)
	theirs, err = newShield(fuzzSecret, true)
	require.NoError(t, err)
	return ours, theirs
}

// summed makes the checksums of a frame right: of its preamble, of its first
// segment, and of the others as far as they are there.
func summed(head, data []byte) []byte {
	head = bytes.Clone(head)
	if len(head) < msgr2.PreambleLen {
		return head
	}
	le := binary.LittleEndian
	le.PutUint32(head[msgr2.PreambleLen-4:], msgr2.CRC(0, head[:msgr2.PreambleLen-4]))
	var p msgr2.Preamble
	if p.Decode(head, msgr2.Limits{}) != nil {
		return head
	}
	at := msgr2.PreambleLen + p.SegZeroLen()
	if at > len(head) || p.SegZeroLen() < msgr2.CRCLen {
		return head
	}
	le.PutUint32(head[at-msgr2.CRCLen:], msgr2.CRC(msgr2.CRCSeed, head[msgr2.PreambleLen:at-msgr2.CRCLen]))
	front, middle := int(p.Segs[msgr2.SegFront].Len), int(p.Segs[msgr2.SegMiddle].Len)
	if p.Tag != msgr2.TagMessage || len(head)-at != front+middle+msgr2.EpilogueLen {
		return head
	}
	e := head[at+front+middle:]
	le.PutUint32(e[1:], msgr2.CRC(msgr2.CRCSeed, head[at:at+front]))
	le.PutUint32(e[5:], msgr2.CRC(msgr2.CRCSeed, head[at+front:at+front+middle]))
	le.PutUint32(e[9:], msgr2.CRC(msgr2.CRCSeed, data))
	return head
}

// seedMessage is the head of a message with data.
func seedMessage(h msgr2.Header, front, middle, data []byte) []byte {
	b, p, e := msgr2.AppendMessageHead(nil, &h, front, middle, len(data))
	return msgr2.AppendMessageTail(b, &p, e, msgr2.CRC(msgr2.CRCSeed, data))
}

// seedHeads are frames of all kinds that an open session has, with the data that
// each announces.
func seedHeads() (heads, datas [][]byte) {
	grants := AppendGrants(nil, []Grant{{Addr: 1 << 16, Len: 8, RKey: 1, Epoch: 1}, {Addr: 1 << 17, Len: 8, RKey: 2, Epoch: 1, Write: true, Framed: true}})
	add := func(h msgr2.Header, front, middle, data []byte) {
		heads, datas = append(heads, seedMessage(h, front, middle, data)), append(datas, data)
	}
	data := bytes.Repeat([]byte("data"), 300)
	add(msgr2.Header{Seq: 1, Type: 1}, nil, nil, nil)
	add(msgr2.Header{Seq: 1, Type: 2, AckSeq: 1}, []byte("front"), []byte("middle"), data)
	add(msgr2.Header{Seq: 1, Type: 3, TID: 9, Flags: flagCall}, []byte("front"), nil, data)
	add(msgr2.Header{Seq: 1, Type: 3, TID: 9, Flags: flagReply}, []byte("front"), nil, nil)
	add(msgr2.Header{Seq: 1, Type: 3, Reserved: 3}, []byte("front"), nil, nil)
	add(msgr2.Header{Seq: 5, Type: 3, Reserved: 10}, appendGap(nil, 4), nil, nil)
	for typ := uint16(ReservedTypes); typ < ReservedTypes+8; typ++ {
		add(msgr2.Header{Seq: 1, Type: typ, TID: 1}, grants, nil, data[:16])
		add(msgr2.Header{Seq: 1, Type: typ, TID: 1}, []byte{pulledOK}, nil, data[:100])
	}
	for _, f := range []msgr2.Frame{&msgr2.Keepalive2{}, &msgr2.Keepalive2Ack{}, &msgr2.Ack{Seq: 1}, &msgr2.Wait{}, &msgr2.SessionReset{}} {
		heads, datas = append(heads, msgr2.AppendControl(nil, f)), append(datas, nil)
	}
	return heads, datas
}

// FuzzRDMAFrame: frames of a queue pair, as the poller takes them: admission, then
// the frame; as they are, or sealed by a peer that has the keys.
func FuzzRDMAFrame(f *testing.F) {
	heads, datas := seedHeads()
	for i, h := range heads {
		for _, how := range []byte{0, 1, 2, 3, 4, 5} {
			f.Add(h, datas[i], how)
		}
	}
	x := newTarget(f)
	f.Fuzz(func(t *testing.T, head, data []byte, how byte) {
		if len(data) > targetMax || len(head) > targetMax {
			return
		}
		var ours, theirs *shield
		sealed, own := how&1 != 0, how&8 == 0
		if how&2 == 0 {
			head = summed(head, data)
		}
		if sealed {
			ours, theirs = fuzzShields(t)
		}
		tr := &sink{}
		l := x.open(t, SchemeIWARP, own, ours, func(l *link) transport {
			tr.init(l, true, rdmaChunk)
			return tr
		})
		defer x.end(t, l)
		for n := range 2 { // the second one is a duplicate, or the next
			msg := conn.Message{Head: bytes.Clone(head)}
			var plain *buffer.List
			if len(data) > 0 {
				plain = listOf(t, x.arena, data)
				msg.Payload = plain
			}
			if sealed {
				var tags []byte
				if plain != nil {
					dst, err := x.arena.GetList(t.Context(), int64(len(data)), buffer.Anonymous)
					require.NoError(t, err)
					tags = bytes.Clone(theirs.sealData(dst, plain))
					theirs.txData++
					plain.Release()
					msg.Payload = dst
				}
				if how&4 != 0 && len(tags) > 0 {
					tags = tags[:len(tags)-1] // not the whole of them
				}
				b, err := theirs.sealHead(msg.Head, tags)
				require.NoError(t, err)
				msg.Head = bytes.Clone(b)
			}
			// What admitRDMA does, for a connection that has none.
			plainHead := msg.Head
			if ours != nil {
				plainHead = ours.lookAhead(plainHead)
			}
			if size, ok := l.toAdmit(plainHead, int64(len(data))); ok {
				l.adm.begin(l.limit, size)
				if !l.adm.advance(func() {}) {
					l.adm.abandon()
					if msg.Payload != nil {
						msg.Payload.Release()
					}
					return
				}
				l.rdma.admitted++
				l.rdma.admittedBytes += l.adm.bytes
			}
			if err := l.rdmaFrame(msg); err != nil {
				require.True(t, known(err), "%d: %v", n, err)
				l.fail("read", frameError(err))
				return
			}
		}
	})
}

// known reports whether an error says that a frame is wrong.
func known(err error) bool {
	for _, e := range []error{ErrProtocol, ErrForged, ErrInvalid, msgr2.ErrChecksum, io.EOF, io.ErrUnexpectedEOF} {
		if errors.Is(err, e) {
			return true
		}
	}
	return errors.As(err, new(*msgr2.DecodeError))
}

func listOf(t testing.TB, a *buffer.Arena, b []byte) *buffer.List {
	l, err := a.GetList(context.Background(), int64(len(b)), buffer.Anonymous)
	require.NoError(t, err)
	l.CopyFrom(b)
	return l
}

// scripted is a stream that says what it was given, and ends.
type scripted struct {
	net.Conn
	bytes.Reader
}

func (s *scripted) Read(p []byte) (int, error)       { return s.Reader.Read(p) }
func (s *scripted) Write(p []byte) (int, error)      { return len(p), nil }
func (s *scripted) Close() error                     { return nil }
func (s *scripted) SetReadDeadline(time.Time) error  { return nil }
func (s *scripted) SetWriteDeadline(time.Time) error { return nil }

// resealed are the frames in b as somebody with the keys sends them: each preamble
// says what is in it, the rest is cut off where b ends.
func resealed(t testing.TB, sh *shield, b []byte) (out []byte) {
	for len(b) >= msgr2.PreambleLen {
		p, err := msgr2.PeekPreamble(b)
		if err != nil {
			return append(out, b...)
		}
		b = b[msgr2.PreambleLen:]
		var segs [4][]byte
		for i := range segs {
			n := min(int(p.Segs[i].Len), len(b), targetMax)
			segs[i], b = b[:n], b[n:]
			p.Segs[i].Len = uint32(n)
			if i == 0 && n > 0 {
				b = b[min(len(b), msgr2.CRCLen):]
			}
		}
		if out, err = sh.tx.AppendSecure(out, &p, segs[0], segs[1], segs[2], [][]byte{segs[3]}, false); err != nil {
			return out
		}
		b = b[min(len(b), p.EpilogueLen()):]
	}
	return out
}

// FuzzStreamReader: bytes of a stream, as its reader takes them, until they end or
// are refused; as they are, or sealed by a peer that has the keys.
func FuzzStreamReader(f *testing.F) {
	heads, datas := seedHeads()
	for i, h := range heads {
		n := len(h)
		if len(datas[i]) > 0 {
			n -= msgr2.EpilogueLen
		}
		whole := append(append(bytes.Clone(h[:n]), datas[i]...), h[n:]...)
		for _, how := range []byte{0, 1, 8} {
			f.Add(whole, how)
			f.Add(append(bytes.Clone(whole), whole...), how)
		}
	}
	x := newTarget(f)
	f.Fuzz(func(t *testing.T, in []byte, how byte) {
		var ours, theirs *shield
		sealed, own := how&1 != 0, how&8 == 0
		if sealed {
			ours, theirs = fuzzShields(t)
			in = resealed(t, theirs, in)
		}
		nc := &scripted{}
		nc.Reset(in)
		var tr *streamTransport
		l := x.open(t, SchemeTCP, own, ours, func(l *link) transport {
			tr = l.newStream(nc)
			return tr
		})
		defer x.end(t, l)
		r := streamReader{l: l, t: tr, woken: make(chan struct{}, 1)}
		r.wake = func() { r.woken <- struct{}{} }
		for {
			if err := r.frame(t.Context()); err != nil {
				require.True(t, known(err), "%v", err)
				return
			}
		}
	})
}

// FuzzBulk: pulls, pushes and answers of a peer, as receiveOwn takes them, with
// grants that are somewhat right: nothing is read or written but what was granted,
// for what it was granted.
func FuzzBulk(f *testing.F) {
	for _, typ := range []byte{0, 1, 2, 3, 4, 5, 6} {
		for _, at := range []uint16{0, 100, 4000} {
			f.Add(typ, uint64(1), at, uint16(96), byte(0), byte(0), []byte(nil))
			f.Add(typ, uint64(1), at, uint16(96), byte(1), byte(0), []byte{pulledOK})
			f.Add(typ, uint64(2), at, uint16(4000), byte(0), byte(1), []byte{1, 2, 3})
		}
	}
	x := newTarget(f)
	f.Fuzz(func(t *testing.T, typ byte, tid uint64, at, n uint16, which, change byte, front []byte) {
		if len(front) > 4<<10 {
			return
		}
		const size = 4096
		tr := &sink{}
		l := x.open(t, SchemeIWARP, true, nil, func(l *link) transport {
			tr.init(l, true, rdmaChunk)
			return tr
		})
		var whole [2]*buffer.List
		var dst *buffer.List
		defer func() {
			for _, l := range []*buffer.List{whole[0], whole[1], dst} {
				if l != nil {
					l.Release()
				}
			}
			x.end(t, l)
		}()
		// Two buffers of which the middle is granted, one to read and one to write.
		var gs [2]Grant
		for i := range whole {
			whole[i] = listOf(t, x.arena, bytes.Repeat([]byte{byte(1 + i)}, 3*size))
			if whole[i].Segments() != 1 {
				t.Fatal("a small list of several buffers")
			}
			part := buffer.NewList()
			part.Append(whole[i].At(0).Retain().Slice(size, 2*size))
			g, err := tr.grant(t.Context(), part, i == 1)
			require.NoError(t, err)
			part.Release()
			copy(whole[i].At(0).Bytes()[size:2*size], bytes.Repeat([]byte{byte(11 + i)}, size))
			gs[i] = g[0]
		}
		// A pull of ours that waits.
		dst = listOf(t, x.arena, make([]byte, 96))
		asked := NewMessage(typePull)
		mine := &pull{dst: dst.Share(), n: 96, ch: make(chan error, 1)}
		require.NoError(t, tr.await(t.Context(), asked, mine))
		asked.Release()

		g := gs[which&1]
		g.Addr += uint64(at)
		g.Len = uint64(n)
		switch change % 8 {
		case 1:
			g.Epoch++
		case 2:
			g.RKey = gs[1-which&1].RKey
		case 3:
			g.Addr -= uint64(at) + 1
		case 4:
			g.Len = 1 << 39
		case 5:
			g.Addr = ^uint64(0) - uint64(n)
		case 6:
			g.Write = !g.Write
		}
		m := NewMessage(ReservedTypes + uint16(typ)%8)
		if len(front) == 0 {
			m.Front = AppendGrants(m.Front, []Grant{g})
		} else {
			m.Front = append(m.Front, front...)
		}
		if n > 0 && which&2 == 0 {
			m.Data = listOf(t, x.arena, bytes.Repeat([]byte{99}, int(n)))
		}
		h := msgr2.Header{Seq: 1, Type: m.Type, TID: tid, Flags: 0}
		l.place(&h, m)
		require.NoError(t, l.fill(m, &h))
		m.Conn = l.owner.Load()
		l.receiveOwn(m)

		right := g.Len <= size && g.Addr >= gs[which&1].Addr && g.Addr-gs[which&1].Addr <= size-g.Len
		for i := range whole {
			b := whole[i].At(0).Bytes()
			require.True(t, allAre(b[:size], byte(1+i)) && allAre(b[2*size:], byte(1+i)), "a byte beside a grant was written")
			if i == 0 || !right || change%8 != 0 && change%8 != 6 && change%8 != 7 {
				require.True(t, allAre(b[size:2*size], byte(11+i)), "a byte was written that was not granted for that")
			}
		}
		drained(t, l.owner.Load())
		for _, b := range tr.pulled.all() {
			require.True(t, allAre(b, 11), "a byte was read that was not granted for that")
		}
	})
}

func allAre(b []byte, v byte) bool {
	for _, x := range b {
		if x != v {
			return false
		}
	}
	return true
}
