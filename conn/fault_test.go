package conn

import (
	"context"
	"errors"
	"io"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/argonaut-rdma/argonaut/buffer"
	"github.com/argonaut-rdma/argonaut/conn/internal/wire"
	"github.com/argonaut-rdma/argonaut/test/env"
	"github.com/argonaut-rdma/argonaut/verbs"
)

// TestMalformedHello: what is no hello is refused before a QP is made for it.
func TestMalformedHello(t *testing.T) {
	n := newNode(t, nodeConfig{})
	addr := n.listen()
	before := len(n.dev.Resources())
	refused := uint64(0)
	for name, c := range map[string]struct {
		private []byte
		reason  wire.Reason
	}{
		"none":    {nil, wire.ReasonMalformed},
		"garbage": {[]byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n........"), wire.ReasonMalformed},
		"short":   {rawHello(nil)[:20], wire.ReasonMalformed},
		"huge":    {rawHello(func(h *wire.Hello) { h.RecvSize = 1 << 30 }), wire.ReasonMalformed},
		"version": {append([]byte("ARGC\x20\x63"), rawHello(nil)[6:]...), wire.ReasonVersion},
	} {
		if name == "short" && n.dev.Caps().Transport != verbs.TransportIWARP {
			continue // filled up with zeros on the way
		}
		_, err := newRawPeer(t).connect(addr, c.private)
		refused++
		var rej *verbs.RejectError
		require.ErrorAs(t, err, &rej, name)
		reason, ok := wire.ParseRefusal(rej.PrivateData)
		require.True(t, ok, name)
		require.Equal(t, c.reason, reason, name)
	}
	// The answer is out before the request is gone.
	require.Eventually(t, func() bool { return len(n.dev.Resources()) == before }, wait, time.Millisecond)
	require.Equal(t, refused, n.Stats().Refused)
	require.Empty(t, n.accepted)
}

// TestGarbageOnTheWire: bytes that are not even MPA do no harm to the listener.
func TestGarbageOnTheWire(t *testing.T) {
	p := newPair(t, nodeConfig{}, nodeConfig{})
	env.UserSpace(t, "what is not even MPA is the kernel's to refuse")
	for _, s := range []string{"", "GET / HTTP/1.1\r\n\r\n", string(make([]byte, 5000))} {
		c, err := net.Dial("tcp", p.b.Addr().String())
		require.NoError(t, err)
		io.WriteString(c, s)
		c.Close()
	}
	p.b.expect(p.ba, "still here", p.a.send(p.ab, "still here", 10))
}

// TestBadPackets: a peer that breaks the protocol ends its own connection, with
// a fault that says so, and nothing else.
func TestBadPackets(t *testing.T) {
	n := newNode(t, nodeConfig{Config: Config{MaxMessage: 1 << 20}})
	addr := n.listen()
	ok := wire.Packet{Epoch: rawEpoch}
	rec := func(typ wire.Type, head int, payload uint64) wire.Record {
		return wire.Record{Type: typ, Head: uint32(head), Payload: payload}
	}
	rts := func(segs uint16, payload uint64) wire.Record {
		return wire.Record{Type: wire.RndvRTS, Segments: segs, Payload: payload}
	}
	for name, packets := range map[string][][]byte{
		"empty":              {{}},
		"short":              {{1, 2, 3}},
		"epoch":              {rawPacket(wire.Packet{Epoch: rawEpoch + 1})},
		"credits":            {rawPacket(wire.Packet{Epoch: rawEpoch, Credits: 60000})},
		"half a record":      {rawPacket(ok, "12345")},
		"type":               {rawPacket(ok, rec(77, 0, 0))},
		"head":               {rawPacket(ok, rec(wire.Msg, 100, 0), "short")},
		"4 GiB":              {rawPacket(ok, rec(wire.Msg, 4, 4<<30), "head", "payload")},
		"2^63":               {rawPacket(ok, rec(wire.Msg, 4, 1<<63), "head", "payload")},
		"FRAG out of place":  {rawPacket(ok, rec(wire.Frag, 0, 3), "xyz")},
		"FRAG of other size": {rawPacket(ok, rec(wire.Msg, 1, 10), "h", "12"), rawPacket(ok, rec(wire.Frag, 0, 9), "3")},
		"MSG within MSG":     {rawPacket(ok, rec(wire.Msg, 1, 10), "h", "12"), rawPacket(ok, rec(wire.Msg, 1, 0), "h")},
		"DONE of nothing":    {rawPacket(ok, rec(wire.Done, 0, 1))},
		"RTS of other size":  {rawPacket(ok, rts(1, 10), wire.Segment{Addr: 1, Len: 11, RKey: 1})},
		"RTS of 4 GiB":       {rawPacket(ok, rts(1, 4<<30), wire.Segment{Addr: 1, Len: 0, RKey: 1})},
		"CLOSE and more":     {rawPacket(ok, rec(wire.Close, 0, 1), rec(wire.Msg, 0, 0))},
		"after goodbye":      {rawPacket(ok, rec(wire.Goodbye, 0, 0), rec(wire.Msg, 0, 0))},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRawPeer(t)
			_, err := r.connect(addr, rawHello(nil))
			require.NoError(t, err)
			c := get(t, n.accepted)
			for _, p := range packets {
				r.send(p)
			}
			fe := n.violated(t, c)
			require.NotContains(t, fe.Err.Error(), "peer fault")
			require.Equal(t, fe, c.Err())
			require.Equal(t, fe, c.Send(t.Context(), Message{}))
		})
	}
	require.Empty(t, n.messages)
	require.Zero(t, n.Stats().Conns)
}

