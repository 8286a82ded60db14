package conn

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/argonaut-rdma/argonaut/buffer"
	"github.com/argonaut-rdma/argonaut/conn/internal/wire"
	"github.com/argonaut-rdma/argonaut/test/env"
)

// exhaust takes all memory of the node's arena.
func (n *node) exhaust() (release func()) {
	var all []buffer.RDMABuffer
	for _, size := range []int{1 << 20, 128 << 10, 16 << 10, 4 << 10} {
		for b, ok := n.a.TryGet(size, n.recvOwner); ok; b, ok = n.a.TryGet(size, n.recvOwner) {
			all = append(all, b)
		}
	}
	return func() {
		for _, b := range all {
			b.Release()
		}
	}
}

// receives is how many receive buffers the endpoint has posted.
func (n *node) receives() int { return n.Endpoint.Stats().RecvPosted }

// A connection that has been accepted has two receive buffers, through which
// whatever is sent comes all the same, both ways at once; Promote gives it the
// rest.
func TestStagedCredits(t *testing.T) {
	each(t, func(t *testing.T, cfg nodeConfig) {
		theirs := cfg
		theirs.StagedCredits = 2
		p := newPair(t, cfg, theirs)
		full := p.b.cfg.Credits
		require.EqualValues(t, 2, p.ab.peer.Credits)
		require.EqualValues(t, full, p.ab.peer.Most)
		require.EqualValues(t, full, p.ba.peer.Credits, "the dialer gives all")
		require.LessOrEqual(t, p.b.receives(), 2)
		exchange := func(round string) {
			const n = 60
			sizes := []int{0, 100, 3000, 60_000, 10}
			var both sync.WaitGroup
			for _, d := range []struct {
				from, to *node
				out, in  *Conn
			}{{p.a, p.b, p.ab, p.ba}, {p.b, p.a, p.ba, p.ab}} {
				sent := make(chan []byte, n)
				both.Go(func() {
					for i := range n {
						var size []int
						if s := sizes[i%len(sizes)]; s > 0 {
							size = []int{s}
						}
						sent <- d.from.send(d.out, fmt.Sprint(round, i), size...)
					}
				})
				both.Go(func() {
					for i := range n {
						d.to.expect(d.in, fmt.Sprint(round, i), <-sent)
					}
				})
			}
			both.Wait()
		}
		exchange("staged")
		require.True(t, p.ba.staged.Load())
		require.LessOrEqual(t, p.b.receives(), 2)
		p.ba.Promote()
		p.ba.Promote()
		require.Eventually(t, func() bool { return p.b.receives() == full }, wait, time.Millisecond)
		require.Eventually(t, func() bool {
			p.ab.mu.Lock()
			defer p.ab.mu.Unlock()
			return !p.ab.rationed
		}, wait, time.Millisecond, "the dialer knows, though nobody sends")
		exchange("full")
		require.Eventually(t, func() bool { return p.b.receives() == full }, wait, time.Millisecond)
		require.Zero(t, p.b.Endpoint.Stats().Faults)
	})
}

// A dialer that only listens gives credits back, and gets back what that takes.
func TestStagedCreditsOneWay(t *testing.T) {
	p := newPair(t, nodeConfig{}, nodeConfig{Config: Config{StagedCredits: 2}})
	for i := range 200 {
		p.a.expect(p.ab, fmt.Sprint(i), p.b.send(p.ba, fmt.Sprint(i), 5000))
	}
	for i := range 200 {
		p.b.expect(p.ba, fmt.Sprint(i), p.a.send(p.ab, fmt.Sprint(i), 5000))
	}
	// Nobody goes on answering the other.
	require.Eventually(t, func() bool {
		before := p.ab.Stats().PacketsSent + p.ba.Stats().PacketsSent
		time.Sleep(20 * time.Millisecond) // nothing to wait for: it is to be seen that nothing comes
		return p.ab.Stats().PacketsSent+p.ba.Stats().PacketsSent == before
	}, wait, time.Millisecond)
	require.NoError(t, p.ab.Err())
	require.NoError(t, p.ba.Err())
}

