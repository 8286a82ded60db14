package verbstest

import (
	"net/netip"

	"github.com/stretchr/testify/require"

	"github.com/argonaut-rdma/argonaut/verbs"
	"github.com/argonaut-rdma/argonaut/verbs/driver"
)

var outOfBandTests = []subtest{
	{"OutOfBand", outOfBand},
	{"OutOfBandManyTimes", outOfBandManyTimes},
	{"OutOfBandRefusals", outOfBandRefusals},
	{"OutOfBandWrongState", outOfBandWrongState},
	{"OutOfBandPeerGone", outOfBandPeerGone},
	{"OutOfBandNotOffered", outOfBandNotOffered},
}

const noOutOfBand = "the device connects queue pairs through a connection manager only"

// outOfBandPair is two ends that are not connected, with their endpoints.
func (e *env) outOfBandPair(o pairOpts) (p pair, a, b verbs.QPEndpoint) {
	e.Helper()
	e.need(e.caps().OutOfBand, noOutOfBand)
	p = pair{e.end("a", e.dialer(), o), e.end("b", e.acceptor(), o)}
	a, b = p.a.endpoint(), p.b.endpoint()
	return p, a, b
}

func (x *end) endpoint() verbs.QPEndpoint {
	x.Helper()
	ep, err := x.qp.Endpoint()
	require.NoError(x, err)
	require.Equal(x, x.qp.QPN(), ep.QPN)
	require.Less(x, ep.PSN, uint32(1<<24))
	require.Contains(x, []int{256, 512, 1024, 2048, 4096}, ep.MTU)
	require.True(x, ep.GID.IsValid())
	again, err := x.qp.Endpoint()
	require.NoError(x, err)
	require.Equal(x, ep, again)
	return ep
}

// modify connects p.
func (p pair) modify(a, b verbs.QPEndpoint, rtr, rts verbs.ModifyAttr) {
	p.a.Helper()
	rtr.State, rts.State = driver.QPStateRTR, driver.QPStateRTS
	for _, x := range []struct {
		end    *end
		remote verbs.QPEndpoint
	}{{p.a, b}, {p.b, a}} {
		rtr.Remote = x.remote
		require.NoError(x.end, x.end.qp.Modify(rtr))
		require.Equal(x.end, driver.QPStateRTR, x.end.qp.State())
	}
	for _, x := range []*end{p.a, p.b} {
		require.NoError(x, x.qp.Modify(rts))
		require.Equal(x, driver.QPStateRTS, x.qp.State())
		info, err := x.qp.Query()
		require.NoError(x, err)
		require.Equal(x, driver.QPStateRTS, info.State)
		require.True(x, info.EverConnected)
	}
}

// exchange has data go both ways by every basic operation.
func (p pair) exchange(seed uint64) {
	e := p.a.env
	e.Helper()
	const n = 20000 // several packets
	for i, x := range []struct{ from, to *end }{{p.a, p.b}, {p.b, p.a}} {
		seed := seed + uint64(i)
		src, dst := x.from.mem(n, accRead), x.to.mem(n, accWrite)
		fill(src.b, seed)
		x.to.postRecv(verbs.RecvWR{WRID: 1, SGEs: []verbs.SGE{dst.sge(0, n)}})
		x.from.post(signaled(2, driver.OpSend, src.sge(0, n)))
		require.EqualValues(e, n, x.to.rq.good(1, driver.OpRecv).ByteLen)
		x.from.sq.good(2, driver.OpSend)
		require.NoError(e, isPattern(dst.b, seed))

		clear(dst.b)
		x.from.post(dst.to(signaled(3, driver.OpWrite, src.sge(0, n)), 0))
		x.from.sq.good(3, driver.OpWrite)
		x.from.fence(x.to)
		require.NoError(e, isPattern(dst.b, seed))

		sink := x.to.sink(n)
		x.to.post(src.to(signaled(4, driver.OpRead, sink.sge(0, n)), 0))
		x.to.sq.good(4, driver.OpRead)
		require.NoError(e, isPattern(sink.b, seed))
	}
}

