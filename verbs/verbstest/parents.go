package verbstest

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"

	"github.com/stretchr/testify/require"

	"github.com/argonaut-rdma/argonaut/verbs"
	"github.com/argonaut-rdma/argonaut/verbs/driver"
)

var parentTests = []subtest{
	{"BusyParents", busyParents},
	{"CloseInEveryOrder", closeInEveryOrder},
	{"Resources", resources},
	{"DeviceEvents", deviceEvents},
	{"UseAfterClose", useAfterClose},
}

// busy asserts that err names exactly the given kinds of children.
func (e *env) busy(err error, kinds ...verbs.Kind) {
	e.Helper()
	var busy *verbs.BusyError
	require.ErrorAs(e, err, &busy)
	require.ErrorIs(e, err, verbs.ErrBusy)
	var got []verbs.Kind
	for _, c := range busy.Children {
		got = append(got, c.Kind)
	}
	slices.Sort(got)
	slices.Sort(kinds)
	require.Equal(e, kinds, got, "%v", err)
}

func closeQP(q *verbs.QP) error { _, err := q.Close(); return err }

// busyParents closes each parent while it has children: refused, with their
// names, and everything works on.
func busyParents(e *env) {
	d := e.open(e.cfg.OpenPeer)
	pd := e.allocPD(d)
	x := &end{env: e, name: "b", dev: d, caps: d.Caps(), pd: pd, events: make(chan verbs.Event, 64)}
	x.attach(pairOpts{})
	m := x.mem(100, accRemote)
	l, _ := e.listen(d)
	e.busy(pd.Close(), verbs.KindQP, verbs.KindMR)
	e.busy(x.sq.cq.Close(), verbs.KindQP)
	e.busy(x.rq.cq.Close(), verbs.KindQP)
	e.busy(x.sq.ch.Close(), verbs.KindCQ)
	e.busy(d.Close(), verbs.KindPD, verbs.KindMR, verbs.KindCompChannel, verbs.KindCompChannel, verbs.KindCQ, verbs.KindCQ,
		verbs.KindQP, verbs.KindListener)
	require.NoError(e, l.Close())
	// All of it works still.
	p := pair{e.end("a", e.dialer(), pairOpts{}), x}
	p.connect(driver.ConnParam{})
	p.a.fence(p.b)
	require.NoError(e, closeQP(x.qp))
	e.busy(pd.Close(), verbs.KindMR)
	require.NoError(e, m.mr.Deregister())
	require.NoError(e, pd.Close())
	e.busy(x.sq.ch.Close(), verbs.KindCQ)
	require.NoError(e, x.sq.cq.Close())
	require.NoError(e, x.sq.ch.Close())
	e.busy(d.Close(), verbs.KindCompChannel, verbs.KindCQ)
	require.NoError(e, x.rq.cq.Close())
	require.NoError(e, x.rq.ch.Close())
	require.NoError(e, d.Close())
	require.NoError(e, d.Close(), "once more")
	require.Empty(e, d.Resources())
}

// closeInEveryOrder closes the objects of an end in random orders, again and
// again until all are closed: whatever has children is refused, whatever has
// none is not.
func closeInEveryOrder(e *env) {
	type object struct {
		name     string
		parents  []int
		children int
		close    func() error
		closed   bool
	}
	for range e.short(100) {
		d := e.open(e.cfg.Open)
		x := &end{env: e, name: "a", dev: d, caps: d.Caps(), events: make(chan verbs.Event, 64)}
		pd, err := d.AllocPD()
		require.NoError(e, err)
		x.pd = pd
		o := pairOpts{depth: 4}
		if x.caps.SRQ {
			o.srq = 4
		}
		x.attach(o)
		m := x.mem(100, accRemote)
		if x.srq != nil {
			x.postRecv(verbs.RecvWR{WRID: 1, SGEs: []verbs.SGE{m.sge(0, 1)}})
		}
		var mw *verbs.MW
		if x.caps.MW2 {
			mw, err = pd.AllocMW()
			require.NoError(e, err)
		}
		const dev, dom, sch, rch, scq, rcq = 0, 1, 2, 3, 4, 5
		all := []*object{
			{name: "device", close: d.Close},
			{name: "PD", parents: []int{dev}, close: pd.Close},
			{name: "send channel", parents: []int{dev}, close: x.sq.ch.Close},
			{name: "recv channel", parents: []int{dev}, close: x.rq.ch.Close},
			{name: "send CQ", parents: []int{dev, sch}, close: x.sq.cq.Close},
			{name: "recv CQ", parents: []int{dev, rch}, close: x.rq.cq.Close},
			{name: "MR", parents: []int{dom}, close: m.mr.Deregister},
		}
		qpParents := []int{dom, scq, rcq}
		if x.srq != nil {
			// An SRQ's entry holds the MR as a child would.
			all = append(all, &object{name: "SRQ", parents: []int{dom, 6}, close: func() error { _, err := x.srq.Close(); return err }})
			qpParents = append(qpParents, 7)
		}
		all = append(all, &object{name: "QP", parents: qpParents, close: func() error { return closeQP(x.qp) }})
		if mw != nil {
			all = append(all, &object{name: "MW", parents: []int{dom}, close: mw.Close})
		}
		for _, ob := range all {
			for _, i := range ob.parents {
				all[i].children++
			}
		}
		var trace []string
		for left := len(all); left > 0; {
			ob := all[rand.IntN(len(all))]
			err := ob.close()
			trace = append(trace, ob.name)
			if ob.children > 0 {
				require.ErrorIs(e, err, verbs.ErrBusy, "%v", trace)
				continue
			}
			require.NoError(e, err, "%v", trace)
			if !ob.closed {
				ob.closed = true
				left--
				for _, i := range ob.parents {
					all[i].children--
				}
			}
		}
		require.Empty(e, d.Resources())
	}
}

