package conn

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/argonaut-rdma/argonaut/conn/internal/wire"
	"github.com/argonaut-rdma/argonaut/test/env"
	"github.com/argonaut-rdma/argonaut/verbs"
)

var rewrite = flag.Bool("rewrite", false, "write the expectations of testdata/exchange/*.txt from what the tests see")

// What an endpoint says, and what is said to it and understood, is the bytes in
// testdata/exchange: every record and every flag there is. Whoever changes the wire
// changes these files, with -args -rewrite, and knows that peers of another release
// speak as before. The other end is a queue pair without an endpoint, so that
// nothing is said but what the script asks for. What is drawn (the epoch of a dial)
// or depends on where memory is (addresses and keys of segments) is blanked.
func TestExchangeIsGolden(t *testing.T) {
	env.UserSpace(t, "rendezvous take scoped keys, and private data is padded elsewhere")
	for name, script := range map[string]func(*exchanging){
		"accepting": exchangeAccepting,
		"dialing":   exchangeDialing,
		"staged":    exchangeStaged,
		"closing":   exchangeClosing,
		"refusing":  exchangeRefusing,
	} {
		t.Run(name, func(t *testing.T) {
			x := &exchanging{T: t}
			script(x)
			file := filepath.Join("testdata", "exchange", name+".txt")
			if *rewrite {
				require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o755))
				require.NoError(t, os.WriteFile(file, []byte(x.out.String()), 0o644))
			}
			want, err := os.ReadFile(file)
			require.NoError(t, err)
			is, was := strings.Split(x.out.String(), "\n"), strings.Split(string(want), "\n")
			for i := range min(len(is), len(was)) {
				require.Equal(t, was[i], is[i], "the wire has changed: %s, line %d", file, i+1)
			}
			require.Len(t, is, len(was))
		})
	}
}

// exchanging is a script under way: endpoint n and its connection c, with r.
type exchanging struct {
	*testing.T
	out strings.Builder
	n   *node
	c   *Conn
	r   *rawPeer
}

const goldenSize = 4 << 10 // bytes of r's receive buffers

// goldenHello is r's.
func goldenHello(change func(*wire.Hello)) []byte {
	return rawHello(func(h *wire.Hello) {
		h.Credits, h.RecvSize, h.Features = 8, goldenSize, wire.FeatureRendezvous|wire.FeatureClose
		if change != nil {
			change(h)
		}
	})
}

// node makes the endpoint.
func (x *exchanging) node(cfg Config) {
	cfg.EagerMax, cfg.CopyBreak, cfg.MaxMessage = 8000, 256, 1<<20
	x.n = newNode(x.T, nodeConfig{Config: cfg})
}

// dial has r dial the endpoint.
func (x *exchanging) dial() {
	x.r = newRawPeer(x.T)
	h := goldenHello(nil)
	x.line("peer", describeHello(x.T, h), h)
	p, err := x.r.connect(x.n.listen(), h)
	require.NoError(x, err)
	x.line("endpoint", describeHello(x.T, p.PrivateData), p.PrivateData)
	x.c = get(x.T, x.n.accepted)
	x.says(wire.Packet{Epoch: rawEpoch})
	x.settled(0, 1)
}

// line writes bytes down; what repeats is left out.
func (x *exchanging) line(who, what string, b []byte) {
	fmt.Fprintf(&x.out, "%s: %s, %d bytes\n", who, what, len(b))
	const n = 32
	for i := 0; i < len(b); i += n {
		l := b[i:min(i+n, len(b))]
		k := 0 // lines that are the same
		for len(b)-i >= (k+2)*n && bytes.Equal(l, b[i+(k+1)*n:][:n]) {
			k++
		}
		fmt.Fprintln(&x.out, hex.EncodeToString(l))
		if k > 1 {
			fmt.Fprintf(&x.out, "* %d times more\n", k)
			i += k * n
		}
	}
	fmt.Fprintln(&x.out)
}

func describeHello(t testing.TB, b []byte) string {
	h, err := wire.ParseHello(b)
	require.NoError(t, err)
	return fmt.Sprintf("hello %+v", h)
}

