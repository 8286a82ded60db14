package verbstest

import (
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/argonaut-rdma/argonaut/verbs"
	"github.com/argonaut-rdma/argonaut/verbs/driver"
)

var lostTests = []subtest{
	{"DeviceLost", deviceLost},
	{"DeviceLostWhileConnecting", deviceLostWhileConnecting},
}

// lossy is a device that can be lost, for the dialing end, and what loses it.
func (e *env) lossy() (lose func()) {
	e.Helper()
	e.need(e.cfg.OpenDriver != nil, "no event can be injected without Config.OpenDriver")
	f := NewFaulty(e.cfg.OpenDriver(e.T), nil)
	d, err := verbs.NewDevice(f, verbs.Config{CloseTimeout: 20 * time.Second})
	require.NoError(e, err)
	e.devices = append(e.devices, d)
	e.sides[0] = d
	return func() { f.Inject(driver.Event{Type: driver.EventDeviceFatal}) }
}

// deviceLost loses the device of one end: what is posted is flushed, what waits
// ends, what is asked for is refused, each with ErrDeviceLost; the other end sees
// its connection go; and everything can be closed.
func deviceLost(e *env) {
	lose := e.lossy()
	p := e.pair(pairOpts{})
	a, b := p.a, p.b
	l, _ := e.listen(a.dev)
	accepted := make(chan error, 1)
	go func() { // ends with the device
		_, err := l.Accept(e.ctx)
		accepted <- err
	}()
	inbox := a.mem(5*10, accLocal)
	guardFill(inbox.b)
	for i := range 5 {
		a.postRecv(verbs.RecvWR{WRID: uint64(i), SGEs: []verbs.SGE{inbox.sge(i*10, 10)}})
	}
	unconnected := e.end("c", a.dev, pairOpts{})
	select {
	case <-a.dev.Lost():
		e.Fatal("it is there")
	default:
	}

	lose()
	require.Equal(e, a.qp, a.event(driver.EventDeviceFatal).QP)
	require.Equal(e, unconnected.qp, unconnected.event(driver.EventDeviceFatal).QP)
	select {
	case <-a.dev.Lost():
	case <-e.ctx.Done():
		e.Fatal("Lost is not closed")
	}
	ev, err := a.dev.NextEvent(e.ctx)
	require.NoError(e, err)
	require.Equal(e, driver.EventDeviceFatal, ev.Type)
	require.ErrorIs(e, <-accepted, verbs.ErrDeviceLost)
	a.gone()
	b.gone()
	require.Equal(e, driver.QPStateErr, a.qp.State())
	e.flushes(a, 0, 5)
	require.NoError(e, untouched(inbox.b))

	_, err = a.qp.PostSend([]verbs.SendWR{signaled(1, driver.OpSend)})
	require.ErrorIs(e, err, verbs.ErrDeviceLost)
	_, err = a.qp.PostRecv([]verbs.RecvWR{{WRID: 1}})
	require.ErrorIs(e, err, verbs.ErrDeviceLost)
	_, err = unconnected.qp.Connect(e.ctx, e.cfg.ListenAddr, driver.ConnParam{})
	require.ErrorIs(e, err, verbs.ErrDeviceLost)
	_, err = l.Accept(e.ctx)
	require.ErrorIs(e, err, verbs.ErrDeviceLost)
	_, err = a.dev.AllocPD()
	require.ErrorIs(e, err, verbs.ErrDeviceLost)
	_, err = a.pd.RegMR(make([]byte, 10), accLocal)
	require.ErrorIs(e, err, verbs.ErrDeviceLost)
	_, err = a.dev.CreateCQ(verbs.CQConfig{Depth: 1})
	require.ErrorIs(e, err, verbs.ErrDeviceLost)
	_, err = a.pd.CreateQP(verbs.QPConfig{SendCQ: a.sq.cq})
	require.ErrorIs(e, err, verbs.ErrDeviceLost)
	_, err = a.dev.Listen(e.ctx, e.cfg.ListenAddr)
	require.ErrorIs(e, err, verbs.ErrDeviceLost)
}

// deviceLostWhileConnecting loses the device of a peer that waits for the answer
// to its request.
func deviceLostWhileConnecting(e *env) {
	lose := e.lossy()
	a := e.end("a", e.dialer(), pairOpts{})
	l, addr := e.listen(e.acceptor())
	var g errgroup.Group
	g.Go(func() error {
		_, err := a.qp.Connect(e.ctx, addr, driver.ConnParam{})
		return err
	})
	r, err := l.Accept(e.ctx)
	require.NoError(e, err)
	lose()
	require.ErrorIs(e, g.Wait(), verbs.ErrDeviceLost)
	a.gone()
	require.Equal(e, driver.QPStateErr, a.qp.State())
	_ = r.Reject(nil) // its peer is gone, which it may know
}
