package verbs_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/argonaut-rdma/argonaut/verbs"
	"github.com/argonaut-rdma/argonaut/verbs/driver"
	"github.com/argonaut-rdma/argonaut/verbs/verbstest"
)

// sink collects the events of an OnEvent.
type sink struct {
	mu  sync.Mutex
	all []verbs.Event
	ch  chan verbs.Event
}

func newSink() *sink { return &sink{ch: make(chan verbs.Event, 100)} }

func (s *sink) on(e verbs.Event) {
	s.mu.Lock()
	s.all = append(s.all, e)
	s.mu.Unlock()
	s.ch <- e
}

func next(t *testing.T, d *verbs.Device) verbs.Event {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	e, err := d.NextEvent(ctx)
	require.NoError(t, err)
	return e
}

func TestEventsCoalesceInOrder(t *testing.T) {
	s := newSink()
	r := newRig(t, nil, verbs.Config{}, verbs.QPConfig{MaxRecvWR: withSRQ, OnEvent: s.on})
	srq := r.lq.attr.SRQ
	for range 3 {
		r.l.events <- driver.Event{Type: driver.EventSRQLimitReached, SRQ: srq}
	}
	r.l.events <- driver.Event{Type: driver.EventPortErr, Port: 1}
	r.l.events <- driver.Event{Type: driver.EventSRQLimitReached, SRQ: srq}
	r.l.events <- driver.Event{Type: driver.EventPortErr, Port: 2}
	r.l.events <- driver.Event{Type: driver.EventQPLastWQEReached, QP: r.lq}
	for range 4 {
		require.Equal(t, verbs.EventSRQLimitReached, (<-s.ch).Type, "each reaches the callback")
	}
	e := <-s.ch
	require.Equal(t, verbs.EventQPLastWQEReached, e.Type)
	require.Eventually(t, func() bool { return r.dev.Stats().EventsCoalesced == 3 }, time.Minute, time.Millisecond)

	require.Equal(t, verbs.Event{Type: verbs.EventSRQLimitReached, SRQ: r.srq, Count: 4}, next(t, r.dev))
	require.Equal(t, verbs.Event{Type: verbs.EventPortErr, Port: 1, Count: 1}, next(t, r.dev))
	require.Equal(t, verbs.Event{Type: verbs.EventPortErr, Port: 2, Count: 1}, next(t, r.dev))
	require.Equal(t, verbs.Event{Type: verbs.EventQPLastWQEReached, QP: r.qp, Count: 1}, next(t, r.dev))
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, err := r.dev.NextEvent(ctx)
	require.ErrorIs(t, err, context.Canceled)
}

func TestDisconnected(t *testing.T) {
	s := newSink()
	r := newRig(t, nil, verbs.Config{}, verbs.QPConfig{OnEvent: s.on})
	select {
	case <-r.qp.Disconnected():
		t.Fatal("it is connected")
	default:
	}
	r.send(verbs.SendWR{WRID: 1, SGEs: r.sge(8)})
	r.l.events <- driver.Event{Type: driver.EventDisconnected, QP: r.lq}
	<-r.qp.Disconnected()
	require.Equal(t, verbs.QPStateErr, r.qp.State())
	require.Equal(t, verbs.EventDisconnected, (<-s.ch).Type)
	require.Equal(t, []uint64{1}, wrids(r.poll()), "the core has put it to ERR")

	// An event nobody read is withdrawn with its object; one of an object that
	// is gone is dropped.
	require.Eventually(t, func() bool { return r.dev.Stats().Events == 1 }, time.Minute, time.Millisecond)
	_, err := r.qp.Close()
	require.NoError(t, err)
	r.l.events <- driver.Event{Type: driver.EventQPFatal, QP: r.lq}
	r.l.events <- driver.Event{Type: driver.EventPortActive, Port: 1}
	require.Equal(t, verbs.EventPortActive, next(t, r.dev).Type)
	require.EqualValues(t, 2, r.dev.Stats().EventsDropped)
}

func TestFatalEventMakesStateKnown(t *testing.T) {
	for _, e := range []driver.EventType{driver.EventQPFatal, driver.EventQPReqErr, driver.EventQPAccessErr} {
		s := newSink()
		r := newRig(t, nil, verbs.Config{}, verbs.QPConfig{OnEvent: s.on})
		r.l.events <- driver.Event{Type: e, QP: r.lq}
		require.Equal(t, e, (<-s.ch).Type)
		_, err := r.qp.PostSend([]verbs.SendWR{{}})
		require.ErrorIs(t, err, verbs.ErrQPState)
	}
}