// outOfBand connects with the defaults, and with every attribute set.
func outOfBand(e *env) {
	p, a, b := e.outOfBandPair(pairOpts{})
	require.NotEqual(e, a.QPN, b.QPN)
	require.NoError(e, p.a.qp.Modify(verbs.ModifyAttr{State: driver.QPStateInit}), "INIT to INIT")
	p.modify(a, b, verbs.ModifyAttr{}, verbs.ModifyAttr{})
	p.exchange(1)
	require.NoError(e, p.a.qp.SetError())
	require.Equal(e, driver.QPStateErr, p.a.qp.State())

	p, a, b = e.outOfBandPair(pairOpts{})
	p.modify(a, b,
		verbs.ModifyAttr{MTU: 256, IRD: 2, TrafficClass: 8, FlowLabel: 77, HopLimit: 3},
		verbs.ModifyAttr{ORD: 2, RetryCnt: 3, RNRRetry: 2, AckTimeout: 100e6})
	p.exchange(3)
}

// outOfBandManyTimes looks for what a connection leaves behind.
func outOfBandManyTimes(e *env) {
	for i := range uint64(e.short(50)) {
		p, a, b := e.outOfBandPair(pairOpts{})
		p.a.postRecv(verbs.RecvWR{WRID: 7})
		p.modify(a, b, verbs.ModifyAttr{}, verbs.ModifyAttr{})
		p.b.post(signaled(i, driver.OpSend))
		p.b.sq.good(i, driver.OpSend)
		p.a.rq.good(7, driver.OpRecv)
		for _, x := range []*end{p.a, p.b} {
			orphans, err := x.qp.Close()
			require.NoError(e, err)
			require.Empty(e, orphans)
			<-x.qp.Disconnected()
		}
	}
}

// outOfBandRefusals passes attributes that are wrong: nothing has changed then.
func outOfBandRefusals(e *env) {
	p, a, b := e.outOfBandPair(pairOpts{})
	rtr := verbs.ModifyAttr{State: driver.QPStateRTR, Remote: b}
	bad := func(change func(m *verbs.ModifyAttr)) verbs.ModifyAttr {
		m := rtr
		change(&m)
		return m
	}
	for _, m := range []verbs.ModifyAttr{
		{State: driver.QPStateErr}, {State: driver.QPStateReset}, {State: driver.QPStateSQD},
		{State: driver.QPStateInit, PKeyIndex: -1},
		{State: driver.QPStateRTR},
		bad(func(m *verbs.ModifyAttr) { m.Remote.QPN = 0 }),
		bad(func(m *verbs.ModifyAttr) { m.Remote.QPN = 1 << 24 }),
		bad(func(m *verbs.ModifyAttr) { m.Remote.PSN = 1 << 24 }),
		bad(func(m *verbs.ModifyAttr) { m.Remote.GID, m.Remote.LID = netip.Addr{}, 0 }),
		bad(func(m *verbs.ModifyAttr) { m.Remote.MTU = 0 }),
		bad(func(m *verbs.ModifyAttr) { m.MTU = 1500 }),
		bad(func(m *verbs.ModifyAttr) { m.IRD = p.a.caps.MaxIRD + 1 }),
		bad(func(m *verbs.ModifyAttr) { m.HopLimit = 256 }),
		bad(func(m *verbs.ModifyAttr) { m.ServiceLevel = 16 }),
		bad(func(m *verbs.ModifyAttr) { m.TrafficClass = -1 }),
		bad(func(m *verbs.ModifyAttr) { m.FlowLabel = 1 << 20 }),
	} {
		require.ErrorIs(e, p.a.qp.Modify(m), verbs.ErrInvalid, "%+v", m)
		require.Equal(e, driver.QPStateInit, p.a.qp.State())
	}
	require.NoError(e, p.a.qp.Modify(rtr))
	for _, m := range []verbs.ModifyAttr{
		{State: driver.QPStateRTS, ORD: p.a.caps.MaxORD + 1}, {State: driver.QPStateRTS, RetryCnt: 8},
		{State: driver.QPStateRTS, RNRRetry: 7}, {State: driver.QPStateRTS, AckTimeout: -1},
	} {
		require.ErrorIs(e, p.a.qp.Modify(m), verbs.ErrInvalid, "%+v", m)
		require.Equal(e, driver.QPStateRTR, p.a.qp.State())
	}
	rtr.Remote = a
	require.NoError(e, p.b.qp.Modify(rtr))
	for _, x := range []*end{p.a, p.b} {
		require.NoError(e, x.qp.Modify(verbs.ModifyAttr{State: driver.QPStateRTS}))
	}
	p.exchange(5)
}

