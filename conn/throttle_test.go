package conn

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/argonaut-rdma/argonaut/buffer"
	"github.com/argonaut-rdma/argonaut/conn/internal/wire"
)

// TestAdmit: messages that are not admitted wait, with all behind them, whatever
// way they came, and the sender's credits run out; Resume lets them through in
// order.
func TestAdmit(t *testing.T) {
	each(t, func(t *testing.T, cfg nodeConfig) {
		var open atomic.Bool
		var asked atomic.Int64
		theirs := cfg
		theirs.Admit = func(c *Conn, head []byte, payload int64) bool {
			asked.Add(1)
			return open.Load() || string(head) == "first"
		}
		p := newPair(t, cfg, theirs)
		p.b.expect(p.ba, "first", p.a.send(p.ab, "first", 100))
		const n = 60
		sizes := []int{100, 200_000, 5000}
		sent := make(chan []byte, n)
		go func() {
			for i := range n {
				sent <- p.a.send(p.ab, fmt.Sprint(i), sizes[i%len(sizes)])
			}
		}()
		require.Eventually(t, func() bool { return p.ba.Stats().Parks == 1 && p.ab.Stats().SendWaits > 0 }, wait, time.Millisecond)
		require.Empty(t, p.b.messages)
		p.ba.Resume() // asked again, and refused again
		require.Eventually(t, func() bool { return asked.Load() == 3 }, wait, time.Millisecond)
		require.Empty(t, p.b.messages)
		open.Store(true)
		p.ba.Resume()
		for i := range n {
			p.b.expect(p.ba, fmt.Sprint(i), <-sent)
		}
		require.EqualValues(t, n+3, asked.Load(), "admitted messages are asked about once")
		waits := p.a.Latencies().SendWait
		require.Equal(t, p.ab.Stats().SendWaits, waits.Count)
		require.Positive(t, waits.Sum)
		p.a.expect(p.ab, "back", p.b.send(p.ba, "back", 300_000))
		require.NoError(t, p.ab.Err())
	})
}

// TestParkedDone: that a payload was fetched is heard although the peer's
// messages are parked, alone or behind one of them.
func TestParkedDone(t *testing.T) {
	n := newNode(t, nodeConfig{Config: Config{
		EagerMax: -1, Admit: func(*Conn, []byte, int64) bool { return false },
	}})
	needKeys(t, n.dev)
	r := newRawPeer(t)
	_, err := r.connect(n.listen(), rawHello(nil))
	require.NoError(t, err)
	c := get(t, n.accepted)
	epoch := wire.Packet{Epoch: rawEpoch}
	r.send(rawPacket(epoch, wire.Record{Type: wire.Msg, Head: 1}, "h"))
	require.Eventually(t, func() bool { return c.Stats().Parks == 1 }, wait, time.Millisecond)
	for i := range 3 {
		n.send(c, fmt.Sprint(i), 9000)
	}
	require.Equal(t, 3, n.a.Stats().Grants)
	r.send(rawPacket(epoch, wire.Record{Type: wire.Done, Payload: 2}))
	require.Eventually(t, func() bool { return n.a.Stats().Grants == 1 }, wait, time.Millisecond)
	r.send(rawPacket(epoch, wire.Record{Type: wire.Msg, Head: 1}, "h", wire.Record{Type: wire.Done, Payload: 3}))
	require.Eventually(t, func() bool { return n.a.Stats().Grants == 0 }, wait, time.Millisecond)
	require.NoError(t, c.Err())
	require.EqualValues(t, 3, c.Stats().RendezvousSent)
}

// TestParkedClose: a connection that ends while messages are parked gives
// everything back.
func TestParkedClose(t *testing.T) {
	each(t, func(t *testing.T, cfg nodeConfig) {
		theirs := cfg
		theirs.Admit = func(*Conn, []byte, int64) bool { return false }
		p := newPair(t, cfg, theirs)
		for i := range 3 {
			p.a.send(p.ab, fmt.Sprint(i), 3000)
		}
		require.Eventually(t, func() bool { return p.ba.Stats().Parks > 0 }, wait, time.Millisecond)
		p.ab.Close()
		get(t, p.b.faults)
		get(t, p.ba.Done())
		require.Empty(t, p.b.messages)
	})
}

