package verbstest

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/argonaut-rdma/argonaut/verbs"
	"github.com/argonaut-rdma/argonaut/verbs/driver"
)

var flushTests = []subtest{
	{"FlushSends", flushSends},
	{"FlushReceives", flushReceives},
	{"FlushUnconnected", flushUnconnected},
	{"PostInWrongState", postInWrongState},
	{"PeerError", peerError},
	{"Disconnect", disconnect},
	{"DrainWaitsForPolling", drainWaits},
	{"CQDrain", cqDrain},
	{"CloseGivesOrphans", closeGivesOrphans},
}

// flushSends puts a QP with requests of all kinds under way to ERR: each is
// completed once, in order, the first ones with success and after the first
// flushed one all flushed, the un-signalled among them.
func flushSends(e *env) {
	const depth, n = 24, 300_000
	for round := range e.short(20) {
		p := e.pair(pairOpts{depth: depth})
		src, window, back := p.a.mem(n, 0), p.b.mem(2*n, accRemote), p.a.sink(n)
		for range depth / 3 {
			p.b.postRecv(verbs.RecvWR{WRID: 1, SGEs: []verbs.SGE{window.sge(0, n)}})
		}
		var wrs []verbs.SendWR
		for i := range depth {
			wr := window.to(verbs.SendWR{WRID: uint64(i), Opcode: driver.OpSend, SGEs: []verbs.SGE{src.sge(0, n)}}, 0)
			switch i % 3 {
			case 1:
				wr.Opcode = driver.OpWrite
			case 2:
				wr = window.to(wr, n)
				wr.Opcode, wr.SGEs = driver.OpRead, []verbs.SGE{back.sge(0, n)}
			}
			if i%2 == 0 {
				wr.Flags = driver.SendSignaled
			}
			wrs = append(wrs, wr)
		}
		p.a.post(wrs...)
		for range round { // sometimes after some have completed
			p.a.sq.collect()
			if len(p.a.sq.pend) > 4 {
				break
			}
		}
		require.NoError(e, p.a.qp.SetError())
		flushed, done := e.flushedInOrder(p.a, wrs)
		if p.a.caps.FlushCompletes {
			require.NoError(e, p.a.qp.Drain(e.ctx))
			p.a.sq.empty()
		}
		e.Logf("round %d: %d of %d flushed", round, flushed, depth)
		require.Equal(e, driver.QPStateErr, p.a.qp.State())
		orphans, err := p.a.qp.Close()
		require.NoError(e, err)
		for _, o := range orphans { // those that no completion has told of
			require.False(e, done[o.WRID], "request %d came back twice", o.WRID)
			if p.a.caps.FlushCompletes {
				require.Zero(e, wrs[o.WRID].Flags&driver.SendSignaled)
			}
			done[o.WRID] = true
		}
		for i, wr := range wrs {
			if wr.Flags&driver.SendSignaled != 0 {
				require.True(e, done[uint64(i)], "signalled request %d did not come back", i)
			}
		}
		_, err = p.b.qp.Close()
		require.NoError(e, err)
	}
}

// flushedInOrder polls until x has nothing outstanding and checks what it polls
// against wrs. It returns how many were flushed, and which have completed.
func (e *env) flushedInOrder(x *end, wrs []verbs.SendWR) (flushed int, done map[uint64]bool) {
	e.Helper()
	done = map[uint64]bool{}
	last, lastRead := -1, -1
	quiet := time.Now()
	for {
		wc, ok, err := x.sq.poll()
		require.NoError(e, err)
		if !ok {
			// What the last poll has swallowed, the core has asked for and not we.
			info, err := x.qp.Query()
			require.NoError(e, err)
			switch {
			case info.SendPosted == 0:
				return flushed, done
			case x.caps.FlushCompletes:
				x.sq.collect()
			case time.Since(quiet) > flushQuiet:
				return flushed, done
			default:
				x.yield()
			}
			continue
		}
		quiet = time.Now()
		i := int(wc.WRID)
		require.Less(e, i, len(wrs))
		require.False(e, done[wc.WRID], "request %d completed twice", i)
		done[wc.WRID] = true
		prev := &last
		if wrs[i].Opcode == driver.OpRead && !x.caps.InOrderCompletions {
			prev = &lastRead
		}
		require.Greater(e, i, *prev, "completions out of order")
		*prev = i
		switch wc.Status {
		case driver.StatusSuccess:
			require.NotZero(e, wrs[i].Flags&driver.SendSignaled, "un-signalled request %d completed with success", i)
			if x.caps.InOrderCompletions {
				require.Zero(e, flushed, "request %d succeeded after a flushed one", i)
			}
		case driver.StatusWRFlushErr:
			flushed++
		default:
			require.Equal(e, driver.StatusWRFlushErr, wc.Status)
		}
	}
}