// outOfBandWrongState takes the steps in a wrong order.
func outOfBandWrongState(e *env) {
	p, a, b := e.outOfBandPair(pairOpts{})
	init, rtr, rts := verbs.ModifyAttr{State: driver.QPStateInit}, verbs.ModifyAttr{State: driver.QPStateRTR}, verbs.ModifyAttr{State: driver.QPStateRTS}
	require.ErrorIs(e, p.a.qp.Modify(rts), verbs.ErrQPState)
	_, err := p.a.qp.PostSend([]verbs.SendWR{signaled(1, driver.OpSend)})
	require.ErrorIs(e, err, verbs.ErrQPState)
	rtr.Remote = b
	require.NoError(e, p.a.qp.Modify(rtr))
	require.ErrorIs(e, p.a.qp.Modify(rtr), verbs.ErrQPState)
	require.ErrorIs(e, p.a.qp.Modify(init), verbs.ErrQPState)
	_, err = p.a.qp.PostSend([]verbs.SendWR{signaled(1, driver.OpSend)})
	require.ErrorIs(e, err, verbs.ErrQPState)
	_, err = p.a.qp.Connect(e.ctx, "127.0.0.1:1", driver.ConnParam{})
	require.ErrorIs(e, err, verbs.ErrQPState)
	rtr.Remote = a
	require.NoError(e, p.b.qp.Modify(rtr))
	for _, x := range []*end{p.a, p.b} {
		require.NoError(e, x.qp.Modify(rts))
		require.ErrorIs(e, x.qp.Modify(rts), verbs.ErrQPState)
		require.ErrorIs(e, x.qp.Disconnect(), verbs.ErrNotSupported)
	}
	p.exchange(7)
	require.NoError(e, p.a.qp.SetError())
	require.ErrorIs(e, p.a.qp.Modify(rtr), verbs.ErrQPState)
	_, err = p.a.qp.Close()
	require.NoError(e, err)
	require.ErrorIs(e, p.a.qp.Modify(rtr), verbs.ErrClosed)
	_, err = p.a.qp.Endpoint()
	require.ErrorIs(e, err, verbs.ErrClosed)

	managed := e.pair(pairOpts{})
	require.ErrorIs(e, managed.a.qp.Modify(rtr), verbs.ErrQPState)
	require.ErrorIs(e, managed.b.qp.Modify(rts), verbs.ErrQPState)
	managed.exchange(9)
}

// outOfBandPeerGone sends to a queue pair that is destroyed.
func outOfBandPeerGone(e *env) {
	p, a, b := e.outOfBandPair(pairOpts{})
	p.modify(a, b, verbs.ModifyAttr{}, verbs.ModifyAttr{RetryCnt: 1, AckTimeout: 10e6})
	_, err := p.b.qp.Close()
	require.NoError(e, err)
	p.a.postRecv(verbs.RecvWR{WRID: 5})
	p.a.post(signaled(1, driver.OpSend), signaled(2, driver.OpSend))
	wc := p.a.sq.next()
	require.EqualValues(e, 1, wc.WRID)
	require.Equal(e, driver.StatusRetryExcErr, wc.Status)
	wc = p.a.sq.next()
	require.EqualValues(e, 2, wc.WRID)
	require.Equal(e, driver.StatusWRFlushErr, wc.Status)
	require.Equal(e, driver.QPStateErr, p.a.qp.State())
	e.flushes(p.a, 5, 6)
}

// outOfBandNotOffered asks a device that has none of it.
func outOfBandNotOffered(e *env) {
	d := e.dialer()
	e.need(!d.Caps().OutOfBand, "the device connects queue pairs out of band")
	x := e.end("a", d, pairOpts{})
	_, err := x.qp.Endpoint()
	require.ErrorIs(e, err, verbs.ErrNotSupported)
	err = x.qp.Modify(verbs.ModifyAttr{State: driver.QPStateInit})
	require.ErrorIs(e, err, verbs.ErrNotSupported)
	require.Equal(e, driver.QPStateInit, x.qp.State())
}