// packet writes a packet down, without what differs each time.
func (x *exchanging) packet(who string, b []byte, key uint32) {
	b = bytes.Clone(b)
	h, err := wire.ParsePacket(b)
	require.NoError(x, err)
	what := fmt.Sprintf("packet with %d credits", h.Credits)
	if h.Parked {
		what += ", parked"
	}
	if key != 0 {
		what += ", invalidates a key"
	}
	for off := wire.PacketLen; off < len(b); {
		r, n, err := wire.ParseRecord(b[off:])
		require.NoError(x, err)
		what += fmt.Sprintf("; %v %d", r.Type, r.Payload)
		if r.Head > 0 {
			what += fmt.Sprintf(" %q", b[off+wire.RecordLen:][:r.Head])
		}
		if r.Type == wire.RndvRTS {
			for segs := b[off+wire.RecordLen+int(r.Head) : off+n]; len(segs) > 0; segs = segs[wire.SegmentLen:] {
				s := wire.ParseSegment(segs)
				require.NotZero(x, s.RKey)
				what += fmt.Sprintf(" +%d", s.Len)
				wire.Segment{Len: s.Len}.Put(segs)
			}
		}
		off += n
	}
	x.line(who, what, b)
}

// says has r send a packet.
func (x *exchanging) says(p wire.Packet, parts ...any) {
	b := rawPacket(p, parts...)
	x.r.send(b)
	x.packet("peer", b, 0)
}

// hears waits for a packet of the endpoint.
func (x *exchanging) hears() verbs.WC {
	b, wc := x.r.recv()
	x.packet("endpoint", b, wc.InvalidatedRKey)
	return wc
}

// settled waits until the endpoint owes so many credits: it has done with what was
// said.
func (x *exchanging) settled(data, control int32) {
	x.Helper()
	require.Eventually(x, func() bool {
		x.c.mu.Lock()
		defer x.c.mu.Unlock()
		return x.c.open && x.c.owed.Load() == data && x.c.owedControl.Load() == control
	}, wait, time.Millisecond)
}

// send has the endpoint send a message whose payload has pieces of the given sizes.
func (x *exchanging) send(head string, sizes ...int) {
	ctx, cancel := context.WithTimeout(x.Context(), wait)
	defer cancel()
	m := Message{Head: []byte(head)}
	if len(sizes) > 0 {
		m.Payload, _ = x.n.list(sizes...)
		for b := range m.Payload.Buffers() {
			copy(b.Bytes(), bytes.Repeat([]byte(head[:1]), b.Len()))
		}
	}
	require.NoError(x, x.c.Send(ctx, m))
}

// scoped makes a key of r's for n bytes, for the endpoint's queue pair.
func (x *exchanging) scoped(n int) wire.Segment {
	r := x.r
	mr, err := r.pd.RegMR(bytes.Repeat([]byte("r"), n), verbs.AccessLocalWrite|verbs.AccessRemoteRead)
	require.NoError(x, err)
	key, err := mr.Scope(r.qp, 0, uint64(n), verbs.AccessRemoteRead)
	require.NoError(x, err)
	x.Cleanup(func() {
		require.NoError(x, key.Deregister())
		require.NoError(x, mr.Deregister())
	})
	return wire.Segment{Addr: mr.Addr(), Len: uint32(n), RKey: key.RKey()}
}