func flushReceives(e *env) {
	const depth, n = 16, 100
	p := e.pair(pairOpts{depth: depth})
	inbox := p.b.mem(depth*n, accLocal)
	guardFill(inbox.b)
	for i := range depth {
		p.b.postRecv(verbs.RecvWR{WRID: uint64(i), SGEs: []verbs.SGE{inbox.sge(i*n, n)}})
	}
	p.a.post(signaled(1, driver.OpSend), signaled(2, driver.OpSend))
	p.b.rq.good(0, driver.OpRecv)
	p.b.rq.good(1, driver.OpRecv)
	require.NoError(e, p.b.qp.SetError())
	e.flushes(p.b, 2, depth)
	require.NoError(e, untouched(inbox.b))
	require.NoError(e, p.b.qp.SetError(), "ERR to ERR")
	p.a.gone()
	p.b.gone()
}

// flushes expects the flush of the receives [from, to) in order and no more.
func (e *env) flushes(x *end, from, to int) {
	e.Helper()
	for i := from; i < to; i++ {
		wc := x.rq.next()
		require.Equal(e, driver.StatusWRFlushErr, wc.Status)
		require.EqualValues(e, i, wc.WRID)
		require.Equal(e, x.qp.QPN(), wc.QPN)
		var wcErr *verbs.WCError
		require.ErrorAs(e, verbs.WCErr(&wc), &wcErr)
	}
	x.rq.empty()
}

// flushUnconnected flushes the receives of a QP that was never connected.
func flushUnconnected(e *env) {
	x := e.end("a", e.dialer(), pairOpts{})
	inbox := x.mem(10, accLocal)
	for i := range 5 {
		x.postRecv(verbs.RecvWR{WRID: uint64(i), SGEs: []verbs.SGE{inbox.sge(0, 10)}})
	}
	require.Equal(e, driver.QPStateInit, x.qp.State())
	require.NoError(e, x.qp.SetError())
	e.flushes(x, 0, 5)
}

func postInWrongState(e *env) {
	x := e.end("c", e.dialer(), pairOpts{})
	_, err := x.qp.PostSend([]verbs.SendWR{signaled(1, driver.OpSend)})
	require.ErrorIs(e, err, verbs.ErrQPState, "a send in INIT")
	p := e.pair(pairOpts{})
	require.Equal(e, driver.QPStateRTS, p.a.qp.State())
	require.NoError(e, p.a.qp.SetError())
	n, err := p.a.qp.PostSend([]verbs.SendWR{signaled(1, driver.OpSend)})
	require.ErrorIs(e, err, verbs.ErrQPState, "a send in ERR")
	require.Zero(e, n)
	n, err = p.a.qp.PostRecv([]verbs.RecvWR{{WRID: 1}})
	require.ErrorIs(e, err, verbs.ErrQPState, "a receive in ERR")
	require.Zero(e, n)
	_, err = p.a.qp.Close()
	require.NoError(e, err)
	_, err = p.a.qp.PostSend([]verbs.SendWR{signaled(1, driver.OpSend)})
	require.ErrorIs(e, err, verbs.ErrClosed, "a send on a closed QP")
	_, err = p.a.qp.PostRecv([]verbs.RecvWR{{WRID: 1}})
	require.ErrorIs(e, err, verbs.ErrClosed, "a receive on a closed QP")
}

// peerError puts one end to ERR: the other learns of it, and its receives are
// flushed without anyone asking.
func peerError(e *env) {
	p := e.pair(pairOpts{})
	for i := range 4 {
		p.b.postRecv(verbs.RecvWR{WRID: uint64(i)})
	}
	require.NoError(e, p.a.qp.SetError())
	p.b.gone()
	e.flushes(p.b, 0, 4)
	p.b.event(driver.EventDisconnected)
	require.Equal(e, driver.QPStateErr, p.b.qp.State())
	_, err := p.b.qp.PostSend([]verbs.SendWR{signaled(1, driver.OpSend)})
	require.ErrorIs(e, err, verbs.ErrQPState)
}

// disconnect ends connections gracefully while messages are under way: all of
// them arrive.
func disconnect(e *env) {
	const depth, n = 16, 200_000
	for round := range uint64(e.short(20)) {
		p := e.pair(pairOpts{depth: depth})
		src, dst := p.a.mem(n, 0), p.b.mem(depth*n, accLocal)
		fill(src.b, round)
		for i := range depth {
			p.b.postRecv(verbs.RecvWR{WRID: uint64(i), SGEs: []verbs.SGE{dst.sge(i*n, n)}})
		}
		for i := range depth - 2 {
			p.a.post(signaled(uint64(i), driver.OpSend, src.sge(0, n)))
		}
		require.NoError(e, p.a.qp.Disconnect())
		_, err := p.a.qp.PostSend([]verbs.SendWR{signaled(1, driver.OpSend)})
		require.ErrorIs(e, err, verbs.ErrQPState)
		for i := range depth - 2 {
			p.b.rq.good(uint64(i), driver.OpRecv)
			require.NoError(e, isPattern(dst.b[i*n:(i+1)*n], round))
			p.a.sq.good(uint64(i), driver.OpSend)
		}
		e.flushes(p.b, depth-2, depth)
		p.b.gone()
		p.a.gone()
		require.NoError(e, p.a.qp.Disconnect(), "once more")
		for _, x := range []*end{p.a, p.b} {
			orphans, err := x.qp.Close()
			require.NoError(e, err)
			require.Empty(e, orphans)
		}
	}
}

