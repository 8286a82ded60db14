package verbs_test

import (
	"context"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/argonaut-rdma/argonaut/verbs"
	"github.com/argonaut-rdma/argonaut/verbs/driver"
	"github.com/argonaut-rdma/argonaut/verbs/verbstest"
)

// A later completion retires sends and writes, never a READ; what only the core
// asked for is not handed out.
func TestRetirement(t *testing.T) {
	r := newRig(t, func(c *driver.Caps) { c.SignalAbove = 64 }, verbs.Config{}, verbs.QPConfig{MaxSendWR: 64})
	r.send(
		verbs.SendWR{WRID: 1, Opcode: verbs.OpRead, SGEs: r.sge(8)},
		verbs.SendWR{WRID: 2, SGEs: r.sge(63)},
		verbs.SendWR{WRID: 3, Opcode: verbs.OpWrite, SGEs: r.sge(64)},
		verbs.SendWR{WRID: 4, Flags: verbs.SendSignaled, SGEs: r.sge(8)},
	)
	var signaled []bool
	for _, wr := range r.lq.sq {
		signaled = append(signaled, wr.Flags&driver.SendSignaled != 0)
	}
	require.Equal(t, []bool{true, false, true, true}, signaled)
	r.lq.finish(1)
	require.Empty(t, r.poll())
	require.Equal(t, 4, r.mr.InFlight(), "un-signalled: nobody knows")
	r.lq.finish(1)
	require.Empty(t, r.poll(), "swallowed")
	require.Equal(t, 2, r.mr.InFlight(), "it retired the send before it")
	r.lq.finish(1)
	require.Equal(t, []uint64{4}, wrids(r.poll()))
	require.Equal(t, 1, r.mr.InFlight(), "the READ goes on")
	r.lq.finish(0)
	require.Empty(t, r.poll())
	require.Zero(t, r.mr.InFlight())
	s := r.dev.Stats()
	require.EqualValues(t, 4, s.SendsPosted)
	require.EqualValues(t, 2, s.Swallowed)
	require.EqualValues(t, 1, s.Completions)
}

// Whose doing a cause is, is known only where there is one.
func TestLocalCause(t *testing.T) {
	r := newRig(t, nil, verbs.Config{}, verbs.QPConfig{})
	for _, cause := range []driver.EventType{0, driver.EventQPFatal} {
		for _, want := range []bool{false, true} {
			r.lq.cause, r.lq.local = cause, want
			local, known := r.qp.LocalCause()
			require.Equal(t, cause != 0, known)
			require.Equal(t, want && known, local)
		}
	}
}

// On a device that lets SENDs overtake a READ, any number may: the queue is full
// when as many as it is deep are outstanding, and not before.
func TestOvertakenRead(t *testing.T) {
	const depth = 4
	r := newRig(t, nil, verbs.Config{}, verbs.QPConfig{MaxSendWR: depth})
	r.send(verbs.SendWR{WRID: 1, Opcode: verbs.OpRead, Flags: verbs.SendSignaled, SGEs: r.sge(8)})
	for id := range uint64(10 * depth) {
		r.send(verbs.SendWR{WRID: 100 + id, Flags: verbs.SendSignaled, SGEs: r.sge(8)})
		r.lq.finish(1)
		require.Equal(t, []uint64{100 + id}, wrids(r.poll()))
		require.Equal(t, 1, r.mr.InFlight())
	}
	n, err := r.qp.PostSend(make([]verbs.SendWR, depth))
	require.Equal(t, depth-1, n)
	require.ErrorIs(t, err, verbs.ErrQueueFull)
	r.lq.finish(0)
	require.Equal(t, []uint64{1}, wrids(r.poll()))
	require.Zero(t, r.mr.InFlight())
}

// A caller that never asks for a completion does not fill its queue for ever.
func TestNeverSignaled(t *testing.T) {
	for _, depth := range []int{1, 2, 3, 8} {
		r := newRig(t, nil, verbs.Config{}, verbs.QPConfig{MaxSendWR: depth})
		for range 100 {
			r.send(verbs.SendWR{SGEs: r.sge(8)})
			r.lq.finish(0)
			require.Empty(t, r.poll())
		}
		require.LessOrEqual(t, r.mr.InFlight(), depth/2)
	}
}