// TestMemory: a receiver whose arena is used up holds the sender back, and goes
// on when memory comes back.
func TestMemory(t *testing.T) {
	each(t, func(t *testing.T, cfg nodeConfig) {
		theirs := cfg
		theirs.budget = 4 << 20
		kept := make(chan *buffer.List, 1000)
		theirs.OnMessage = func(_ *Conn, m Message) { kept <- m.Payload }
		p := newPair(t, cfg, theirs)
		const n, size = 120, 100_000
		sent := make(chan []byte, n)
		go func() {
			for i := range n {
				sent <- p.a.send(p.ab, fmt.Sprint(i), size)
			}
		}()
		require.Eventually(t, func() bool { return p.b.Stats().MemoryWaits > 0 && p.ab.Stats().SendWaits > 0 }, wait, time.Millisecond)
		require.NoError(t, p.ab.Err())
		for range n {
			l := get(t, kept)
			require.Equal(t, string(<-sent), string(bytesOf(l)))
			l.Release()
		}
		require.NoError(t, p.ab.Err())
	})
}

// TestMemoryClose: closing while a receive waits for memory ends the wait.
func TestMemoryClose(t *testing.T) {
	each(t, func(t *testing.T, cfg nodeConfig) {
		theirs := cfg
		theirs.budget = 4 << 20
		kept := make(chan *buffer.List, 1000)
		theirs.OnMessage = func(_ *Conn, m Message) { kept <- m.Payload }
		p := newPair(t, cfg, theirs)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			for {
				l, _ := p.a.list(100_000)
				if p.ab.Send(ctx, Message{Payload: l}) != nil {
					l.Release()
					return
				}
			}
		}()
		require.Eventually(t, func() bool { return p.b.Stats().MemoryWaits > 0 && p.ab.Stats().SendWaits > 0 }, wait, time.Millisecond)
		require.NoError(t, p.b.Endpoint.Close())
		cancel()
		<-done
		for len(kept) > 0 {
			(<-kept).Release()
		}
	})
}

// TestWritable: TrySend that found no room is told when there is.
func TestWritable(t *testing.T) {
	each(t, func(t *testing.T, cfg nodeConfig) {
		writable := make(chan struct{}, 1)
		ours := cfg
		ours.SendDepth = 8
		ours.OnWritable = func(*Conn) {
			select {
			case writable <- struct{}{}:
			default:
			}
		}
		p := newPair(t, ours, cfg)
		waited := 0
		var sent [][]byte
		for range 500 {
			l, data := p.a.list(30_000)
			for {
				ok, err := p.ab.TrySend(Message{Head: []byte("x"), Payload: l})
				require.NoError(t, err)
				if ok {
					break
				}
				waited++
				get(t, writable)
			}
			sent = append(sent, data)
			if len(sent) == 20 {
				for _, data := range sent {
					p.b.expect(p.ba, "x", data)
				}
				sent = sent[:0]
			}
		}
		require.NotZero(t, waited)
	})
}

// TestNoAllocations: eager messages and their round trips allocate nothing on
// either side in steady state. A rendezvous does: the keys of its grants.
func TestNoAllocations(t *testing.T) {
	if checkedBuild {
		t.Skip("checked builds allocate")
	}
	for name, c := range map[string]struct {
		cfg  Config
		size int
	}{
		"64 B":      {Config{}, 64},
		"copied":    {Config{}, 1000},
		"eager":     {Config{}, 10_000},
		"fragments": {Config{Rendezvous: -1}, 100_000},
	} {
		t.Run(name, func(t *testing.T) {
			back := make(chan struct{}, 1)
			echo := nodeConfig{Config: c.cfg}
			echo.OnMessage = func(c *Conn, m Message) {
				if ok, err := c.TrySend(Message{Head: m.Head, Payload: m.Payload}); !ok || err != nil {
					t.Error("no room for a reply", err)
				}
			}
			ours := nodeConfig{Config: c.cfg}
			ours.OnMessage = func(_ *Conn, m Message) {
				m.Payload.Release()
				back <- struct{}{}
			}
			p := newPair(t, ours, echo)
			l, _ := p.a.list(c.size)
			defer l.Release()
			var head [64]byte
			ctx := context.Background()
			round := func() {
				if err := p.ab.Send(ctx, Message{Head: head[:], Payload: l.Share()}); err != nil {
					panic(err)
				}
				<-back
			}
			for range 200 {
				round()
			}
			require.Zero(t, testing.AllocsPerRun(500, round))
		})
	}
}

// A shutdown that does not end says what it waits for.
func TestShutdownNamesTheParkedPeer(t *testing.T) {
	cfg := nodeConfig{Config: Config{EagerMax: -1}}
	theirs := cfg
	theirs.Admit = func(*Conn, []byte, int64) bool { return false }
	p := newPair(t, cfg, theirs)
	needKeys(t, p.a.dev)
	p.a.send(p.ab, "big", 300_000)
	require.Eventually(t, func() bool { return p.ba.Stats().Parks == 1 }, wait, time.Millisecond)
	require.Eventually(t, func() bool {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		return strings.Contains(p.ab.unfinished(ctx.Err()).Error(), "the peer has had no memory")
	}, wait, time.Millisecond)
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	err := p.ab.Shutdown(ctx)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorContains(t, err, p.ab.RemoteAddr().String())
	require.ErrorContains(t, err, "payloads not fetched: 1 (for ")
}