// drainWaits checks that Drain returns when the last completion was polled, by
// somebody else, and not before.
func drainWaits(e *env) {
	p := e.pair(pairOpts{})
	for i := range 8 {
		p.a.postRecv(verbs.RecvWR{WRID: uint64(i)})
	}
	require.NoError(e, p.a.qp.SetError())
	ctx, cancel := context.WithCancel(e.ctx)
	cancel()
	require.ErrorIs(e, p.a.qp.Drain(ctx), context.Canceled, "nothing was polled")
	done := make(chan error, 1)
	go func() { done <- p.a.qp.Drain(e.ctx) }() // ends with the drain
	for i := range 8 {
		select {
		case err := <-done:
			e.Fatalf("drained with %d completions left: %v", 8-i, err)
		default:
		}
		wc := p.a.rq.next()
		require.Equal(e, driver.StatusWRFlushErr, wc.Status)
		if i < 7 {
			// next may have polled more than it returned.
			info, err := p.a.qp.Query()
			require.NoError(e, err)
			if info.RecvPosted == 0 {
				break
			}
		}
	}
	require.NoError(e, <-done)
}

func cqDrain(e *env) {
	p := e.pair(pairOpts{})
	for i := range 8 {
		p.a.postRecv(verbs.RecvWR{WRID: uint64(i)})
	}
	require.NoError(e, p.a.qp.SetError())
	var got []uint64
	require.NoError(e, p.a.rq.cq.Drain(e.ctx, func(wc verbs.WC) { got = append(got, wc.WRID) }))
	require.Equal(e, []uint64{0, 1, 2, 3, 4, 5, 6, 7}, got)
	require.NoError(e, p.a.qp.Drain(e.ctx))
}

// flushQuiet is how long a device that forgets requests may be quiet before the
// rest is taken for forgotten. Nothing depends on it but how much comes as a
// completion, and how much as an orphan.
const flushQuiet = 200 * time.Millisecond

// flushed returns the next completion of a send queue that is being flushed. On
// a device that forgets requests it is false when none has come for a while: what
// is then missing Close returns, whether or not it would still have completed.
func (x *end) flushed() (wc verbs.WC, ok bool) {
	x.Helper()
	if x.caps.FlushCompletes {
		return x.sq.next(), true
	}
	return x.soon()
}

// soon returns the next completion of the send queue, if one comes soon.
func (x *end) soon() (wc verbs.WC, ok bool) {
	x.Helper()
	ctx, cancel := context.WithTimeout(x.ctx, flushQuiet)
	defer cancel()
	wc, err := x.sq.wait(ctx)
	require.NoError(x, x.ctx.Err(), "no completion came")
	if err != nil {
		require.ErrorIs(x, err, context.DeadlineExceeded)
	}
	return wc, err == nil
}

// closeGivesOrphans closes QPs with requests under way: each request comes back
// once, as a completion polled before or as an orphan.
func closeGivesOrphans(e *env) {
	const depth, n = 24, 100_000
	for round := range e.short(20) {
		p := e.pair(pairOpts{depth: depth})
		src, window := p.a.mem(n, 0), p.b.mem(n, accRemote)
		type key struct {
			wrid uint64
			recv bool
		}
		back := map[key]int{}
		for i := range depth {
			p.a.postRecv(verbs.RecvWR{WRID: uint64(i), SGEs: []verbs.SGE{}})
			p.a.post(window.to(signaled(uint64(i), driver.OpWrite, src.sge(0, n)), 0))
		}
		for range rand.IntN(depth) {
			p.a.sq.collect()
			if len(p.a.sq.pend) >= round%depth {
				break
			}
		}
		orphans, err := p.a.qp.Close()
		require.NoError(e, err)
		for _, o := range orphans {
			back[key{o.WRID, o.Recv}]++
		}
		for _, q := range []*queue{p.a.sq, p.a.rq} {
			for {
				wc, ok, err := q.poll()
				require.NoError(e, err)
				if !ok {
					break
				}
				back[key{wc.WRID, q == p.a.rq}]++
			}
		}
		require.Len(e, back, 2*depth, "requests lost or made up")
		for k, times := range back {
			require.Equal(e, 1, times, "request %+v came back more than once", k)
		}
		require.Zero(e, src.mr.InFlight())
		require.NoError(e, src.mr.Deregister())
		orphans, err = p.a.qp.Close()
		require.NoError(e, err)
		require.Empty(e, orphans, "a second Close gives nothing")
		_, err = p.b.qp.Close()
		require.NoError(e, err)
	}
}
