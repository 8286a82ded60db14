package buffer

import (
	"bytes"
	"context"
	"errors"
	"reflect"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/argonaut-rdma/argonaut/test/env"
	"github.com/argonaut-rdma/argonaut/verbs"
	"github.com/argonaut-rdma/argonaut/verbs/driver"
	"github.com/argonaut-rdma/argonaut/verbs/iwarp"
	"github.com/argonaut-rdma/argonaut/verbs/verbstest"
)

// openPD is a PD on a device of its own, whose driver calls go through script:
// the user-space adapter where it is to be configured, else what tests run on.
func openPD(tb testing.TB, cfg iwarp.Config, script *verbstest.Script) *verbs.PD {
	tb.Helper()
	var d driver.Device
	if reflect.ValueOf(cfg).IsZero() {
		d = env.OpenDriver(tb)
	} else {
		var err error
		d, err = iwarp.OpenDriver(cfg)
		require.NoError(tb, err)
	}
	dev := env.Core(tb, verbstest.NewFaulty(d, script))
	tb.Cleanup(func() { require.NoError(tb, dev.Close()) })
	pd, err := dev.AllocPD()
	require.NoError(tb, err)
	tb.Cleanup(func() { require.NoError(tb, pd.Close()) })
	return pd
}

// needVirtualTime skips a test in virtual time where the device is one of the
// kernel: what waits for that is never known to be idle.
func needVirtualTime(t *testing.T) {
	t.Helper()
	env.UserSpace(t, "there is no virtual time for it")
}

// end is one end of a connection.
type end struct {
	tb testing.TB
	pd *verbs.PD
	ch *verbs.CompChannel
	cq *verbs.CQ
	qp *verbs.QP
}

// connect makes two connected QPs on devices of their own over TCP on loopback.
func connect(tb testing.TB) (x, y *end) {
	tb.Helper()
	return connectWith(tb, &verbstest.Script{})
}

// noConfig opens the device of the environment.
var noConfig iwarp.Config

// connectWith is connect over devices with a script.
func connectWith(tb testing.TB, s *verbstest.Script) (x, y *end) {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	ends := make([]*end, 2)
	for i := range ends {
		e := &end{tb: tb, pd: openPD(tb, iwarp.Config{}, s)}
		var err error
		e.ch, err = e.pd.Device().CreateCompChannel()
		require.NoError(tb, err)
		tb.Cleanup(func() { require.NoError(tb, e.ch.Close()) })
		e.cq, err = e.pd.Device().CreateCQ(verbs.CQConfig{Depth: 256, Channel: e.ch})
		require.NoError(tb, err)
		tb.Cleanup(func() { require.NoError(tb, e.cq.Close()) })
		sges := min(8, e.pd.Device().Caps().MaxSGE)
		e.qp, err = e.pd.CreateQP(verbs.QPConfig{SendCQ: e.cq, MaxSendSGE: sges, MaxRecvSGE: sges})
		require.NoError(tb, err)
		tb.Cleanup(func() { _, err := e.qp.Close(); require.NoError(tb, err) })
		ends[i] = e
	}
	ln, err := ends[1].pd.Device().Listen(ctx, env.ListenAddr())
	require.NoError(tb, err)
	defer func() { require.NoError(tb, ln.Close()) }()
	accepted := make(chan error, 1)
	go func() { // ends when the connection is made or ctx ends
		req, err := ln.Accept(ctx)
		if err == nil {
			err = req.Accept(ctx, ends[1].qp, verbs.ConnParam{})
		}
		accepted <- err
	}()
	_, err = ends[0].qp.Connect(ctx, ln.Addr(), verbs.ConnParam{})
	require.NoError(tb, err)
	require.NoError(tb, <-accepted)
	return ends[0], ends[1]
}

// poll waits for one completion.
func (e *end) poll() verbs.WC {
	e.tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var wcs [1]verbs.WC
	for {
		for range 2 {
			n, err := e.cq.Poll(wcs[:])
			require.NoError(e.tb, err)
			if n == 1 {
				return wcs[0]
			}
			require.NoError(e.tb, e.cq.ReqNotify(false))
		}
		_, err := e.ch.Wait(ctx)
		require.NoError(e.tb, err)
	}
}

func (e *end) send(wr verbs.SendWR) {
	e.tb.Helper()
	wr.Flags |= verbs.SendSignaled
	_, err := e.qp.PostSend([]verbs.SendWR{wr})
	require.NoError(e.tb, err)
}

// attached is an arena on e's PD that is detached at the end of the test.
func (e *end) attached(cfg Config) *Arena {
	e.tb.Helper()
	a := newArena(e.tb, cfg)
	require.NoError(e.tb, a.Attach(context.Background(), e.pd))
	return a
}