// A connection that waits for memory for long is in the log.
func TestLongWaitForMemoryIsLogged(t *testing.T) {
	log := new(logBuffer)
	theirs := nodeConfig{budget: 4 << 20, Config: Config{EagerMax: -1, MaxMessage: 1 << 20, Logger: slog.New(slog.NewTextHandler(log, nil))}}
	p := newPair(t, nodeConfig{Config: Config{EagerMax: -1}}, theirs)
	needKeys(t, p.a.dev)
	var taken []buffer.RDMABuffer
	owner := p.b.a.Owner("hog", 0)
	for {
		b, ok := p.b.a.TryGet(64<<10, owner)
		if !ok {
			break
		}
		taken = append(taken, b)
	}
	data := p.a.send(p.ab, "big", 300_000)
	require.Eventually(t, func() bool { return strings.Contains(log.String(), "no arena memory") }, wait, time.Millisecond)
	for _, b := range taken {
		b.Release()
	}
	p.b.expect(p.ba, "big", data)
	require.Eventually(t, func() bool { return strings.Contains(log.String(), "has stood still") }, wait, time.Millisecond)
}

// fullRing is a connection to a peer that takes one rendezvous at a time and has
// not fetched that, and has room for five eager messages on the path and four in
// our slots. Payloads of 10,000 bytes are sent eagerly, larger ones are fetched.
func fullRing(t *testing.T, cfg Config) (*node, *rawPeer, *Conn) {
	cfg.EagerMax, cfg.SendDepth = 16<<10, controlSlots+4
	n := newNode(t, nodeConfig{Config: cfg})
	needKeys(t, n.dev)
	r := newRawPeer(t)
	_, err := r.connect(n.listen(), rawHello(func(h *wire.Hello) { h.Rendezvous, h.Credits = 1, 8 }))
	require.NoError(t, err)
	c := get(t, n.accepted)
	r.send(rawPacket(wire.Packet{Epoch: rawEpoch}))
	require.Eventually(t, func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.open
	}, wait, time.Millisecond)
	n.send(c, "first", 20_000)
	return n, r, c
}

// TestSendBehindRendezvous: who waits behind a Send that waits for the peer to
// fetch does not wait for the same, once that one has given up or been accepted.
func TestSendBehindRendezvous(t *testing.T) {
	n, r, c := fullRing(t, Config{})
	ctx, cancel := context.WithTimeout(t.Context(), wait)
	defer cancel()
	l, _ := n.list(20_000)
	waits := uint64(0)
	send := func(ctx context.Context, m Message) chan error {
		waits++
		done := make(chan error, 1)
		go func() { done <- c.Send(ctx, m) }() // ends with ctx
		require.Eventually(t, func() bool { return c.Stats().SendWaits == waits }, wait, time.Millisecond)
		return done
	}

	patience, giveUp := context.WithCancel(ctx)
	ahead, behind := send(patience, Message{Payload: l}), send(ctx, Message{Head: []byte("behind")})
	giveUp()
	require.ErrorIs(t, get(t, ahead), context.Canceled)
	require.NoError(t, get(t, behind))

	ahead, behind = send(ctx, Message{Payload: l}), send(ctx, Message{Head: []byte("behind")})
	r.send(rawPacket(wire.Packet{Epoch: rawEpoch}, wire.Record{Type: wire.Done, Payload: 1}))
	require.NoError(t, get(t, ahead))
	require.NoError(t, get(t, behind))
	c.mu.Lock()
	defer c.mu.Unlock()
	require.True(t, c.rndv.full())
}

// TestWritableForEither: OnWritable is due when one of those whom TrySend has
// refused has something to try again for, though another has not.
func TestWritableForEither(t *testing.T) {
	writable := make(chan struct{}, 100)
	n, r, c := fullRing(t, Config{OnWritable: func(*Conn) { writable <- struct{}{} }})
	for range 9 {
		n.send(c, "", 10_000)
	}
	for _, size := range []int{10_000, 20_000} {
		l, _ := n.list(size)
		defer l.Release()
		ok, err := c.TrySend(Message{Payload: l})
		require.NoError(t, err)
		require.False(t, ok)
	}
	require.Empty(t, writable)
	r.send(rawPacket(wire.Packet{Epoch: rawEpoch, Credits: 6}))
	get(t, writable)
	c.mu.Lock()
	defer c.mu.Unlock()
	require.True(t, c.rndv.full())
}