// What peers cost that have not been promoted: two receive buffers each, shared
// or not, and what is promoted is what it was.
func TestHalfOpenCostsTwoReceives(t *testing.T) {
	peers := 100
	if env.Device() != "" && testing.Short() {
		peers = 20 // under emulation
	}
	for name, noSRQ := range map[string]bool{"shared": false, "own queues": true} {
		t.Run(name, func(t *testing.T) {
			small := Config{SendDepth: 8, OpDepth: 4, RecvSize: 4 << 10, noSRQ: noSRQ, RecvBuffers: -1}
			staged := small
			staged.StagedCredits = 2
			b := newNode(t, nodeConfig{Config: staged})
			a := newNode(t, nodeConfig{Config: small})
			addr := b.listen()
			var dialed, accepted []*Conn
			for range peers {
				c, err := a.Dial(t.Context(), addr)
				require.NoError(t, err)
				dialed = append(dialed, c)
				accepted = append(accepted, get(t, b.accepted))
			}
			for i, c := range dialed { // they talk, too
				b.expect(accepted[i], "hello", a.send(c, "hello"))
			}
			require.Eventually(t, func() bool { return b.receives() == 2*peers }, wait, time.Millisecond)
			require.LessOrEqual(t, b.a.Account().Posted, int64(peers*(2*4<<10+8*txSize)))
			for _, c := range accepted[:peers/2] {
				c.Promote()
			}
			full := peers/2*b.cfg.Credits + peers/2*2
			require.Eventually(t, func() bool { return b.receives() == full }, wait, time.Millisecond)
			for _, c := range dialed[peers/2:] {
				c.Close()
				<-c.Done()
			}
			for _, c := range accepted[peers/2:] {
				<-c.Done()
			}
			for i, c := range dialed[:peers/2] {
				b.expect(accepted[i], "still", a.send(c, "still", 10_000))
			}
		})
	}
}

// Promote may come before the dialer's first packet, and while the arena has no
// memory.
func TestPromoteAtAnyTime(t *testing.T) {
	t.Run("in OnAccept", func(t *testing.T) {
		accepted := make(chan *Conn, 1)
		p := newPair(t, nodeConfig{}, nodeConfig{Config: Config{StagedCredits: 2, OnAccept: func(c *Conn) bool {
			c.Promote()
			accepted <- c
			return true
		}}})
		ba := get(t, accepted)
		require.Eventually(t, func() bool { return p.b.receives() == 16 }, wait, time.Millisecond)
		p.b.expect(ba, "x", p.a.send(p.ab, "x", 100_000))
	})
	t.Run("without memory", func(t *testing.T) {
		p := newPair(t, nodeConfig{}, nodeConfig{Config: Config{StagedCredits: 2}})
		p.b.expect(p.ba, "first", p.a.send(p.ab, "first"))
		release := p.b.exhaust()
		p.ba.Promote()
		require.Eventually(t, func() bool { return p.b.Endpoint.Stats().MemoryWaits == 14 }, wait, time.Millisecond)
		require.Equal(t, 2, p.b.receives())
		release()
		require.Eventually(t, func() bool { return p.b.receives() == 16 }, wait, time.Millisecond)
	})
}

// Who waits for memory of what Promote gives goes on giving back the few credits
// that there are: the peer may have used them for packets without data.
func TestPromoteWithoutMemoryGivesBack(t *testing.T) {
	var closed atomic.Bool
	p := newPair(t, nodeConfig{Config: Config{Admit: func(*Conn, []byte, int64) bool { return !closed.Load() }}},
		nodeConfig{Config: Config{StagedCredits: 2}})
	p.b.expect(p.ba, "first", p.a.send(p.ab, "first"))
	release := p.b.exhaust()
	p.ba.Promote()
	require.Eventually(t, func() bool { return p.b.Endpoint.Stats().MemoryWaits == 14 }, wait, time.Millisecond)
	packets := p.ba.Stats().PacketsReceived
	came := func(n uint64) {
		t.Helper()
		require.Eventually(t, func() bool { return p.ba.Stats().PacketsReceived == packets+n }, wait, time.Millisecond)
	}
	closed.Store(true)
	p.b.send(p.ba, "parked")
	came(1) // it says so
	closed.Store(false)
	p.ab.Resume()
	p.a.expect(p.ab, "parked", nil)
	came(2) // and that it is over
	p.b.expect(p.ba, "second", p.a.send(p.ab, "second"))
	release()
	require.Eventually(t, func() bool { return p.b.receives() == 16 }, wait, time.Millisecond)
	require.Eventually(t, func() bool { return !p.ba.staged.Load() }, wait, time.Millisecond)
	p.b.expect(p.ba, "third", p.a.send(p.ab, "third", 5000))
}

// A request that holds credits back is refused, as both sides would wait for the
// other's.
func TestDialerGivesAllCredits(t *testing.T) {
	n := newNode(t, nodeConfig{})
	r := newRawPeer(t)
	_, err := r.connect(n.listen(), rawHello(func(h *wire.Hello) { h.Credits, h.Most = 2, 16 }))
	require.ErrorIs(t, err, ErrRefused)
}

// Config.StagedCredits has a range.
func TestStagedCreditsRange(t *testing.T) {
	n := newNode(t, nodeConfig{})
	for _, v := range []int{-1, 1, 17} {
		_, err := NewEndpoint(n.dev, n.a, Config{Credits: 16, StagedCredits: v})
		require.ErrorContains(t, err, "StagedCredits")
	}
}