// regions counts the memory regions registered on pd's device.
func regions(pd *verbs.PD) (n int) {
	for _, r := range pd.Device().Resources() {
		if r.Kind == verbs.KindMR {
			n++
		}
	}
	return n
}

// ended is a context that has ended.
func ended() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}

func TestSendAndReceive(t *testing.T) {
	x, y := connect(t)
	ctx := context.Background()
	// One arena for both: each buffer can be used on either device.
	a := x.attached(Config{Budget: 8 << 20, RegionSize: 1 << 20})
	require.NoError(t, a.Attach(ctx, y.pd))
	require.NoError(t, a.Attach(ctx, y.pd), "again changes nothing")
	require.Equal(t, 2, a.Stats().Attached)
	require.Equal(t, 8, regions(x.pd))
	require.Equal(t, 8, regions(y.pd))

	in, ok := a.TryGetList(3<<20+100, Control)
	require.True(t, ok)
	in.RetainPosted()
	_, err := y.qp.PostRecv([]verbs.RecvWR{{SGEs: in.SGEs(nil, y.pd)}})
	require.NoError(t, err)
	err = a.Detach(ctx, y.pd)
	require.ErrorIs(t, err, verbs.ErrBusy)
	require.ErrorContains(t, err, "posted work names the arena 4 times on this PD: drain or close its QPs and SRQs first")
	require.True(t, a.Attached(y.pd), "nothing has changed")

	out, want := listOf(t, a, 3<<20+100)
	out.RetainPosted()
	x.send(verbs.SendWR{Opcode: verbs.OpSend, SGEs: out.SGEs(nil, x.pd)})
	require.EqualValues(t, 2*(3<<20+Page), a.Account().Posted)
	require.Equal(t, verbs.StatusSuccess, y.poll().Status)
	in.ReleasePosted()
	require.Equal(t, verbs.StatusSuccess, x.poll().Status)
	out.ReleasePosted()
	require.True(t, bytes.Equal(want, contents(in)))
	require.EqualValues(t, 2*(3<<20+Page), a.Account().Held)

	// What is held keeps nobody from detaching; a later post fails.
	require.NoError(t, a.Detach(ctx, y.pd))
	require.NoError(t, a.Detach(ctx, y.pd))
	require.Zero(t, regions(y.pd))
	require.False(t, a.Attached(y.pd))
	_, err = y.qp.PostRecv([]verbs.RecvWR{{SGEs: in.SGEs(nil, y.pd)}})
	require.ErrorIs(t, err, verbs.ErrInvalid)
	in.Release()
	out.Release()
}

// A QP that is destroyed gives its requests back, and with them the buffers.
func TestOrphansComeBack(t *testing.T) {
	x, _ := connect(t)
	a := x.attached(Config{Budget: 8 << 20})
	posted := map[uint64]RDMABuffer{}
	for id := range uint64(5) {
		b := mustGet(t, a, 1000, Anonymous)
		b.RetainPosted()
		posted[id] = b
		_, err := x.qp.PostRecv([]verbs.RecvWR{{WRID: id, SGEs: []verbs.SGE{b.SGE(x.pd)}}})
		require.NoError(t, err)
		b.Release()
	}
	require.EqualValues(t, 5*Page, a.Account().Posted)
	orphans, err := x.qp.Close()
	require.NoError(t, err)
	require.Len(t, orphans, 5)
	for _, o := range orphans {
		posted[o.WRID].ReleasePosted()
	}
	require.Zero(t, a.Account().Posted)
}

func TestAttachIsAllOrNothing(t *testing.T) {
	verbstest.NoLeaks(t)
	broken := errors.New("broken")
	count := func(o verbstest.Op) bool { return o == verbstest.CallRegMR }
	verbstest.FailEach(t, broken, count, func(t *testing.T, s *verbstest.Script) {
		pd := openPD(t, iwarp.Config{}, s)
		a := newArena(t, Config{Budget: 4 << 20, RegionSize: 1 << 20})
		err := a.Attach(context.Background(), pd)
		if s.Fired() == 0 {
			require.NoError(t, err)
			return
		}
		require.ErrorIs(t, err, broken)
		require.ErrorContains(t, err, "register 1048576 bytes, 4194304 in all, on "+pd.Device().Name())
		require.Zero(t, regions(pd))
		require.False(t, a.Attached(pd))
		require.NoError(t, a.Attach(context.Background(), pd))
	})
}

