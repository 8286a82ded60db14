package verbstest

import (
	"time"

	"github.com/stretchr/testify/require"

	"github.com/argonaut-rdma/argonaut/verbs"
	"github.com/argonaut-rdma/argonaut/verbs/driver"
)

var srqTests = []subtest{
	{"SRQ", srqShared},
	{"SRQOutlivesQP", srqOutlivesQP},
	{"SRQCutMessages", srqCutMessages},
	{"SRQLimitEvent", srqLimitEvent},
	{"SRQFullAndBusy", srqFullAndBusy},
}

const noSRQ = "the device has no shared receive queues"

// senders connects n dialing ends to ends that share the SRQ of the first.
func (e *env) senders(n, depth int) []pair {
	e.Helper()
	e.need(e.caps().SRQ, noSRQ)
	o := pairOpts{depth: depth, sges: 1}
	shared := o
	shared.srq = depth
	var pairs []pair
	// The receive CQ has to take the SRQ once and the sends of every QP.
	first := e.end("b", e.acceptor(), shared)
	for i := range n {
		b := first
		if i > 0 {
			bo := shared
			bo.with = func(x *end, c *verbs.QPConfig) {
				x.sq = e.queue(first.dev, depth)
				c.SendCQ = x.sq.cq
			}
			b = first.sibling("b", bo)
		}
		p := pair{e.end("a", e.dialer(), o), b}
		p.connect(driver.ConnParam{})
		pairs = append(pairs, p)
	}
	return pairs
}

// srqShared has QPs share an SRQ: every message lands in a receive of its own,
// whichever QP it came on, and completes with that QP's number.
func srqShared(e *env) {
	const depth, n, qps = 32, 5000, 4
	pairs := e.senders(qps, depth)
	b := pairs[0].b
	inbox := b.mem(depth*n, accLocal)
	post := func(i int) {
		b.postRecv(verbs.RecvWR{WRID: uint64(i), SGEs: []verbs.SGE{inbox.sge(i*n, n)}})
	}
	for i := range depth {
		post(i)
	}
	var srcs []*memory
	for _, p := range pairs {
		srcs = append(srcs, p.a.mem(n, 0))
	}
	for round := range uint64(e.short(200)) {
		for i, p := range pairs {
			fill(srcs[i].b, round<<8|uint64(i))
			p.a.post(signaled(round, driver.OpSend, srcs[i].sge(0, n-i)))
		}
		seen := map[uint32]bool{}
		for range pairs {
			wc := b.rq.next()
			require.Equal(e, driver.StatusSuccess, wc.Status)
			require.Equal(e, driver.OpRecv, wc.Opcode)
			require.False(e, seen[wc.QPN])
			seen[wc.QPN] = true
			for i, p := range pairs {
				if p.b.qp.QPN() == wc.QPN {
					require.EqualValues(e, n-i, wc.ByteLen)
					got := inbox.b[int(wc.WRID)*n:][:wc.ByteLen]
					require.NoError(e, isPattern(got, round<<8|uint64(i)))
				}
			}
			post(int(wc.WRID))
		}
		require.Len(e, seen, qps)
		for _, p := range pairs {
			p.a.sq.good(round, driver.OpSend)
		}
	}
	require.Equal(e, depth, b.srq.Posted())
}

// srqOutlivesQP breaks one of the QPs of an SRQ: the entries serve the others.
func srqOutlivesQP(e *env) {
	const depth = 8
	pairs := e.senders(2, depth)
	b := pairs[0].b
	inbox := b.mem(depth*10, accLocal)
	for i := range depth {
		b.postRecv(verbs.RecvWR{WRID: uint64(i), SGEs: []verbs.SGE{inbox.sge(i*10, 10)}})
	}
	pairs[0].a.post(signaled(1, driver.OpSend))
	b.rq.good(0, driver.OpRecv)
	pairs[0].a.sq.good(1, driver.OpSend)
	require.NoError(e, pairs[0].b.qp.SetError())
	pairs[0].a.gone()
	lost, err := pairs[0].b.qp.Close() // what it had taken
	require.NoError(e, err)
	// On some devices a QP that fails takes an entry or two with it.
	flushed := 0
	for i := range uint64(depth - 4) {
		pairs[1].a.post(signaled(i, driver.OpSend))
		pairs[1].a.sq.good(i, driver.OpSend)
		wc := b.rq.next()
		for wc.Status == driver.StatusWRFlushErr {
			flushed++
			wc = b.rq.next()
		}
		require.Equal(e, driver.StatusSuccess, wc.Status)
		require.Equal(e, pairs[1].b.qp.QPN(), wc.QPN)
	}
	require.LessOrEqual(e, flushed+len(lost), 2)
	for _, p := range pairs {
		for _, x := range []*end{p.a, p.b} {
			more, err := x.qp.Close()
			require.NoError(e, err)
			if x == p.b && p != pairs[0] {
				lost = append(lost, more...)
			}
		}
	}
	require.NotZero(e, inbox.mr.InFlight())
	orphans, err := b.srq.Close()
	require.NoError(e, err)
	require.Len(e, orphans, depth-1-(depth-4)-flushed-len(lost), "entries lost or made up")
	for _, o := range orphans {
		require.True(e, o.Recv)
	}
	require.Zero(e, inbox.mr.InFlight())
	orphans, err = b.srq.Close()
	require.NoError(e, err)
	require.Empty(e, orphans)
}