// Nor does one whose signalled requests are those that the device refuses.
func TestRefusedSignal(t *testing.T) {
	r := newRig(t, nil, verbs.Config{}, verbs.QPConfig{MaxSendWR: 4})
	r.l.mu.Lock()
	r.l.refuse = 1
	r.l.mu.Unlock()
	for range 20 {
		n, err := r.qp.PostSend([]verbs.SendWR{{}, {}})
		require.Equal(t, 1, n)
		require.ErrorIs(t, err, verbs.ErrQueueFull)
		r.lq.finish(0)
		require.Empty(t, r.poll())
	}
}

func TestPollLooksBehindSwallowed(t *testing.T) {
	r := newRig(t, nil, verbs.Config{}, verbs.QPConfig{})
	r.send(
		verbs.SendWR{WRID: 1, Opcode: verbs.OpRead}, verbs.SendWR{WRID: 2, Opcode: verbs.OpRead},
		verbs.SendWR{WRID: 3, Opcode: verbs.OpRead, Flags: verbs.SendSignaled})
	for range 3 {
		r.lq.finish(0)
	}
	wcs := make([]verbs.WC, 2)
	n, err := r.cq.Poll(wcs)
	require.NoError(t, err)
	require.Equal(t, []uint64{3}, wrids(wcs[:n]), "0 would mean that the CQ is empty")
}

func TestOrphansTellWhatNoCompletionTold(t *testing.T) {
	r := newRig(t, nil, verbs.Config{}, verbs.QPConfig{MaxSendWR: 16, MaxRecvWR: 4})
	r.send(
		verbs.SendWR{WRID: 1},
		verbs.SendWR{WRID: 2, Flags: verbs.SendSignaled}, // tells 1 and 2
		verbs.SendWR{WRID: 3},
		verbs.SendWR{WRID: 4, Opcode: verbs.OpRead}, // swallowed: retires 3 and 4, tells nothing
		verbs.SendWR{WRID: 5, Opcode: verbs.OpRead, Flags: verbs.SendSignaled, SGEs: r.sge(8)},
		verbs.SendWR{WRID: 6, Flags: verbs.SendSignaled}, // completed, not polled
	)
	_, err := r.qp.PostRecv([]verbs.RecvWR{{WRID: 100}, {WRID: 101, SGEs: r.sge(8)}})
	require.NoError(t, err)
	for range 4 {
		r.lq.finish(0)
	}
	r.lq.receive(driver.WC{})
	require.Equal(t, []uint64{2, 100}, wrids(r.poll()))
	r.lq.finish(1)

	orphans, err := r.qp.Close()
	require.NoError(t, err)
	require.Equal(t, []verbs.Orphan{{3, false}, {4, false}, {5, false}, {6, false}, {101, true}}, orphans)
	orphans, err = r.qp.Close()
	require.NoError(t, err)
	require.Empty(t, orphans)
	require.Zero(t, r.mr.InFlight())
	require.Empty(t, r.poll())
	s := r.dev.Stats()
	require.EqualValues(t, 1, s.LateCompletions, "of 6")
	require.EqualValues(t, 5, s.Orphans)
}

// A device that says "local QP operation error" of what it could not send must
// not look as if the request were malformed; of a receive, that is what it means.
func TestUnsentIsNoLocalFault(t *testing.T) {
	for _, unsent := range []bool{false, true} {
		r := newRig(t, func(c *driver.Caps) { c.UnsentIsLocQPOp = unsent }, verbs.Config{}, verbs.QPConfig{MaxRecvWR: 4})
		_, err := r.qp.PostSend([]verbs.SendWR{{WRID: 1}})
		require.NoError(t, err)
		_, err = r.qp.PostRecv([]verbs.RecvWR{{WRID: 2}})
		require.NoError(t, err)
		r.lq.send().add(driver.WC{WRID: r.lq.sq[0].WRID, Status: driver.StatusLocQPOpErr, QPN: r.lq.qpn})
		r.lq.receive(driver.WC{Status: driver.StatusLocQPOpErr})
		wcs := r.poll()
		require.Len(t, wcs, 2)
		want := map[bool]verbs.WCStatus{false: verbs.StatusLocQPOpErr, true: verbs.StatusGeneralErr}[unsent]
		require.Equal(t, want, wcs[0].Status)
		require.Equal(t, verbs.StatusLocQPOpErr, wcs[1].Status)
	}
}

