package conn

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/argonaut-rdma/argonaut/buffer"
	"github.com/argonaut-rdma/argonaut/test/env"
	"github.com/argonaut-rdma/argonaut/verbs"
	"github.com/argonaut-rdma/argonaut/verbs/driver"
	"github.com/argonaut-rdma/argonaut/verbs/verbstest"
)

// What holds a connection up, a device or a callback, holds its Shutdown up for a
// moment only; the error says so, and Done when it is over.
func TestConnShutdownIsBounded(t *testing.T) {
	for _, who := range []string{"device", "callback"} {
		t.Run(who, func(t *testing.T) {
			stuck, release := make(chan struct{}), make(chan struct{})
			cfg := nodeConfig{Config: Config{DrainTimeout: 50 * time.Millisecond}}
			if who == "device" {
				cfg.device = openFaulty(t, &verbstest.Script{Call: func(call verbstest.Call) verbstest.Fault {
					if call.Op != verbstest.CallDestroyQP || call.N > 0 {
						return verbstest.Fault{}
					}
					close(stuck)
					return verbstest.Fault{Wait: release}
				}})
			} else {
				cfg.OnMessage = func(*Conn, Message) {
					close(stuck)
					<-release
				}
			}
			p := newPair(t, nodeConfig{}, cfg)
			if who == "callback" {
				p.a.send(p.ab, "x")
				get(t, stuck)
			}
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			over := make(chan error, 1)
			go func() { over <- p.ba.Shutdown(ctx) }() // ends by itself
			err := get(t, over)
			require.ErrorIs(t, err, context.Canceled)
			require.ErrorIs(t, err, ErrNotDestroyed)
			require.ErrorContains(t, err, p.ab.LocalAddr().String())
			require.ErrorIs(t, p.b.Endpoint.Close(), ErrNotDestroyed)
			get(t, stuck)
			select {
			case <-p.ba.Done():
				t.Fatal("it is not over")
			default:
			}
			close(release)
			get(t, p.ba.Done())
			require.NoError(t, p.b.Endpoint.Shutdown(t.Context()))
		})
	}
}

// fill takes all memory that there is, most of it in buffers of 16 KiB; no chunk is a
// connection's alone. some gives every second buffer back, all the rest.
func (n *node) fill() (some, all func()) {
	var held []buffer.RDMABuffer
	for _, size := range []int{txChunk, 16 << 10} {
		for most := 1 << 20 / txChunk; size < txChunk || most > 0; most-- {
			b, ok := n.a.TryGet(size, buffer.Anonymous)
			if !ok {
				break
			}
			held = append(held, b)
		}
	}
	release := func(step int) {
		for i := 0; i < len(held); i += step {
			if !held[i].IsZero() {
				held[i].Release()
				held[i] = buffer.RDMABuffer{}
			}
		}
	}
	n.t.Cleanup(func() { release(1) })
	return func() { release(2) }, func() { release(1) }
}

// withLargeHeads is a pair whose b takes large heads, and whose a has small receive
// buffers of its own.
func withLargeHeads(t *testing.T, a Config, failWhenFull bool) *pair {
	t.Helper()
	p := newPair(t, nodeConfig{Config: a, failWhenFull: failWhenFull}, nodeConfig{Config: Config{RecvSize: 256 << 10}, budget: 64 << 20})
	require.Greater(t, p.ab.MaxHead(), 200<<10)
	return p
}

// Who waits for memory to send a large head does not hold up those who wait for
// receive buffers.
func TestLargeHeadsDoNotHoldUpReceives(t *testing.T) {
	writable := make(chan struct{}, 100)
	kept := make(chan *buffer.List, 100)
	p := withLargeHeads(t, Config{
		OnWritable: func(*Conn) { writable <- struct{}{} },
		OnMessage:  func(_ *Conn, m Message) { kept <- m.Payload },
	}, false)
	defer func() {
		for len(kept) > 0 {
			(<-kept).Release()
		}
	}()
	some, all := p.a.fill()
	head := Message{Head: make([]byte, 200<<10)}
	for range 3 {
		ok, err := p.ab.TrySend(head)
		require.NoError(t, err)
		require.False(t, ok)
		require.Eventually(t, func() bool { return p.a.a.Stats().Waiting == 1 }, wait, time.Millisecond)
	}
	require.Never(t, func() bool { return p.a.a.Stats().Waiting > 1 }, 20*time.Millisecond, time.Millisecond, "it is asked once")

	p.b.send(p.ba, "x", 10_000)
	payload := get(t, kept)
	require.Eventually(t, func() bool { return p.a.a.Stats().Waiting == 2 }, wait, time.Millisecond, "a receive buffer is waited for, too")
	payload.Release()
	some() // no chunk becomes free
	for range 50 {
		p.b.send(p.ba, "x", 10_000)
		get(t, kept).Release()
	}
	require.Eventually(t, func() bool { return p.a.a.Stats().Waiting == 1 }, wait, time.Millisecond, "who wants a whole chunk")

	all()
	for {
		ok, err := p.ab.TrySend(head)
		require.NoError(t, err)
		if ok {
			break
		}
		get(t, writable)
	}
	p.b.expect(p.ba, string(head.Head), nil)

	// One that has ended says so, also without memory.
	p.a.fill()
	p.ab.Close()
	ok, err := p.ab.TrySend(head)
	require.ErrorIs(t, err, ErrClosed)
	require.False(t, ok)
}