// What a failed Attach could not deregister again is left to Detach and Close.
func TestAttachIsNotRolledBack(t *testing.T) {
	verbstest.NoLeaks(t)
	broken := errors.New("broken")
	ctx := context.Background()
	for name, closes := range map[string]bool{"detach": false, "close": true} {
		t.Run(name, func(t *testing.T) {
			var mended atomic.Bool
			pd := openPD(t, iwarp.Config{}, &verbstest.Script{Call: func(c verbstest.Call) verbstest.Fault {
				if c.Op == verbstest.CallRegMR && c.N == 1 || c.Op == verbstest.CallDeregister && !mended.Load() {
					return verbstest.Fault{Err: broken}
				}
				return verbstest.Fault{}
			}})
			a, err := New(Config{Budget: 4 << 20, RegionSize: 1 << 20})
			require.NoError(t, err)
			err = a.Attach(ctx, pd)
			require.ErrorContains(t, err, "and not deregistered again")
			var be *BatchError
			require.ErrorAs(t, err, &be)
			require.False(t, be.RolledBack)
			require.False(t, a.Attached(pd))
			require.Equal(t, 3, regions(pd))
			err = a.Attach(ctx, pd)
			require.ErrorIs(t, err, verbs.ErrBusy)
			require.ErrorContains(t, err, "call Detach again")
			if closes {
				err = a.Close(ctx)
				var leak *LeakError
				require.ErrorAs(t, err, &leak)
				require.EqualValues(t, 3<<20, leak.Quarantined, "it stays mapped")
				mended.Store(true)
			} else {
				require.ErrorIs(t, a.Detach(ctx, pd), broken)
				mended.Store(true)
				require.NoError(t, a.Detach(ctx, pd))
				require.Zero(t, regions(pd))
				require.NoError(t, a.Attach(ctx, pd))
			}
			require.NoError(t, a.Close(ctx))
			require.Zero(t, regions(pd))
		})
	}
}

func TestLimitsOfTheDevice(t *testing.T) {
	a := newArena(t, Config{Budget: 4 << 20, RegionSize: 1 << 20})
	for name, c := range map[string]struct {
		cfg  iwarp.Config
		says string
	}{
		"regions": {iwarp.Config{MaxMR: 3}, "MaxMR of iwarp: need 4 regions, allowed are 3"},
		"pages":   {iwarp.Config{MaxPages: 1000}, "MaxPages of iwarp: need 1024 pages, allowed are 1000"},
		"size":    {iwarp.Config{MaxMRSize: 1<<20 - 1}, "MaxMRSize of iwarp: need 1048576 bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			pd := openPD(t, c.cfg, &verbstest.Script{})
			err := a.Attach(context.Background(), pd)
			require.ErrorIs(t, err, verbs.ErrLimit)
			require.ErrorContains(t, err, c.says)
			require.Zero(t, regions(pd))
		})
	}
}

func TestAttachIsCancelled(t *testing.T) {
	pd := openPD(t, iwarp.Config{}, &verbstest.Script{})
	a := newArena(t, Config{Budget: 4 << 20, RegionSize: 1 << 20})
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	require.ErrorIs(t, a.Attach(ctx, pd), context.Canceled)
	require.Zero(t, regions(pd))
	require.NoError(t, a.Attach(context.Background(), pd))
	require.ErrorIs(t, a.Detach(ctx, pd), context.Canceled)
	require.True(t, a.Attached(pd))
}

func TestBatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var running, most atomic.Int32
		stuck := make(chan struct{})
		broken := errors.New("broken")
		var jobs []*job
		for i := range 100 {
			tries := 0
			jobs = append(jobs, &job{run: func() error {
				n := running.Add(1)
				defer running.Add(-1)
				for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
				}
				tries++
				switch {
				case i < 20:
					<-stuck
				case i == 50 && tries == 1:
					return broken
				}
				return nil
			}})
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
		defer cancel()
		left := batch(ctx, deregistering, inDevice, jobs) // all workers are stuck
		require.EqualValues(t, inDevice, running.Load())
		require.EqualValues(t, inDevice, most.Load())
		for i, err := range left {
			require.ErrorIs(t, err, context.DeadlineExceeded, i)
			if i < inDevice {
				require.ErrorContains(t, err, "still deregistering")
			} else {
				require.ErrorContains(t, err, "not deregistered in time")
			}
		}
		close(stuck)
		left = batch(context.Background(), deregistering, inDevice, jobs)
		for i, err := range left {
			if i == 50 {
				require.ErrorIs(t, err, broken)
			} else {
				require.NoError(t, err, i)
			}
		}
		for _, err := range batch(context.Background(), deregistering, inDevice, jobs) {
			require.NoError(t, err)
		}
	})
}