// srqCutMessages has senders end in the middle of a message: the entry that the
// receiver had taken for it comes back, and others receive with it.
func srqCutMessages(e *env) {
	const depth, size = 2, 4 << 20
	cuts := e.short(24)
	pairs := e.senders(cuts+1, depth)
	b := pairs[0].b
	inbox := b.mem(size, accLocal) // of all entries
	free := []uint64{0, 1}
	cut := 0
	for i, p := range pairs[:cuts] {
		for _, id := range free {
			b.postRecv(verbs.RecvWR{WRID: id, SGEs: []verbs.SGE{inbox.sge(0, size)}})
		}
		free = free[:0]
		src := p.a.mem(size, 0)
		p.a.post(signaled(1, driver.OpSend, src.sge(0, size)))
		for wait, begin := time.Duration(i%8)*200*time.Microsecond, time.Now(); time.Since(begin) < wait; {
			e.yield()
		}
		_, err := p.a.qp.Close()
		require.NoError(e, err)
		p.b.gone()
		orphans, err := p.b.qp.Close()
		require.NoError(e, err)
		for _, o := range orphans {
			free = append(free, o.WRID)
		}
		for {
			wc, ok, err := b.rq.poll()
			require.NoError(e, err)
			if !ok {
				break
			}
			free = append(free, wc.WRID)
			if wc.Status != driver.StatusSuccess {
				cut++
			}
		}
		cut += len(orphans)
		e.Logf("%d: %v come back, %d orphans", i, free, len(orphans))
	}
	e.Logf("%d of %d messages had taken an entry when they were cut", cut, cuts)
	if e.caps().Provider == "iwarp" && !e.quick() { // where all do
		require.Positive(e, cut)
	}
	for _, id := range free {
		b.postRecv(verbs.RecvWR{WRID: id})
	}
	p := pairs[cuts]
	for i := range uint64(depth) {
		p.a.post(signaled(i, driver.OpSend))
		p.a.sq.good(i, driver.OpSend)
		require.Equal(e, driver.StatusSuccess, b.rq.next().Status)
	}
}

func srqLimitEvent(e *env) {
	const depth = 16
	pairs := e.senders(1, depth)
	e.need(e.caps().SRQLimit, "the device has no SRQ limit event")
	a, b := pairs[0].a, pairs[0].b
	for i := range depth {
		b.postRecv(verbs.RecvWR{WRID: uint64(i)})
	}
	send := func(i int) {
		a.post(signaled(uint64(i), driver.OpSend))
		a.sq.good(uint64(i), driver.OpSend)
		b.rq.next()
	}
	events := func() (n int) {
		for {
			select {
			case ev := <-b.events:
				if ev.Type == driver.EventSRQLimitReached {
					require.Equal(e, b.srq, ev.SRQ)
					n++
				}
			default:
				return n
			}
		}
	}
	require.NoError(e, b.srq.SetLimit(depth/2))
	for i := range depth / 2 { // 16 to 8 entries: not below 8
		send(i)
	}
	require.Zero(e, events(), "the limit is not reached")
	send(8)
	b.event(driver.EventSRQLimitReached)
	for i := range 4 {
		send(9 + i)
	}
	require.Zero(e, events(), "the event comes once per arming")
	for i := range depth - 3 {
		b.postRecv(verbs.RecvWR{WRID: uint64(i)})
	}
	require.NoError(e, b.srq.SetLimit(depth))
	send(1)
	b.event(driver.EventSRQLimitReached)
}

func srqFullAndBusy(e *env) {
	const depth = 8
	pairs := e.senders(1, depth)
	b := pairs[0].b
	inbox := b.mem(10, accLocal)
	wrs := make([]verbs.RecvWR, depth+3)
	for i := range wrs {
		wrs[i] = verbs.RecvWR{WRID: uint64(i), SGEs: []verbs.SGE{inbox.sge(0, 10)}}
	}
	n, err := b.srq.PostRecv(wrs)
	require.ErrorIs(e, err, verbs.ErrQueueFull)
	require.Equal(e, depth, n)
	require.Equal(e, depth, b.srq.References(inbox.mr))
	_, err = b.qp.PostRecv(wrs[:1])
	require.ErrorIs(e, err, verbs.ErrInvalid, "the QP has no receive queue of its own")
	var busy *verbs.BusyError
	require.ErrorAs(e, inbox.mr.Deregister(), &busy)
	require.Equal(e, depth, busy.SRQs)
	_, err = b.srq.Close()
	require.ErrorAs(e, err, &busy)
	require.Len(e, busy.Children, 1)
	require.Equal(e, b.qp.QPN(), busy.Children[0].QPN)
	pairs[0].a.post(signaled(1, driver.OpSend)) // refusals have changed nothing
	b.rq.good(0, driver.OpRecv)
	pairs[0].a.sq.good(1, driver.OpSend)
	_, err = b.qp.Close()
	require.NoError(e, err)
	orphans, err := b.srq.Close()
	require.NoError(e, err)
	require.Len(e, orphans, depth-1)
}