// A smaller head is waited for beside a larger one, and an arena that gives no more
// than it has says so.
func TestSmallerHeadIsAskedFor(t *testing.T) {
	writable := make(chan struct{}, 1000)
	p := withLargeHeads(t, Config{OnWritable: func(*Conn) { writable <- struct{}{} }}, false)
	some, _ := p.a.fill()
	large, small := Message{Head: make([]byte, 200<<10)}, Message{Head: make([]byte, 12<<10)}
	for i, m := range []Message{large, small} {
		ok, err := p.ab.TrySend(m)
		require.NoError(t, err)
		require.False(t, ok)
		require.Eventually(t, func() bool { return p.a.a.Stats().Waiting == i+1 }, wait, time.Millisecond)
	}
	some() // no chunk becomes free
	for {
		get(t, writable)
		ok, err := p.ab.TrySend(small)
		require.NoError(t, err)
		if ok {
			break
		}
	}
	p.b.expect(p.ba, string(small.Head), nil)
}

// Where nobody may wait for memory, TrySend says that there is none, and does not have
// OnWritable called for ever.
func TestHeadInAnArenaThatFails(t *testing.T) {
	writable := make(chan struct{}, 1000)
	p := withLargeHeads(t, Config{OnWritable: func(*Conn) { writable <- struct{}{} }}, true)
	p.a.fill()
	large := Message{Head: make([]byte, 200<<10)}
	for tries := 0; ; tries++ {
		ok, err := p.ab.TrySend(large)
		require.False(t, ok)
		if err != nil {
			require.ErrorIs(t, err, buffer.ErrExhausted)
			break
		}
		require.Less(t, tries, 100)
		get(t, writable) // for this, or for what the connection has done before
	}
	require.ErrorIs(t, p.ab.Send(t.Context(), large), buffer.ErrExhausted)
}

// A Send that waits for memory for its head ends with the connection, as all others.
func TestCloseEndsWaitsForHeads(t *testing.T) {
	p := withLargeHeads(t, Config{}, false)
	p.a.fill()
	sent := make(chan error, 1)
	go func() { sent <- p.ab.Send(context.Background(), Message{Head: make([]byte, 200<<10)}) }() // ends with Close
	require.Eventually(t, func() bool { return p.a.a.Stats().Waiting == 1 }, wait, time.Millisecond)
	p.ab.Close()
	require.Equal(t, ErrClosed, get(t, sent))
}

// A poller whose channel has failed gets no further connection while there is another.
func TestBrokenPollerGetsNoConnections(t *testing.T) {
	p := newPair(t, nodeConfig{Config: Config{Pollers: 2}}, nodeConfig{})
	p.ab.Close()
	get(t, p.ab.Done())
	broken := p.a.pollers[1]
	require.Same(t, p.a.pollers[0], p.ab.p)
	require.NoError(t, broken.ch.Close())
	require.Eventually(t, broken.broken.Load, wait, time.Millisecond)
	for range 3 {
		c, err := p.a.Dial(t.Context(), p.b.Addr().String())
		require.NoError(t, err)
		require.Same(t, p.a.pollers[0], c.p)
	}
}

// That a grant for one transfer was used is not told after OnFault.
func TestUsedIsNotToldAfterFault(t *testing.T) {
	var over, held atomic.Bool
	var kept []driver.WC
	s := &verbstest.Script{Poll: func(wcs []driver.WC) (pass []driver.WC) {
		if over.Load() {
			pass, kept = append(kept, wcs...), nil
			return pass
		}
		for _, wc := range wcs {
			if wc.HasInv {
				kept = append(kept, wc)
				held.Store(true)
			} else {
				pass = append(pass, wc)
			}
		}
		return pass
	}}
	faults := make(chan error, 1)
	p := newPair(t, nodeConfig{}, nodeConfig{device: openFaulty(t, s), Config: Config{OnFault: func(_ *Conn, err error) {
		over.Store(true) // the completion is polled next
		faults <- err
	}}})
	needKeys(t, p.a.dev)
	env.Need(t, p.a.dev.Caps().SendInv, "it has no send with invalidate")
	ctx, cancel := context.WithTimeout(t.Context(), wait)
	defer cancel()
	p.a.send(p.ab, "hello")
	p.b.expect(p.ba, "hello", nil) // it knows what the peer can do
	src, _ := p.b.list(1000)
	used := make(chan Grant, 1)
	gs, err := p.ba.GrantOnce(ctx, src, false, func(g Grant) { used <- g })
	require.NoError(t, err)
	src.Release()
	dst, _ := p.a.list(1000)
	require.NoError(t, p.ab.Read(ctx, dst, gs[0], 0))
	dst.Release()
	require.Eventually(t, held.Load, wait, time.Millisecond)
	p.ba.Close()
	require.ErrorIs(t, get(t, faults), ErrClosed)
	get(t, p.ba.Done())
	require.Empty(t, used)
	require.Zero(t, p.b.a.Stats().Grants)
}

// What NewEndpoint has made when it fails is given up, also where the device does not
// let go of it at once.
func TestNewEndpointGivesUpAll(t *testing.T) {
	a, err := buffer.New(buffer.Config{Budget: 8 << 20, RegionSize: 2 << 20, NoHugePages: true})
	require.NoError(t, err)
	failed := 0
	s := &verbstest.Script{Call: func(c verbstest.Call) verbstest.Fault {
		switch {
		case c.Op == verbstest.CallRegMR && c.N == 3: // the last of the regions
		case c.Op == verbstest.CallDeregister && failed < 5: // more than one try at what there is
			failed++
		default:
			return verbstest.Fault{}
		}
		return verbstest.Fault{Err: errInjected}
	}}
	dev := openFaulty(t, s)
	_, err = NewEndpoint(dev, a, Config{})
	require.ErrorIs(t, err, errInjected)
	require.Equal(t, 5, failed)
	require.False(t, errors.Is(err, verbs.ErrBusy), "%v", err)
	require.Empty(t, dev.Resources())
	require.NoError(t, dev.Close())
	require.NoError(t, a.Close(t.Context()))
}
