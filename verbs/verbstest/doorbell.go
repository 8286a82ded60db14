package verbstest

import (
	"github.com/stretchr/testify/require"

	"github.com/argonaut-rdma/argonaut/verbs"
	"github.com/argonaut-rdma/argonaut/verbs/driver"
)

var doorbellTests = []subtest{
	{"Doorbell", doorbell},
	{"DoorbellOfAnyPost", doorbellOfAnyPost},
	{"DeferredIsFlushed", deferredIsFlushed},
	{"DoorbellAtAnyTime", doorbellAtAnyTime},
}

// deferred is a signalled SEND of nothing.
func deferred(i int) verbs.SendWR {
	return verbs.SendWR{WRID: uint64(i), Opcode: driver.OpSend, Flags: driver.SendSignaled | driver.SendDeferred}
}

// doorbell posts requests one at a time, and rings once: they all go out, in order.
func doorbell(e *env) {
	const n = 12
	p := e.pair(pairOpts{})
	for range e.short(100) {
		for i := range n {
			p.b.postRecv(verbs.RecvWR{WRID: uint64(i)})
		}
		for i := range n {
			p.a.post(deferred(i))
		}
		p.a.qp.Doorbell()
		for i := range n {
			p.b.rq.good(uint64(i), driver.OpRecv)
			p.a.sq.good(uint64(i), driver.OpSend)
		}
	}
}

// doorbellOfAnyPost has a request without the flag ring for those before it, of the
// same call or of earlier ones.
func doorbellOfAnyPost(e *env) {
	p := e.pair(pairOpts{})
	now := func(i int) verbs.SendWR { return signaled(uint64(i), driver.OpSend) }
	for i := range 6 {
		p.b.postRecv(verbs.RecvWR{WRID: uint64(i)})
	}
	p.a.post(deferred(0))
	p.a.post(deferred(1), now(2))
	for i := range 3 {
		p.b.rq.good(uint64(i), driver.OpRecv)
		p.a.sq.good(uint64(i), driver.OpSend)
	}
	p.a.post(now(3), deferred(4)) // the last one decides
	p.a.qp.Doorbell()
	p.a.qp.Doorbell()
	for i := range 2 {
		p.b.rq.good(uint64(3+i), driver.OpRecv)
		p.a.sq.good(uint64(3+i), driver.OpSend)
	}
}

// deferredIsFlushed ends the QP with requests that nobody has rung for: they
// complete as all others do.
func deferredIsFlushed(e *env) {
	const n = 5
	p := e.pair(pairOpts{})
	for i := range n {
		p.b.postRecv(verbs.RecvWR{WRID: uint64(i)})
	}
	for i := range n {
		p.a.post(deferred(i))
	}
	require.NoError(e, p.a.qp.SetError())
	for i := range n {
		wc := p.a.sq.next()
		require.Equal(e, uint64(i), wc.WRID)
		require.Contains(e, []verbs.WCStatus{driver.StatusWRFlushErr, driver.StatusSuccess}, wc.Status, "it may have begun with it")
	}
	p.a.qp.Doorbell()
}

// doorbellAtAnyTime rings where there is nothing to begin.
func doorbellAtAnyTime(e *env) {
	x := e.end("x", e.dialer(), pairOpts{})
	x.qp.Doorbell()
	p := e.pair(pairOpts{})
	p.a.qp.Doorbell()
	require.NoError(e, p.a.qp.Disconnect())
	p.a.qp.Doorbell()
	p.b.event(driver.EventDisconnected)
	p.b.qp.Doorbell()
	_, err := p.a.qp.Close()
	require.NoError(e, err)
	p.a.qp.Doorbell()
}
