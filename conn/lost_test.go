package conn

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/argonaut-rdma/argonaut/test/env"
	"github.com/argonaut-rdma/argonaut/verbs"
	"github.com/argonaut-rdma/argonaut/verbs/driver"
	"github.com/argonaut-rdma/argonaut/verbs/verbstest"
)

// TestDeviceLost: connections of a device that is lost end by a local fault that
// says so, those of its peers by one of the path; nobody is listened to any more,
// Dial says why, and Shutdown gives everything back.
func TestDeviceLost(t *testing.T) {
	f := verbstest.NewFaulty(env.OpenDriver(t), nil)
	p := newPair(t, nodeConfig{device: env.Core(t, f)}, nodeConfig{})
	addr := p.a.listen()
	accepted, err := p.b.Dial(t.Context(), addr)
	require.NoError(t, err)
	dialed := get(t, p.a.accepted)
	p.b.expect(p.ba, "before", p.a.send(p.ab, "before", 100_000))
	select {
	case <-p.a.Lost():
		t.Fatal("it is there")
	default:
	}

	f.Inject(driver.Event{Type: driver.EventDeviceFatal})
	get(t, p.a.Lost())
	want := map[*Conn]bool{p.ab: true, dialed: true}
	for range 2 {
		x := get(t, p.a.faults)
		require.True(t, want[x.c])
		delete(want, x.c)
		require.ErrorIs(t, x.err, verbs.ErrDeviceLost)
		require.Equal(t, x.err, x.c.Err())
		var fe *FaultError
		require.ErrorAs(t, x.err, &fe)
		require.Equal(t, FaultLocal, fe.Kind)
		get(t, x.c.Done())
	}
	for range 2 {
		x := get(t, p.b.faults)
		var fe *FaultError
		require.ErrorAs(t, x.err, &fe)
		require.Equal(t, FaultPath, fe.Kind, "%v", x.err)
	}
	get(t, accepted.Done())
	get(t, p.ba.Done())
	if env.Device() == "" { // it is closed a moment later
		require.Eventually(t, func() bool {
			_, err := p.b.Dial(t.Context(), addr)
			return errors.Is(err, ErrRefused)
		}, wait, time.Millisecond, "who dials is refused")
	}

	_, err = p.a.Dial(t.Context(), p.b.Addr().String())
	require.ErrorIs(t, err, verbs.ErrDeviceLost)
	require.ErrorIs(t, p.a.Listen(t.Context(), env.ListenAddr()), verbs.ErrDeviceLost)
	ctx, cancel := context.WithTimeout(t.Context(), wait)
	defer cancel()
	require.NoError(t, p.a.Shutdown(ctx))
}

// TestDeviceLostWhileDialing: a connection that is being made ends with the
// device, too.
func TestDeviceLostWhileDialing(t *testing.T) {
	asked, answer := make(chan struct{}), make(chan struct{})
	b := newNode(t, nodeConfig{Config: Config{OnAccept: func(*Conn) bool { close(asked); <-answer; return false }}})
	addr := b.listen()
	f := verbstest.NewFaulty(env.OpenDriver(t), nil)
	a := newNode(t, nodeConfig{device: env.Core(t, f)})
	done := make(chan error, 1)
	go func() { // ends with the device
		_, err := a.Dial(context.Background(), addr)
		done <- err
	}()
	get(t, asked)
	f.Inject(driver.Event{Type: driver.EventDeviceFatal})
	require.ErrorIs(t, get(t, done), verbs.ErrDeviceLost)
	close(answer)
}

// TestLaneLost: connections whose queues have failed end by a local fault, those
// that are made then get queues that work, and the others are given up.
func TestLaneLost(t *testing.T) {
	for _, typ := range []driver.EventType{driver.EventCQErr, driver.EventSRQErr} {
		t.Run(typ.String(), func(t *testing.T) {
			f := verbstest.NewFaulty(env.OpenDriver(t), nil)
			faults, on, quit := make(chan fault), make(chan struct{}), make(chan struct{})
			b := newNode(t, nodeConfig{device: env.Core(t, f), Config: Config{Pollers: 1, OnFault: func(c *Conn, err error) {
				if errors.Is(err, ErrPeerClosed) {
					return // at the end
				}
				select {
				case faults <- fault{c, err}:
				case <-quit:
				}
				select {
				case <-on:
				case <-quit:
				}
			}}})
			env.Need(t, b.useSRQ || typ == driver.EventCQErr, "it has no SRQ")
			a := newNode(t, nodeConfig{})
			t.Cleanup(func() { close(quit) })
			addr := b.listen()
			dial := func() (*Conn, *Conn) {
				c, err := a.Dial(t.Context(), addr)
				require.NoError(t, err)
				return c, get(t, b.accepted)
			}
			c, peer := dial()
			require.Eventually(t, func() bool { // its first packet has been handled
				return peer.Stats().PacketsReceived == 1 && b.Stats().RecvPosted == b.cfg.Credits
			}, wait, time.Millisecond)
			posted := b.a.Account().Posted
			for range 2 {
				b.expect(peer, "on", a.send(c, "on", 100))
				require.Equal(t, 1, b.Stats().Lanes)
				if typ == driver.EventCQErr {
					f.Inject(driver.Event{Type: typ, CQ: f.CQs()[0]})
				} else {
					f.Inject(driver.Event{Type: typ, SRQ: f.SRQs()[0]})
				}
				x := get(t, faults)
				require.Same(t, peer, x.c)
				require.True(t, peer.l.failed.Load())
				var fe *FaultError
				require.ErrorAs(t, x.err, &fe)
				require.Equal(t, FaultLocal, fe.Kind)
				nc, next := dial()
				require.NotSame(t, peer.l, next.l)
				on <- struct{}{}
				get(t, peer.Done())
				get(t, c.Done())
				require.False(t, slices.Contains(*b.pollers[0].lanes.Load(), peer.l)) // require.NotContains looks into what lives
				require.Eventually(t, func() bool { return len(f.CQs()) == 1 && b.a.Account().Posted == posted }, wait, time.Millisecond, "something is left")
				c, peer = nc, next
			}
			peer.l.failed.Store(true) // as if just when it was made
			require.ErrorIs(t, peer.l.enter(peer), errLane)
		})
	}
}