// TestBadKey: an RTS with a key that reaches nothing ends the connection.
func TestBadKey(t *testing.T) {
	n := newNode(t, nodeConfig{})
	r := newRawPeer(t)
	_, err := r.connect(n.listen(), rawHello(nil))
	require.NoError(t, err)
	c := get(t, n.accepted)
	r.send(rawPacket(wire.Packet{Epoch: rawEpoch}, wire.Record{Type: wire.RndvRTS, Segments: 1, Payload: 5000},
		wire.Segment{Addr: 4096, Len: 5000, RKey: 0x12345678}))
	f := get(t, n.faults)
	require.Same(t, c, f.c)
	var fe *FaultError
	require.ErrorAs(t, f.err, &fe)
	kinds := []FaultKind{FaultPeer}
	if !n.dev.Caps().FlushCompletes { // the READ may be forgotten, and then nothing says what was wrong
		kinds = append(kinds, FaultPath)
	}
	require.Contains(t, kinds, fe.Kind, "%v", f.err)
	get(t, c.Done())
}

// TestOverrun: a peer that sends without credits ends its own connection, and
// not that of another one on the same shared receive queue.
func TestOverrun(t *testing.T) {
	p := newPair(t, nodeConfig{}, nodeConfig{Config: Config{Admit: func(c *Conn, head []byte, _ int64) bool { return string(head) != "no" }}})
	r := newRawPeer(t)
	_, err := r.connect(p.b.Addr().String(), rawHello(nil))
	require.NoError(t, err)
	c := get(t, p.b.accepted)
	for range 18 { // parked, so that no credit comes back
		if c.Err() == nil {
			r.send(rawPacket(wire.Packet{Epoch: rawEpoch}, wire.Record{Type: wire.Msg, Head: 2}, "no"))
		}
	}
	f := get(t, p.b.faults)
	require.Same(t, c, f.c)
	require.ErrorIs(t, f.err, ErrProtocol)
	for range 100 {
		p.b.expect(p.ba, "still here", p.a.send(p.ab, "still here", 10))
	}
}

// TestPeerGone: a peer that goes without a goodbye, whichever way and in the
// middle of a message, is a fault of the path.
func TestPeerGone(t *testing.T) {
	n := newNode(t, nodeConfig{})
	addr := n.listen()
	for name, leave := range map[string]func(*rawPeer) error{
		"half-close": func(r *rawPeer) error { return r.qp.Disconnect() },
		"error":      func(r *rawPeer) error { return r.qp.SetError() },
		"destroyed":  func(r *rawPeer) error { _, err := r.qp.Close(); return err },
	} {
		t.Run(name, func(t *testing.T) {
			r := newRawPeer(t)
			_, err := r.connect(addr, rawHello(nil))
			require.NoError(t, err)
			c := get(t, n.accepted)
			r.send(rawPacket(wire.Packet{Epoch: rawEpoch}, wire.Record{Type: wire.Msg, Head: 1}, "h"))
			r.send(rawPacket(wire.Packet{Epoch: rawEpoch}, wire.Record{Type: wire.Msg, Payload: 5000}, "part of it"))
			n.expect(c, "h", nil)
			require.NoError(t, leave(r))
			f := get(t, n.faults)
			require.Same(t, c, f.c)
			var fe *FaultError
			require.ErrorAs(t, f.err, &fe)
			require.Equal(t, FaultPath, fe.Kind, "%v", f.err)
			get(t, c.Done())
		})
	}
}