// exchangeAccepting is a connection that the endpoint accepts, to its graceful end.
func exchangeAccepting(x *exchanging) {
	var admit atomic.Bool
	x.node(Config{Admit: func(_ *Conn, head []byte, _ int64) bool { return string(head) != "wait" || admit.Load() }})
	x.dial()

	// Of its 8 credits, data leaves 2.
	x.send("one")
	x.hears()
	x.send("copied", 10)
	x.hears()
	x.send("in parts", 5000)
	x.hears()
	x.hears()
	x.send("fetch", 6000, 4000)
	x.hears()
	require.Equal(x, 2, x.n.a.Stats().Grants)
	x.send("last")
	x.hears()
	x.send("waits")
	x.send("joins", 20)
	require.EqualValues(x, 1, x.c.Stats().Coalesced)
	x.says(wire.Packet{Epoch: rawEpoch, Credits: 6}, wire.Record{Type: wire.Done, Payload: 1})
	x.hears()
	require.Eventually(x, func() bool { return x.n.a.Stats().Grants == 0 }, wait, time.Millisecond)

	gave := wire.Packet{Epoch: rawEpoch, Credits: 1}
	x.says(gave, wire.Record{Type: wire.Msg, Head: 5, Payload: 7}, "small", "payload")
	x.n.expect(x.c, "small", []byte("payload"))
	x.says(wire.Packet{Epoch: rawEpoch}, wire.Record{Type: wire.Msg, Head: 5, Payload: 7}, "parts", "pay")
	x.says(wire.Packet{Epoch: rawEpoch}, wire.Record{Type: wire.Frag, Payload: 4}, "load",
		wire.Record{Type: wire.Msg, Head: 6}, "behind")
	x.n.expect(x.c, "parts", []byte("payload"))
	x.n.expect(x.c, "behind", nil)
	x.settled(3, 0)

	// The endpoint fetches, and says so; when it may not, it says that.
	rts := wire.Record{Type: wire.RndvRTS, Segments: 2, Payload: 9000}
	s, u := x.scoped(5000), x.scoped(4000)
	rts.Head = 5
	x.says(wire.Packet{Epoch: rawEpoch}, rts, "rndvs", s, u)
	x.n.expect(x.c, "rndvs", bytes.Repeat([]byte("r"), 9000))
	x.hears()
	rts.Head = 4
	x.says(gave, rts, "wait", s, u)
	x.hears()
	admit.Store(true)
	x.c.Resume()
	x.hears()
	x.n.expect(x.c, "wait", bytes.Repeat([]byte("r"), 9000))
	x.hears()

	// A grant for one transfer ends with it.
	once := x.scoped(100)
	dst, _ := x.n.list(100)
	require.NoError(x, x.c.Read(x.Context(), dst, Grant{Epoch: rawEpoch, Addr: once.Addr, Len: uint64(once.Len), RKey: once.RKey, Once: true}, 0))
	require.Equal(x, bytes.Repeat([]byte("r"), 100), bytesOf(dst))
	dst.Release()
	require.Equal(x, once.RKey, x.hears().InvalidatedRKey)

	// Credits alone.
	for i := range int32(8) {
		x.says(wire.Packet{Epoch: rawEpoch}, wire.Record{Type: wire.Msg, Head: 1}, "x")
		x.n.expect(x.c, "x", nil)
		x.settled((i+1)%8, 0)
	}
	x.hears()

	over := make(chan error, 1)
	go func() { over <- x.c.Shutdown(x.Context()) }() // ends with the connection
	x.hears()
	x.says(wire.Packet{Epoch: rawEpoch}, wire.Record{Type: wire.Goodbye})
	get(x.T, x.r.qp.Disconnected())
	require.NoError(x, get(x.T, over))
	require.ErrorIs(x, get(x.T, x.n.faults).err, ErrClosed)
	for _, wc := range x.r.got {
		require.Equal(x, verbs.StatusWRFlushErr, wc.Status, "it has said more")
	}
}

