package verbstest

import (
	"runtime"

	"github.com/stretchr/testify/require"

	"github.com/argonaut-rdma/argonaut/verbs"
	"github.com/argonaut-rdma/argonaut/verbs/driver"
)

// noAllocations measures what a SEND, a WRITE and a READ allocate in steady
// state, at both ends and in the device: nothing.
func noAllocations(e *env) {
	const n = 4096
	p := e.pair(pairOpts{})
	src, dst, window, sink := p.a.mem(n, 0), p.b.mem(n, accLocal), p.b.mem(2*n, accRemote), p.a.sink(n)
	recvs := []verbs.RecvWR{{WRID: 1, SGEs: []verbs.SGE{dst.sge(0, n/2), dst.sge(n/2, n/2)}}}
	sends := []verbs.SendWR{
		window.to(verbs.SendWR{Opcode: driver.OpWrite, SGEs: []verbs.SGE{src.sge(0, n)}}, 0),
		window.to(signaled(3, driver.OpRead, sink.sge(0, n)), n),
		signaled(2, driver.OpSend, src.sge(0, n/4), src.sge(n/4, n/4)),
	}
	// Asleep on the channel, as an idle poller is; one that spins would keep
	// the network from being looked at where there is one processor.
	var failure error
	good := func(q *queue) {
		wc, err := q.wait(e.ctx)
		switch {
		case failure != nil:
		case err != nil:
			failure = err
		case wc.Status != driver.StatusSuccess:
			failure = verbs.WCErr(&wc)
		}
	}
	round := func() {
		if _, err := p.b.qp.PostRecv(recvs); err != nil {
			failure = err
		}
		if _, err := p.a.qp.PostSend(sends); err != nil {
			failure = err
		}
		good(p.b.rq)
		good(p.a.sq)
		good(p.a.sq)
	}
	for range 100 { // grow what grows once
		round()
	}
	rounds := e.short(3000)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range rounds {
		round()
	}
	runtime.ReadMemStats(&after)
	allocs := float64(after.Mallocs-before.Mallocs) / float64(rounds)
	require.NoError(e, failure)
	if raceEnabled {
		e.Logf("%v allocations a round, not judged under the race detector", allocs)
		return
	}
	// The runtime's own, timers and collector, are a few in all.
	require.Less(e, allocs, 0.1, "allocations per SEND, WRITE and READ")
}
