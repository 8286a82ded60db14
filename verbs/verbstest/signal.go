package verbstest

import (
	"errors"

	"github.com/stretchr/testify/require"

	"github.com/argonaut-rdma/argonaut/verbs"
	"github.com/argonaut-rdma/argonaut/verbs/driver"
)

var signalTests = []subtest{
	{"SelectiveSignalling", selectiveSignalling},
	{"CompletionOrder", completionOrder},
	{"SendQueueFull", sendQueueFull},
	{"RecvQueueFull", recvQueueFull},
	{"ReceiveOrder", receiveOrder},
	{"SharedCQ", sharedCQ},
}

// postAll posts wrs, and polls when the queue is full. What it polls stays for
// x.sq.next.
func (x *end) postAll(wrs []verbs.SendWR) {
	x.Helper()
	for {
		n, err := x.qp.PostSend(wrs)
		if wrs = wrs[n:]; err == nil {
			require.Empty(x, wrs)
			return
		}
		require.ErrorIs(x, err, verbs.ErrQueueFull)
		x.sq.collect()
	}
}

// collect waits until something happens on the CQ and keeps what it polls.
func (q *queue) collect() {
	q.e.Helper()
	for range 2 {
		var buf [16]verbs.WC
		n, err := q.cq.Poll(buf[:])
		require.NoError(q.e, err)
		if n > 0 {
			q.pend = append(append([]verbs.WC(nil), q.pend...), buf[:n]...)
			return
		}
		require.NoError(q.e, q.cq.ReqNotify(false))
	}
	_, err := q.ch.Wait(q.e.ctx)
	require.NoError(q.e, err)
}

// selectiveSignalling sends ten times the depth of the queue in groups of which
// the last request alone is signalled: it alone completes, and it retires the
// others.
func selectiveSignalling(e *env) {
	const depth, group, n = 24, 6, 8000
	p := e.pair(pairOpts{depth: depth})
	src, dst, window, back := p.a.mem(n, 0), p.b.mem(depth*n, accLocal), p.b.mem(2*n, accRemote), p.a.sink(n)
	fill(src.b, 3)
	recv := func(i int) verbs.RecvWR {
		return verbs.RecvWR{WRID: uint64(i), SGEs: []verbs.SGE{dst.sge(i%depth*n, n)}}
	}
	for i := range depth {
		p.b.postRecv(recv(i))
	}
	sent, received := 0, 0
	for g := range uint64(e.short(100)) {
		var wrs []verbs.SendWR
		for i := range group {
			wr := verbs.SendWR{WRID: g<<8 | uint64(i), Opcode: driver.OpSend, SGEs: []verbs.SGE{src.sge(0, n-i)}}
			switch (int(g) + i) % 3 {
			case 1:
				wr = window.to(wr, 0)
				wr.Opcode = driver.OpWrite
			case 2:
				wr = window.to(wr, n) // what nobody writes
				wr.Opcode, wr.SGEs = driver.OpRead, []verbs.SGE{back.sge(0, n-i)}
			}
			if wr.Opcode == driver.OpSend {
				sent++
			}
			wrs = append(wrs, wr)
		}
		last := &wrs[group-1]
		last.Flags = driver.SendSignaled
		p.a.postAll(wrs)
		p.a.sq.good(last.WRID, last.Opcode)
		for ; received < sent; received++ {
			p.b.rq.good(uint64(received), driver.OpRecv)
			require.NoError(e, isPattern(dst.b[received%depth*n:][:n-group], 3))
			p.b.postRecv(recv(received + depth))
		}
	}
	p.a.idle()
	p.a.sq.empty()
}

// idle waits until nothing of the send queue is outstanding: un-signalled READs
// are completed by the core's own completions, which somebody has to poll for.
func (x *end) idle() {
	x.Helper()
	// The last un-signalled SENDs and WRITEs are retired by this one.
	x.postAll([]verbs.SendWR{{WRID: fenceID, Opcode: driver.OpWrite, Flags: driver.SendSignaled}})
	x.sq.good(fenceID, driver.OpWrite)
	for {
		info, err := x.qp.Query()
		require.NoError(x, err)
		if info.SendPosted == 0 {
			return
		}
		x.sq.collect()
	}
}

// completionOrder posts requests of all kinds and sizes, each signalled.
func completionOrder(e *env) {
	const depth = 24
	p := e.pair(pairOpts{depth: depth})
	lengths := []int{200_000, 1, 4096, 0, 70_000, 64, 1 << 20, 3}
	src, window, back, inbox := p.a.mem(1<<20, 0), p.b.mem(2<<20, accRemote), p.a.sink(1<<20), p.b.mem(1<<20, accLocal)
	inOrder := p.a.caps.InOrderCompletions
	for round := range e.short(20) {
		var wrs []verbs.SendWR
		for i := range depth {
			n := lengths[(i+round)%len(lengths)]
			wr := window.to(signaled(uint64(i), driver.OpSend, src.sge(0, n)), 0)
			switch (i + round) % 3 {
			case 0:
				wr.Opcode = driver.OpWrite
			case 1:
				wr = window.to(wr, 1<<20)
				wr.Opcode, wr.SGEs = driver.OpRead, []verbs.SGE{back.sge(0, n)}
			default:
				p.b.postRecv(verbs.RecvWR{WRID: uint64(i), SGEs: []verbs.SGE{inbox.sge(0, 1<<20)}})
			}
			wrs = append(wrs, wr)
		}
		p.a.post(wrs...)
		seen, last, lastRead := map[uint64]bool{}, -1, -1
		for range depth {
			wc := p.a.sq.next()
			require.Equal(e, driver.StatusSuccess, wc.Status)
			require.Less(e, wc.WRID, uint64(depth))
			require.False(e, seen[wc.WRID], "request %d completed twice", wc.WRID)
			require.Equal(e, wrs[wc.WRID].Opcode, wc.Opcode)
			seen[wc.WRID] = true
			// Without order across operations there still is order among READs
			// that bring something, and among the others.
			prev := &last
			if wc.Opcode == driver.OpRead && !inOrder {
				if wrs[wc.WRID].SGEs[0].Length == 0 {
					continue
				}
				prev = &lastRead
			}
			require.Greater(e, int(wc.WRID), *prev, "completions out of order")
			*prev = int(wc.WRID)
		}
		p.a.sq.empty()
		for i := range depth {
			if (i+round)%3 == 2 {
				p.b.rq.good(uint64(i), driver.OpRecv)
			}
		}
	}
}