// TestSilence: a dialer that never sends its first frame is cut at the deadline.
func TestSilence(t *testing.T) {
	n := newNode(t, nodeConfig{Config: Config{HandshakeTimeout: 500 * time.Millisecond}})
	r := newRawPeer(t)
	_, err := r.connect(n.listen(), rawHello(nil))
	require.NoError(t, err)
	c := get(t, n.accepted)
	require.NoError(t, c.Send(t.Context(), Message{Head: []byte("waits for the first frame")}))
	f := get(t, n.faults)
	require.Same(t, c, f.c)
	require.ErrorIs(t, f.err, ErrTimeout)
	get(t, c.Done())
}

func TestDialErrors(t *testing.T) {
	n := newNode(t, nodeConfig{})
	refuse := true
	m := newNode(t, nodeConfig{Config: Config{OnAccept: func(*Conn) bool { return !refuse }, RecvBuffers: 16}})
	addr := m.listen()

	_, err := n.Dial(t.Context(), addr)
	var re *RefusedError
	require.ErrorAs(t, err, &re)
	require.ErrorIs(t, err, ErrRefused)
	require.Equal(t, "denied", re.Reason)

	// The answer is out before what it was refused for is counted off.
	require.Eventually(t, func() bool { return m.Stats().Conns == 0 }, wait, time.Millisecond)
	refuse = false
	c, err := n.Dial(t.Context(), addr)
	require.NoError(t, err)
	_, err = n.Dial(t.Context(), addr)
	require.ErrorAs(t, err, &re)
	require.Equal(t, "busy", re.Reason)
	_, err = m.Dial(t.Context(), addr)
	require.ErrorIs(t, err, verbs.ErrLimit)
	c.Close()
	get(t, c.Done())

	l, err := net.Listen("tcp", env.ListenAddr())
	require.NoError(t, err)
	nobody := l.Addr().String()
	if env.Device() == "" { // Linux 6.1's siw brings the kernel down over what is no MPA reply
		dialStrangers(t, n, l)
	}
	require.NoError(t, l.Close())
	_, err = n.Dial(t.Context(), nobody)
	require.ErrorIs(t, err, ErrRefused)
	_, err = n.Dial(t.Context(), "no port")
	require.Error(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = n.Dial(ctx, addr)
	require.ErrorIs(t, err, context.Canceled)
	require.Eventually(t, func() bool { return n.Stats().Conns == 0 }, wait, time.Millisecond)

	require.NoError(t, n.Endpoint.Close())
	_, err = n.Dial(t.Context(), addr)
	require.ErrorIs(t, err, ErrClosed)
	require.ErrorIs(t, n.Listen(t.Context(), env.ListenAddr()), ErrClosed)
	require.NoError(t, n.Endpoint.Close())
}

// TestBlockedSend: a Send that waits for credits ends with its context, without
// having sent, or with the connection.
func TestBlockedSend(t *testing.T) {
	n := newNode(t, nodeConfig{Config: Config{SendDepth: 8}})
	r := newRawPeer(t)
	_, err := r.connect(n.listen(), rawHello(func(h *wire.Hello) { h.Credits = 8 }))
	require.NoError(t, err)
	c := get(t, n.accepted)
	r.send(rawPacket(wire.Packet{Epoch: rawEpoch}))

	// The peer gives no credit back: the queue fills up.
	full := func(l *buffer.List) error {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		defer cancel()
		return c.Send(ctx, Message{Payload: l})
	}
	l, _ := n.list(10_000) // too large to be coalesced or copied
	sent := 0
	for ; ; sent++ {
		more := l.Share()
		if err := full(more); err != nil {
			require.ErrorIs(t, err, context.DeadlineExceeded)
			more.Release()
			break
		}
	}
	require.Equal(t, 8-dataReserve+n.cfg.SendDepth-controlSlots, sent)
	ok, err := c.TrySend(Message{Payload: l})
	require.NoError(t, err)
	require.False(t, ok)
	posted := n.a.Account().Posted
	waits := c.Stats().SendWaits
	done := make(chan error)
	go func() { done <- c.Send(context.Background(), Message{Payload: l}) }()
	require.Eventually(t, func() bool { return c.Stats().SendWaits == waits+1 }, wait, time.Millisecond)
	require.NoError(t, c.Close())
	require.ErrorIs(t, <-done, ErrClosed)
	l.Release() // it is ours still
	get(t, c.Done())
	require.Less(t, n.a.Account().Posted, posted)
	require.Zero(t, n.a.Account().Held)
	require.ErrorIs(t, get(t, n.faults).err, ErrClosed)
}

// dialStrangers dials those who do not speak MPA.
func dialStrangers(t *testing.T, n *node, l net.Listener) {
	short, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err := n.Dial(short, l.Addr().String()) // silent
	require.ErrorIs(t, err, context.DeadlineExceeded)
	go func() { // ends with the listener
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			io.WriteString(c, "HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
			c.Close()
		}
	}()
	_, err = n.Dial(t.Context(), l.Addr().String())
	require.Error(t, err)
}

// TestRendezvousTimeout: a peer that never fetches is at fault, unless it has
// said that it waits.
func TestRendezvousTimeout(t *testing.T) {
	n := newNode(t, nodeConfig{Config: Config{RendezvousTimeout: 30 * time.Millisecond, EagerMax: -1}})
	needKeys(t, n.dev)
	r := newRawPeer(t)
	_, err := r.connect(n.listen(), rawHello(nil))
	require.NoError(t, err)
	c := get(t, n.accepted)
	r.send(rawPacket(wire.Packet{Epoch: rawEpoch, Parked: true}))
	require.Eventually(t, func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.rndv.parked && c.open
	}, wait, time.Millisecond)
	n.send(c, "fetch me", 9000)
	c.mu.Lock()
	c.rndv.progress = time.Now().Add(-time.Hour)
	c.mu.Unlock()
	c.rndvTimeout() // as the timer does
	require.NoError(t, c.Err(), "it waits")
	r.send(rawPacket(wire.Packet{Epoch: rawEpoch}))
	f := get(t, n.faults)
	require.ErrorIs(t, f.err, ErrTimeout)
	get(t, c.Done())
	require.Zero(t, n.a.Stats().Grants)
}