// exchangeDialing is a connection that the endpoint dials, and closes.
func exchangeDialing(x *exchanging) {
	x.node(Config{})
	x.r = newRawPeer(x.T)
	l, err := x.r.dev.Listen(x.Context(), env.ListenAddr())
	require.NoError(x, err)
	x.Cleanup(func() { require.NoError(x, l.Close()) })
	type dialed struct {
		c   *Conn
		err error
	}
	done := make(chan dialed, 1)
	go func() { // ends when it is accepted, or with the endpoint
		c, err := x.n.Dial(context.Background(), l.Addr())
		done <- dialed{c, err}
	}()
	ctx, cancel := context.WithTimeout(x.Context(), wait)
	defer cancel()
	req, err := l.Accept(ctx)
	require.NoError(x, err)
	theirs, err := wire.ParseHello(req.PrivateData())
	require.NoError(x, err)
	require.NotZero(x, theirs.Epoch)
	epoch := theirs.Epoch
	var b [wire.HelloLen]byte
	copy(b[:], req.PrivateData())
	blank(b[16:20], epoch)
	x.line("endpoint", describeHello(x.T, b[:]), b[:])
	ours := goldenHello(func(h *wire.Hello) { h.Epoch = epoch })
	require.NoError(x, req.Accept(ctx, x.r.qp, verbs.ConnParam{PrivateData: ours, IRD: 8, ORD: 8}))
	blank(ours[16:20], epoch)
	x.line("peer", describeHello(x.T, ours), ours)
	d := get(x.T, done)
	require.NoError(x, d.err)
	require.Equal(x, epoch, d.c.Epoch())
	for range 2 { // the greeting, then CLOSE
		p, _ := x.r.recv()
		blank(p[:4], epoch)
		x.packet("endpoint", p, 0)
		require.NoError(x, d.c.Close())
	}
	require.NoError(x, x.r.qp.Disconnect())
	require.ErrorIs(x, get(x.T, x.n.faults).err, ErrClosed)
}

// blank replaces an epoch by another one.
func blank(b []byte, epoch uint32) {
	var was, is [wire.PacketLen]byte
	wire.Packet{Epoch: epoch}.Put(was[:])
	wire.Packet{Epoch: rawEpoch}.Put(is[:])
	if !bytes.Equal(b, was[:4]) {
		panic(errors.New("there is no epoch"))
	}
	copy(b, is[:])
}

// exchangeStaged is a connection that is accepted with few credits, gets the
// others, and that the peer closes.
func exchangeStaged(x *exchanging) {
	x.node(Config{StagedCredits: 4})
	x.dial()
	x.c.Promote()
	x.hears()
	x.says(wire.Packet{Epoch: rawEpoch}, wire.Record{Type: wire.Close, Payload: wire.CloseEndpoint})
	f := get(x.T, x.n.faults)
	require.ErrorIs(x, f.err, ErrPeerClosed)
	require.ErrorContains(x, f.err, "with its endpoint")
}

// exchangeClosing is a connection that ends with its endpoint.
func exchangeClosing(x *exchanging) {
	x.node(Config{})
	x.dial()
	over := make(chan error, 1)
	go func() { over <- x.n.Endpoint.Close() }() // ends when r has disconnected
	x.hears()
	require.NoError(x, x.r.qp.Disconnect())
	require.NoError(x, get(x.T, over))
}

// exchangeRefusing is every refusal.
func exchangeRefusing(x *exchanging) {
	deny := make(chan bool, 1)
	x.node(Config{RecvBuffers: 16, Credits: 16, OnAccept: func(*Conn) bool { return <-deny }})
	addr := x.n.listen()
	refused := func(why wire.Reason, h []byte) {
		_, err := newRawPeer(x.T).connect(addr, h)
		var rej *verbs.RejectError
		require.ErrorAs(x, err, &rej)
		got, ok := wire.ParseRefusal(rej.PrivateData)
		require.True(x, ok)
		require.Equal(x, why, got)
		x.line("endpoint", "refusal: "+why.String(), rej.PrivateData)
	}
	h := goldenHello(nil)
	refused(wire.ReasonMalformed, goldenHello(func(h *wire.Hello) { h.RecvSize = 1 }))
	other := bytes.Clone(h)
	other[5]++
	refused(wire.ReasonVersion, other)
	deny <- false
	refused(wire.ReasonDenied, h)
	require.Eventually(x, func() bool { return x.n.Stats().Conns == 0 }, wait, time.Millisecond)
	held := newRawPeer(x.T)
	deny <- true
	_, err := held.connect(addr, h)
	require.NoError(x, err)
	refused(wire.ReasonBusy, h)
	x.n.mu.Lock()
	x.n.closing = true // what comes while Shutdown stops listening
	x.n.mu.Unlock()
	refused(wire.ReasonClosing, h)
}