// sendQueueFull posts more than the queue takes: it takes as many as it has
// entries, in order, and says so.
func sendQueueFull(e *env) {
	const depth, posted = 16, 200
	p := e.pair(pairOpts{depth: depth})
	window := p.b.mem(posted, accWrite)
	src := p.a.mem(posted, 0)
	fill(src.b, 9)
	wrs := make([]verbs.SendWR, posted)
	for i := range wrs {
		wrs[i] = window.to(signaled(uint64(i), driver.OpWrite, src.sge(i, 1)), i)
	}
	n, err := p.a.qp.PostSend(wrs)
	require.ErrorIs(e, err, verbs.ErrQueueFull)
	require.Equal(e, depth, n)
	n, err = p.a.qp.PostSend(wrs[depth:])
	require.ErrorIs(e, err, verbs.ErrQueueFull, "entries are free when their completion is polled, not before")
	require.Zero(e, n)
	p.a.sq.good(0, driver.OpWrite)
	next := depth
	for i := range posted {
		if i > 0 {
			p.a.sq.good(uint64(i), driver.OpWrite) // frees entries: those of all that are polled with it
		}
		if next < posted {
			n, err := p.a.qp.PostSend(wrs[next:])
			if next += n; next < posted {
				require.ErrorIs(e, err, verbs.ErrQueueFull)
			}
			require.LessOrEqual(e, next-(i+1+len(p.a.sq.pend)), depth, "more outstanding than the queue has entries")
		}
	}
	p.a.sq.empty()
	p.a.fence(p.b)
	require.NoError(e, isPattern(window.b, 9))
}

func recvQueueFull(e *env) {
	const depth = 16
	p := e.pair(pairOpts{depth: depth})
	inbox := p.b.mem(depth, accLocal)
	wrs := make([]verbs.RecvWR, depth+5)
	for i := range wrs {
		wrs[i] = verbs.RecvWR{WRID: uint64(i), SGEs: []verbs.SGE{inbox.sge(i%depth, 1)}}
	}
	n, err := p.b.qp.PostRecv(wrs)
	require.ErrorIs(e, err, verbs.ErrQueueFull)
	require.Equal(e, depth, n)
	p.a.post(signaled(1, driver.OpSend))
	p.a.sq.good(1, driver.OpSend)
	p.b.rq.good(0, driver.OpRecv)
	n, err = p.b.qp.PostRecv(wrs[depth:])
	require.ErrorIs(e, err, verbs.ErrQueueFull)
	require.Equal(e, 1, n)
	var op *verbs.OpError
	require.True(e, errors.As(err, &op), "%T", err)
	require.Equal(e, p.b.qp.QPN(), op.QPN)
}

// receiveOrder checks that messages fill the receives in the order of both.
func receiveOrder(e *env) {
	const depth, n = 32, 1500
	p := e.pair(pairOpts{depth: depth})
	src, dst := p.a.mem(depth*n, 0), p.b.mem(depth*n, accLocal)
	for round := range uint64(e.short(50)) {
		fill(src.b, round)
		clear(dst.b)
		for i := range depth {
			p.b.postRecv(verbs.RecvWR{WRID: uint64(i), SGEs: []verbs.SGE{dst.sge(i*n, n)}})
		}
		for i := range depth {
			p.a.post(signaled(uint64(i), driver.OpSend, src.sge(i*n, n)))
		}
		for i := range depth {
			p.b.rq.good(uint64(i), driver.OpRecv)
			p.a.sq.good(uint64(i), driver.OpSend)
		}
		require.NoError(e, sameBytes(dst.b, src.b))
	}
}

// sharedCQ has one CQ for both queues of a QP: completions say which they are.
func sharedCQ(e *env) {
	const depth = 8
	var q *queue
	p := e.pair(pairOpts{depth: depth, with: func(x *end, c *verbs.QPConfig) {
		if x.name == "a" {
			q = e.queue(x.dev, 2*depth)
			x.sq, x.rq = q, q
			c.SendCQ, c.RecvCQ = q.cq, nil
		}
	}})
	for i := range uint64(e.short(100)) {
		p.b.postRecv(verbs.RecvWR{WRID: i})
		p.a.postRecv(verbs.RecvWR{WRID: i})
		p.a.post(signaled(i, driver.OpSend))
		q.good(i, driver.OpSend)
		p.b.rq.good(i, driver.OpRecv)
		p.b.post(signaled(i, driver.OpSend))
		q.good(i, driver.OpRecv)
		p.b.sq.good(i, driver.OpSend)
	}
	q.empty()
}