// TestKill cuts connections at any moment under load, from either side: each
// is told once, and nothing is left. The endpoints go on.
func TestKill(t *testing.T) {
	each(t, func(t *testing.T, cfg nodeConfig) {
		cfg.OnMessage = func(c *Conn, m Message) {
			if m.Payload != nil {
				c.TrySend(Message{Head: m.Head}) // refused is fine
				m.Payload.Release()
			}
		}
		b := newNode(t, cfg)
		a := newNode(t, cfg)
		addr := b.listen()
		rounds := 10
		if testing.Short() {
			rounds = 4
		}
		for i := range rounds {
			c, err := a.Dial(t.Context(), addr)
			require.NoError(t, err)
			peer := get(t, b.accepted)
			stop := make(chan struct{})
			for range 2 {
				go func() {
					defer func() { stop <- struct{}{} }()
					for {
						l, _ := a.list(100, 3000, 40_000)
						if err := c.Send(context.Background(), Message{Head: []byte("x"), Payload: l}); err != nil {
							l.Release()
							return
						}
					}
				}()
			}
			require.Eventually(t, func() bool { return c.Stats().MessagesSent >= uint64(3*i) || c.Err() != nil }, wait, 100*time.Microsecond)
			if i%2 == 0 {
				c.Close()
			} else {
				peer.Close()
			}
			<-stop
			<-stop
			require.Same(t, c, get(t, a.faults).c)
			require.Same(t, peer, get(t, b.faults).c)
			get(t, c.Done())
			get(t, peer.Done())
		}
		require.Empty(t, a.faults)
		require.Empty(t, b.faults)
		require.Zero(t, a.Stats().Conns)
		require.Zero(t, b.Stats().Conns)
		require.Zero(t, a.a.Stats().Grants)
		for _, n := range []*node{a, b} { // no shared receive has gone astray
			for _, l := range n.lanes {
				if l.rq != nil {
					require.Zero(t, l.want)
					require.Equal(t, l.owned, l.rq.posted())
				}
			}
		}
	})
}

func TestFaultStrings(t *testing.T) {
	err := &FaultError{Kind: FaultPeer, Remote: "1.2.3.4:5", Err: errors.New("x")}
	require.Equal(t, "connection to 1.2.3.4:5: peer fault: x", err.Error())
	require.Equal(t, "9", FaultKind(9).String())
	require.Equal(t, FaultLocal, classify(verbs.StatusLocProtErr))
	require.Equal(t, FaultPeer, classify(verbs.StatusRemAccessErr))
	require.Equal(t, FaultPath, classify(verbs.StatusRetryExcErr))
}