func TestOverrunRetiresQPs(t *testing.T) {
	s, cqs := newSink(), newSink()
	r := newRig(t, nil, verbs.Config{}, verbs.QPConfig{})
	var qp *verbs.QP
	was := make(chan verbs.QPState, 1)
	cq, err := r.dev.CreateCQ(verbs.CQConfig{Depth: 2, AllowOverrun: true, OnEvent: func(e verbs.Event) {
		was <- qp.State()
		cqs.on(e)
	}})
	require.NoError(t, err)
	qp, err = r.pd.CreateQP(verbs.QPConfig{SendCQ: cq, OnEvent: s.on})
	require.NoError(t, err)
	lq := r.l.last()
	_, err = qp.Connect(context.Background(), "x:1", verbs.ConnParam{})
	require.NoError(t, err)
	_, err = qp.PostSend([]verbs.SendWR{{WRID: 1, SGEs: r.sge(8)}, {WRID: 2, Flags: verbs.SendSignaled, SGEs: r.sge(8)}})
	require.NoError(t, err)

	r.l.events <- driver.Event{Type: driver.EventCQErr, CQ: lq.attr.SendCQ}
	e := <-s.ch
	require.Equal(t, verbs.EventCQErr, e.Type)
	require.Equal(t, qp, e.QP)
	require.Equal(t, cq, (<-cqs.ch).CQ)
	require.Equal(t, verbs.QPStateRTS, <-was, "the CQ is told before its QPs are ended")
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	require.NoError(t, qp.Drain(ctx), "the ledger is closed, though nothing was polled")
	_, err = qp.PostSend([]verbs.SendWR{{}})
	require.Error(t, err)
	require.Equal(t, verbs.QPStateRTS, r.qp.State(), "a QP on another CQ is not concerned")
	orphans, err := qp.Close()
	require.NoError(t, err)
	require.Equal(t, []verbs.Orphan{{WRID: 1}, {WRID: 2}}, orphans)
	_, err = r.pd.CreateQP(verbs.QPConfig{SendCQ: cq})
	require.ErrorIs(t, err, verbs.ErrInvalid)
	require.EqualValues(t, 1, r.dev.Stats().CQOverruns)
	require.NoError(t, cq.Close())
}

// An event read that fails now and then is tried again; a device whose events
// can not be read is lost.
func TestEventReadFails(t *testing.T) {
	fail := errors.New("no event")
	s := &verbstest.Script{Call: func(c verbstest.Call) verbstest.Fault {
		if c.Op == verbstest.CallNextEvent && c.N < 3 {
			return verbstest.Fault{Err: fail}
		}
		return verbstest.Fault{}
	}}
	f := verbstest.NewFaulty(newLoop(nil), s)
	dev, err := verbs.NewDevice(f, verbs.Config{})
	require.NoError(t, err)
	f.Inject(driver.Event{Type: driver.EventPortActive, Port: 3})
	require.Equal(t, verbs.Event{Type: verbs.EventPortActive, Port: 3, Count: 1}, next(t, dev))
	require.NoError(t, dev.Close())

	s = &verbstest.Script{Call: func(c verbstest.Call) verbstest.Fault {
		if c.Op == verbstest.CallNextEvent {
			return verbstest.Fault{Err: fail}
		}
		return verbstest.Fault{}
	}}
	dev, err = verbs.NewDevice(verbstest.NewFaulty(newLoop(nil), s), verbs.Config{})
	require.NoError(t, err)
	require.Equal(t, verbs.EventDeviceFatal, next(t, dev).Type)
	require.NoError(t, dev.Close())
}

// A device that is lost ends its QPs, tells each of them why, and makes nothing
// any more. What there is can be closed.
func TestDeviceLost(t *testing.T) {
	s := newSink()
	r := newRig(t, nil, verbs.Config{}, verbs.QPConfig{OnEvent: s.on})
	select {
	case <-r.dev.Lost():
		t.Fatal("it is there")
	default:
	}
	fresh, err := r.pd.CreateQP(verbs.QPConfig{SendCQ: r.cq})
	require.NoError(t, err)
	r.send(verbs.SendWR{WRID: 1, SGEs: r.sge(8)})

	r.l.events <- driver.Event{Type: driver.EventDeviceFatal}
	require.Equal(t, verbs.Event{Type: verbs.EventDeviceFatal, QP: r.qp, Count: 1}, <-s.ch)
	<-r.dev.Lost()
	<-r.qp.Disconnected()
	require.Equal(t, verbs.Event{Type: verbs.EventDeviceFatal, Count: 1}, next(t, r.dev))
	require.Equal(t, verbs.QPStateErr, r.qp.State())
	require.Equal(t, []uint64{1}, wrids(r.poll()), "the core has put it to ERR")

	_, err = r.qp.PostSend([]verbs.SendWR{{}})
	require.ErrorIs(t, err, verbs.ErrDeviceLost)
	require.ErrorIs(t, err, verbs.ErrQPState)
	_, err = r.qp.PostRecv([]verbs.RecvWR{{}})
	require.ErrorIs(t, err, verbs.ErrDeviceLost)
	_, err = fresh.Connect(context.Background(), "x:1", verbs.ConnParam{})
	require.ErrorIs(t, err, verbs.ErrDeviceLost)
	_, err = r.dev.AllocPD()
	require.ErrorIs(t, err, verbs.ErrDeviceLost)
	_, err = r.pd.RegMR(make([]byte, 1), 0)
	require.ErrorIs(t, err, verbs.ErrDeviceLost)
	_, err = r.pd.CreateQP(verbs.QPConfig{SendCQ: r.cq})
	require.ErrorIs(t, err, verbs.ErrDeviceLost)

	// It is lost once.
	r.l.events <- driver.Event{Type: driver.EventDeviceFatal}
	require.Equal(t, verbs.EventDeviceFatal, next(t, r.dev).Type)
	require.Empty(t, s.ch)
	_, err = fresh.Close()
	require.NoError(t, err)
}

// A QP that is made while its device is being lost is not handed out.
func TestDeviceLostWhileQPIsMade(t *testing.T) {
	r := newRig(t, nil, verbs.Config{}, verbs.QPConfig{})
	r.l.making = func() {
		r.l.events <- driver.Event{Type: driver.EventDeviceFatal}
		<-r.dev.Lost()
	}
	used, qps := r.cq.Free(), r.dev.Stats().QPs
	_, err := r.pd.CreateQP(verbs.QPConfig{SendCQ: r.cq})
	require.ErrorIs(t, err, verbs.ErrDeviceLost)
	require.Equal(t, used, r.cq.Free())
	require.Equal(t, qps, r.dev.Stats().QPs)
}