// Completions of a QP that was destroyed stay in some devices' CQs, and come
// when its place in the table has a new owner.
func TestLateAndStaleCompletions(t *testing.T) {
	var keep []driver.WC
	hold := true
	s := &verbstest.Script{Poll: func(wcs []driver.WC) []driver.WC {
		if hold {
			keep = append(keep, wcs...)
			return nil
		}
		wcs, keep = append(wcs, keep...), nil
		return wcs
	}}
	l := newLoop(nil)
	dev, err := verbs.NewDevice(verbstest.NewFaulty(l, s), verbs.Config{})
	require.NoError(t, err)
	pd, err := dev.AllocPD()
	require.NoError(t, err)
	cq, err := dev.CreateCQ(verbs.CQConfig{Depth: 1000})
	require.NoError(t, err)
	create := func() (*verbs.QP, *loopQP) {
		qp, err := pd.CreateQP(verbs.QPConfig{SendCQ: cq, MaxRecvWR: 16})
		require.NoError(t, err)
		_, err = qp.Connect(context.Background(), "x:1", verbs.ConnParam{})
		require.NoError(t, err)
		return qp, l.last()
	}
	closeQP := func(qp *verbs.QP) []verbs.Orphan {
		o, err := qp.Close()
		require.NoError(t, err)
		return o
	}

	qp, lq := create()
	_, err = qp.PostSend([]verbs.SendWR{{WRID: 1, Flags: verbs.SendSignaled}})
	require.NoError(t, err)
	_, err = qp.PostRecv([]verbs.RecvWR{{WRID: 2}})
	require.NoError(t, err)
	lq.finish(0)
	lq.receive(driver.WC{})
	require.Equal(t, []verbs.Orphan{{WRID: 1}, {2, true}}, closeQP(qp), "the CQ keeps them back")
	require.Len(t, keep, 2)

	// Owners until the same index comes again.
	first := keep[0].WRID >> 40
	for {
		qp, lq = create()
		_, err = qp.PostSend([]verbs.SendWR{{WRID: 3, Flags: verbs.SendSignaled}})
		require.NoError(t, err)
		if lq.sq[0].WRID>>40 == first {
			break
		}
		require.Len(t, closeQP(qp), 1)
	}
	hold = false
	wcs := make([]verbs.WC, 8)
	n, err := cq.Poll(wcs)
	require.NoError(t, err)
	require.Zero(t, n)
	require.EqualValues(t, 2, dev.Stats().LateCompletions)

	// A device that completes twice, or what nobody posted.
	keep = nil
	lq.finish(0)
	n, err = cq.Poll(wcs)
	require.NoError(t, err)
	require.Equal(t, []uint64{3}, wrids(wcs[:n]))
	twice := uint64(1)<<62 | first<<40
	keep = []driver.WC{{WRID: twice}, {WRID: 0}, {WRID: 3<<62 | 1000<<40}}
	n, err = cq.Poll(wcs)
	require.ErrorIs(t, err, verbs.ErrStale)
	require.Zero(t, n)
	require.EqualValues(t, 2, dev.Stats().StaleCompletions)
	require.EqualValues(t, 3, dev.Stats().LateCompletions)
	keep = nil

	require.Empty(t, closeQP(qp))
	require.NoError(t, cq.Close())
	require.NoError(t, pd.Close())
	require.NoError(t, dev.Close())
}

// A device that completes out of order, within a batch and across batches.
func TestReorderedCompletions(t *testing.T) {
	var held []driver.WC
	s := &verbstest.Script{Poll: func(wcs []driver.WC) []driver.WC {
		held = append(held, wcs...)
		if len(held) < 6 {
			return nil
		}
		slices.Reverse(held)
		out := held
		held = nil
		return out
	}}
	l := newLoop(nil)
	dev, err := verbs.NewDevice(verbstest.NewFaulty(l, s), verbs.Config{})
	require.NoError(t, err)
	pd, err := dev.AllocPD()
	require.NoError(t, err)
	cq, err := dev.CreateCQ(verbs.CQConfig{Depth: 64})
	require.NoError(t, err)
	qp, err := pd.CreateQP(verbs.QPConfig{SendCQ: cq, MaxSendWR: 8, MaxRecvWR: 8})
	require.NoError(t, err)
	_, err = qp.Connect(context.Background(), "x:1", verbs.ConnParam{})
	require.NoError(t, err)
	var got []uint64
	wcs := make([]verbs.WC, 4)
	for i := range 6 {
		_, err = qp.PostSend([]verbs.SendWR{{WRID: uint64(i), Flags: verbs.SendSignaled}})
		require.NoError(t, err)
		l.last().finish(0)
		n, err := cq.Poll(wcs)
		require.NoError(t, err)
		got = append(got, wrids(wcs[:n])...)
	}
	n, err := cq.Poll(wcs)
	require.NoError(t, err)
	got = append(got, wrids(wcs[:n])...)
	require.Equal(t, []uint64{5, 4, 3, 2, 1, 0}, got)
	orphans, err := qp.Close()
	require.NoError(t, err)
	require.Empty(t, orphans)
	require.NoError(t, cq.Close())
	require.NoError(t, pd.Close())
	require.NoError(t, dev.Close())
}