// TestIdleLaneLost: queues that fail when no connection is on them are given up
// with the next connection of their poller.
func TestIdleLaneLost(t *testing.T) {
	for _, typ := range []driver.EventType{driver.EventCQErr, driver.EventSRQErr} {
		t.Run(typ.String(), func(t *testing.T) {
			f := verbstest.NewFaulty(env.OpenDriver(t), nil)
			p := newPair(t, nodeConfig{}, nodeConfig{device: env.Core(t, f), Config: Config{Pollers: 1}})
			env.Need(t, p.b.useSRQ || typ == driver.EventCQErr, "it has no SRQ")
			p.ab.Close()
			get(t, p.ba.Done())
			if typ == driver.EventCQErr {
				f.Inject(driver.Event{Type: typ, CQ: f.CQs()[0]})
			} else {
				f.Inject(driver.Event{Type: typ, SRQ: f.SRQs()[0]})
			}
			require.Eventually(t, p.ba.l.failed.Load, wait, time.Millisecond)

			c, err := p.a.Dial(t.Context(), p.b.Addr().String())
			require.NoError(t, err)
			next := get(t, p.b.accepted)
			require.NotSame(t, p.ba.l, next.l)
			c.Close()
			get(t, next.Done())
			require.Equal(t, 1, p.b.Stats().Lanes)
			require.Same(t, next.l, (*p.b.pollers[0].lanes.Load())[0])
			require.Eventually(t, func() bool { return len(f.CQs()) == 1 && len(f.SRQs()) <= 1 }, wait, time.Millisecond)
		})
	}
}

// TestLaneErrs: queues that can not be polled, or that refuse a receive, end their
// connections, and serve no further ones: what they own is not known any more.
func TestLaneErrs(t *testing.T) {
	for _, op := range []verbstest.Op{verbstest.CallPoll, verbstest.CallPostSRQRecv} {
		t.Run(op.String(), func(t *testing.T) {
			var due atomic.Bool
			f := verbstest.NewFaulty(env.OpenDriver(t), &verbstest.Script{Call: func(c verbstest.Call) verbstest.Fault {
				if c.Op == op && due.CompareAndSwap(true, false) {
					return verbstest.Fault{Err: errInjected}
				}
				return verbstest.Fault{}
			}})
			p := newPair(t, nodeConfig{}, nodeConfig{device: env.Core(t, f), Config: Config{Pollers: 1}})
			env.Need(t, p.b.useSRQ || op == verbstest.CallPoll, "it has no SRQ")
			// It has handled the first packet, so that the next receive is that of a message.
			require.Eventually(t, func() bool { return p.ba.Stats().PacketsReceived == 1 && p.b.receives() == p.b.cfg.Credits }, wait, time.Millisecond)
			due.Store(true)
			if op == verbstest.CallPoll {
				p.ba.p.wake()
			} else {
				p.b.expect(p.ba, "x", p.a.send(p.ab, "x", 100)) // and then its receive is posted again
			}
			require.ErrorIs(t, get(t, p.b.faults).err, errInjected)
			get(t, p.ba.Done())
			get(t, p.ab.Done())

			c, err := p.a.Dial(t.Context(), p.b.Addr().String())
			require.NoError(t, err)
			next := get(t, p.b.accepted)
			require.NotSame(t, p.ba.l, next.l)
			p.b.expect(next, "on", p.a.send(c, "on", 100))
			require.Eventually(t, func() bool {
				return len(f.CQs()) == 1 && p.b.Stats().Lanes == 1 && p.b.receives() == p.b.cfg.Credits
			}, wait, time.Millisecond)
		})
	}
}

// TestLaneRefusesSupply: shared queues that refuse the receives of a connection that
// is being made may have lost those of others with them: all end, and the next one
// has all its receives.
func TestLaneRefusesSupply(t *testing.T) {
	var due atomic.Bool
	f := verbstest.NewFaulty(env.OpenDriver(t), &verbstest.Script{Call: func(c verbstest.Call) verbstest.Fault {
		if c.Op == verbstest.CallPostSRQRecv && due.CompareAndSwap(true, false) {
			return verbstest.Fault{Err: errInjected}
		}
		return verbstest.Fault{}
	}})
	b := newNode(t, nodeConfig{})
	addr := b.listen()
	a := newNode(t, nodeConfig{device: env.Core(t, f), Config: Config{Pollers: 1}})
	env.Need(t, a.useSRQ, "it has no SRQ")
	c, err := a.Dial(t.Context(), addr)
	require.NoError(t, err)
	due.Store(true)
	_, err = a.Dial(t.Context(), addr)
	require.ErrorIs(t, err, errInjected)
	var fe *FaultError
	require.ErrorAs(t, err, &fe)
	require.Equal(t, FaultLocal, fe.Kind)
	require.ErrorIs(t, get(t, a.faults).err, errInjected)
	get(t, c.Done())

	next, err := a.Dial(t.Context(), addr)
	require.NoError(t, err)
	require.NotSame(t, c.l, next.l)
	require.Eventually(t, func() bool { return a.receives() == a.cfg.Credits && a.Stats().Lanes == 1 }, wait, time.Millisecond)
}