func resources(e *env) {
	d := e.open(e.cfg.Open)
	require.Empty(e, d.Resources())
	d.SetTraceStacks(true)
	pd, err := d.AllocPD()
	require.NoError(e, err)
	b := make([]byte, 12345)
	mr, err := pd.RegMR(b, accRemote)
	require.NoError(e, err)
	rs := d.Resources()
	require.Len(e, rs, 2)
	require.Equal(e, verbs.KindPD, rs[0].Kind, "parents before children")
	require.Equal(e, verbs.KindMR, rs[1].Kind)
	require.Equal(e, mr.LKey(), rs[1].LKey)
	require.Equal(e, mr.RKey(), rs[1].RKey)
	require.Equal(e, mr.Addr(), rs[1].Addr)
	require.EqualValues(e, len(b), rs[1].Length)
	require.EqualValues(e, len(b), mr.Length())
	require.Equal(e, accRemote, mr.Access())
	require.Equal(e, pd, mr.PD())
	require.Contains(e, rs[1].Stack, "verbstest.resources")
	require.Less(e, rs[0].ID, rs[1].ID)
	require.Contains(e, verbs.Devices(), d)
	require.NoError(e, mr.Deregister())
	require.NoError(e, pd.Close())
	require.Empty(e, d.Resources())
	require.NoError(e, d.Close())
	require.NotContains(e, verbs.Devices(), d)
}

// deviceEvents reads the events of a device: they come in order, a slow reader
// holds nobody up, and closing the device ends the reading.
func deviceEvents(e *env) {
	d := e.open(e.cfg.Open)
	ctx, cancel := context.WithCancel(e.ctx)
	cancel()
	_, err := d.NextEvent(ctx)
	require.ErrorIs(e, err, context.Canceled)
	x := e.end("a", d, pairOpts{})
	p := pair{x, e.end("b", e.acceptor(), pairOpts{})}
	p.connect(driver.ConnParam{})
	require.NoError(e, p.b.qp.SetError())
	x.gone() // though nobody has read an event
	for {
		ev, err := d.NextEvent(e.ctx)
		require.NoError(e, err)
		if ev.Type == driver.EventDisconnected {
			require.Equal(e, x.qp, ev.QP)
			require.Equal(e, 1, ev.Count)
			break
		}
	}
	require.NoError(e, closeQP(x.qp))
	require.NoError(e, x.sq.cq.Close())
	require.NoError(e, x.rq.cq.Close())
	require.NoError(e, x.sq.ch.Close())
	require.NoError(e, x.rq.ch.Close())
	require.NoError(e, x.pd.Close())
	ended := make(chan error, 1)
	go func() { // ends with the device
		for {
			if _, err := d.NextEvent(e.ctx); err != nil {
				ended <- err
				return
			}
		}
	}()
	require.NoError(e, d.Close())
	require.ErrorIs(e, <-ended, verbs.ErrClosed)
}

func useAfterClose(e *env) {
	d := e.open(e.cfg.Open)
	x := e.end("a", d, pairOpts{})
	require.NoError(e, closeQP(x.qp))
	require.NoError(e, x.qp.SetError(), "there is nothing left to flush")
	_, err := x.qp.Connect(e.ctx, "127.0.0.1:1", driver.ConnParam{})
	require.ErrorIs(e, err, verbs.ErrClosed)
	require.NoError(e, x.sq.cq.Close())
	_, err = x.sq.cq.Poll(make([]verbs.WC, 1))
	require.ErrorIs(e, err, verbs.ErrClosed)
	require.ErrorIs(e, x.sq.cq.ReqNotify(false), verbs.ErrClosed)
	_, armed, err := x.sq.cq.PollArm(make([]verbs.WC, 1))
	require.False(e, armed)
	require.ErrorIs(e, err, verbs.ErrClosed)
	_, err = x.pd.CreateQP(verbs.QPConfig{SendCQ: x.sq.cq})
	require.True(e, errors.Is(err, verbs.ErrClosed), "%v", err)
	require.NoError(e, x.rq.cq.Close())
	require.NoError(e, x.sq.ch.Close())
	require.NoError(e, x.rq.ch.Close())
	require.NoError(e, x.pd.Close())
	_, err = x.pd.CreateQP(verbs.QPConfig{SendCQ: x.sq.cq})
	require.ErrorIs(e, err, verbs.ErrClosed)
	require.NoError(e, d.Close())
	_, err = d.AllocPD()
	require.ErrorIs(e, err, verbs.ErrClosed)
	_, err = d.CreateCQ(verbs.CQConfig{Depth: 1})
	require.ErrorIs(e, err, verbs.ErrClosed)
	_, err = d.CreateCompChannel()
	require.ErrorIs(e, err, verbs.ErrClosed)
	_, err = d.Listen(e.ctx, e.cfg.ListenAddr)
	require.ErrorIs(e, err, verbs.ErrClosed)
	_, err = d.NextEvent(e.ctx)
	require.ErrorIs(e, err, verbs.ErrClosed)
}