func TestCompChannel(t *testing.T) {
	r := newRig(t, nil, verbs.Config{}, verbs.QPConfig{})
	ch, err := r.dev.CreateCompChannel()
	require.NoError(t, err)
	cq, err := r.dev.CreateCQ(verbs.CQConfig{Depth: 256, Channel: ch})
	require.NoError(t, err)
	require.Equal(t, ch, cq.Channel())
	qp, err := r.pd.CreateQP(verbs.QPConfig{SendCQ: cq})
	require.NoError(t, err)
	lq := r.l.last()
	_, err = qp.Connect(context.Background(), "x:1", verbs.ConnParam{})
	require.NoError(t, err)
	_, err = qp.PostSend([]verbs.SendWR{{Flags: verbs.SendSignaled}})
	require.NoError(t, err)
	require.NoError(t, cq.ReqNotify(false))
	lq.finish(0)
	got, err := ch.Wait(context.Background())
	require.NoError(t, err)
	require.Equal(t, cq, got)
	ch.Wake()
	got, err = ch.Wait(context.Background())
	require.NoError(t, err)
	require.Nil(t, got)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, err = ch.Wait(ctx)
	require.ErrorIs(t, err, context.Canceled)
	_, err = qp.Close()
	require.NoError(t, err)
	require.NoError(t, cq.Close())
	require.NoError(t, ch.Close())
}

// Posting, polling and granting allocate nothing.
func TestHotPathAllocations(t *testing.T) {
	qp, cq := newInstant(t)
	mr, err := qp.PD().RegMR(make([]byte, 64), verbs.AccessLocalWrite)
	require.NoError(t, err)
	send := []verbs.SendWR{
		{WRID: 1, SGEs: []verbs.SGE{{MR: mr, Length: 8}, {MR: mr, Offset: 8, Length: 8}}},
		{WRID: 2, Opcode: verbs.OpRead, Flags: verbs.SendSignaled, SGEs: []verbs.SGE{{MR: mr, Length: 8}}},
	}
	recv := []verbs.RecvWR{{WRID: 3, SGEs: []verbs.SGE{{MR: mr, Length: 8}}}}
	wcs := make([]verbs.WC, 16)
	bad := 0
	step := func() {
		n, err := qp.PostSend(send)
		if n != 2 || err != nil {
			bad++
		}
		if n, err = qp.PostRecv(recv); n != 1 || err != nil {
			bad++
		}
		if n, err = cq.Poll(wcs); n != 2 || err != nil {
			bad++
		}
		if n, err = cq.Poll(wcs); n != 0 || err != nil {
			bad++
		}
	}
	step()
	require.Zero(t, testing.AllocsPerRun(1000, step))

	// A scoped key in storage of the caller costs the core none either.
	qp.Device().SetTraceStacks(false)
	var key verbs.MR
	grant := func() {
		if mr.ScopeInto(&key, qp, 1, 1, verbs.AccessRemoteRead) != nil || key.RKey() != 7 || key.Deregister() != nil {
			bad++
		}
	}
	grant()
	require.Zero(t, testing.AllocsPerRun(1000, grant))
	require.Zero(t, bad)
	require.Zero(t, mr.InFlight())
	_, err = qp.Close()
	require.NoError(t, err)
	require.NoError(t, mr.Deregister())
	require.NoError(t, cq.Close())
	require.NoError(t, qp.PD().Close())
	require.NoError(t, qp.Device().Close())
}
