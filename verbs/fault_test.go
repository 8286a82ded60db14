package verbs_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/argonaut-rdma/argonaut/verbs"
	"github.com/argonaut-rdma/argonaut/verbs/driver"
	"github.com/argonaut-rdma/argonaut/verbs/iwarp"
	"github.com/argonaut-rdma/argonaut/verbs/verbstest"
)

var errInjected = errors.New("injected")

// world is a client and a server device over one Script, and how to close what
// was made on them.
type world struct {
	t       *testing.T
	ctx     context.Context
	devs    [2]*verbs.Device
	closers []func() error
}

// newWorld opens two software RNICs. What the test has not closed is closed when
// it ends, and it checks that nothing is left. An injected fault may hit one
// destructor, so each is given a second chance.
func newWorld(t *testing.T, s *verbstest.Script) *world {
	verbstest.NoLeaks(t)
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	w := &world{t: t, ctx: ctx}
	for i := range w.devs {
		d, err := iwarp.OpenDriver(iwarp.Config{})
		require.NoError(t, err)
		w.devs[i], err = verbs.NewDevice(verbstest.NewFaulty(d, s), verbs.Config{})
		require.NoError(t, err)
	}
	t.Cleanup(func() {
		defer cancel()
		w.close()
		for _, d := range w.devs {
			require.Empty(t, d.Resources())
			err := d.Close()
			if errors.Is(err, errInjected) {
				err = d.Close()
			}
			require.NoError(t, err)
		}
	})
	return w
}

func (w *world) later(f func() error) { w.closers = append(w.closers, f) }

func (w *world) close() {
	for _, f := range slices.Backward(w.closers) {
		err := f()
		if errors.Is(err, errInjected) {
			err = f()
		}
		require.NoError(w.t, err)
	}
	w.closers = nil
}

// end is what one side of a connection has.
type end struct {
	pd  *verbs.PD
	cq  *verbs.CQ
	srq *verbs.SRQ
	qp  *verbs.QP
	mem []byte
	mr  *verbs.MR
	// orphans are what the Close of qp and srq returned.
	orphans []verbs.Orphan
}

func (w *world) end(d *verbs.Device, srq bool) (*end, error) {
	e := &end{mem: make([]byte, 1<<16)}
	ch, err := d.CreateCompChannel()
	if err != nil {
		return nil, err
	}
	w.later(ch.Close)
	if e.cq, err = d.CreateCQ(verbs.CQConfig{Depth: 128, Channel: ch}); err != nil {
		return nil, err
	}
	w.later(e.cq.Close)
	if e.pd, err = d.AllocPD(); err != nil {
		return nil, err
	}
	w.later(e.pd.Close)
	if e.mr, err = e.pd.RegMR(e.mem, verbs.AccessLocalWrite|verbs.AccessMWBind); err != nil {
		return nil, err
	}
	w.later(e.mr.Deregister)
	c := verbs.QPConfig{SendCQ: e.cq, MaxSendWR: 32, MaxRecvWR: 32}
	if srq {
		if e.srq, err = e.pd.CreateSRQ(verbs.SRQConfig{MaxWR: 32}); err != nil {
			return nil, err
		}
		w.later(func() error {
			o, err := e.srq.Close()
			e.orphans = append(e.orphans, o...)
			return err
		})
		if err := e.srq.SetLimit(1); err != nil {
			return nil, err
		}
		c.SRQ = e.srq
	}
	if e.qp, err = e.pd.CreateQP(c); err != nil {
		return nil, err
	}
	w.later(func() error {
		o, err := e.qp.Close()
		e.orphans = append(e.orphans, o...)
		return err
	})
	return e, nil
}

func (e *end) sge(off, n int) []verbs.SGE {
	return []verbs.SGE{{MR: e.mr, Offset: uint64(off), Length: uint32(n)}}
}

func (e *end) recv(wrid uint64) (err error) {
	wr := []verbs.RecvWR{{WRID: wrid, SGEs: e.sge(0, 1024)}}
	if e.srq != nil {
		_, err = e.srq.PostRecv(wr)
	} else {
		_, err = e.qp.PostRecv(wr)
	}
	return err
}

func (e *end) send(wr verbs.SendWR) error {
	_, err := e.qp.PostSend([]verbs.SendWR{wr})
	return err
}

// await polls until the completion of wrid, which must be the next.
func (e *end) await(ctx context.Context, wrid uint64) error {
	for {
		failed := e.qp.State() == verbs.QPStateErr // an SRQ entry is not flushed
		wcs := make([]verbs.WC, 1)
		n, err := e.cq.Poll(wcs)
		switch {
		case err != nil:
			return err
		case n == 1 && wcs[0].Status != verbs.StatusSuccess:
			return verbs.WCErr(&wcs[0])
		case n == 1 && wcs[0].WRID != wrid:
			return fmt.Errorf("completion of %d instead of %d", wcs[0].WRID, wrid)
		case n == 1:
			return nil
		case failed:
			return verbs.ErrQPState
		}
		if ctx.Err() != nil {
			return fmt.Errorf("no completion of %d: %w", wrid, ctx.Err())
		}
		runtime.Gosched()
	}
}

// connect makes a connection from the end a to the end b.
func (w *world) connect(a, b *end) error {
	return w.dial(a.qp, func(ctx context.Context, r *verbs.ConnRequest) error {
		return r.Accept(ctx, b.qp, verbs.ConnParam{IRD: 4, ORD: 4})
	})
}

// refused makes a queue pair beside a's whose connection b refuses.
func (w *world) refused(a *end) error {
	q, err := a.pd.CreateQP(verbs.QPConfig{SendCQ: a.cq, MaxSendWR: 1, MaxRecvWR: 1})
	if err != nil {
		return err
	}
	w.later(func() error { _, err := q.Close(); return err })
	err = w.dial(q, func(_ context.Context, r *verbs.ConnRequest) error { return r.Reject([]byte("no")) })
	var reject *verbs.RejectError
	switch {
	case errors.Is(err, errInjected): // a Reject that failed among them: it has refused all the same
		return err
	case !errors.As(err, &reject):
		return fmt.Errorf("not refused: %w", err)
	case string(reject.PrivateData) != "no":
		return fmt.Errorf("refused with %q", reject.PrivateData)
	}
	return nil
}

// dial connects qp of the client to the server, which answers.
func (w *world) dial(qp *verbs.QP, answer func(context.Context, *verbs.ConnRequest) error) error {
	l, err := w.devs[1].Listen(w.ctx, "127.0.0.1:0")
	if err != nil {
		return err
	}
	w.later(l.Close)
	ctx, cancel := context.WithCancel(w.ctx)
	defer cancel()
	dialed := make(chan error, 1)
	go func() { // ends with ctx, if not before
		_, err := qp.Connect(ctx, l.Addr(), verbs.ConnParam{PrivateData: []byte("hello"), IRD: 4, ORD: 4})
		if err != nil {
			cancel()
		}
		dialed <- err
	}()
	err = func() error {
		r, err := l.Accept(ctx)
		if err != nil {
			return err
		}
		if string(r.PrivateData()) != "hello" {
			return fmt.Errorf("private data %q", r.PrivateData())
		}
		return answer(ctx, r)
	}()
	if err != nil {
		cancel()
	}
	return errors.Join(err, <-dialed) // one side's error is the cause, the other's the consequence
}

// everything uses one of each operation. It returns the first error.
func (w *world) everything() error {
	b, err := w.end(w.devs[1], true)
	if err != nil {
		return err
	}
	a, err := w.end(w.devs[0], false)
	if err != nil {
		return err
	}
	for i := range 3 {
		if err := errors.Join(a.recv(uint64(10+i)), b.recv(uint64(20+i))); err != nil {
			return err
		}
	}
	if err := w.connect(a, b); err != nil {
		return err
	}
	if err := w.refused(a); err != nil {
		return err
	}
	copy(a.mem[2000:], "payload")

	// SEND and its reply.
	if err := a.send(verbs.SendWR{WRID: 1, SGEs: a.sge(2000, 7)}); err != nil {
		return err
	}
	if err := b.await(w.ctx, 20); err != nil {
		return err
	}
	if string(b.mem[:7]) != "payload" {
		return fmt.Errorf("received %q", b.mem[:7])
	}

	// WRITE and READ through a scoped key, WRITE through a window.
	key, err := b.mr.Scope(b.qp, 4096, 4096, verbs.AccessRemoteRead|verbs.AccessRemoteWrite)
	if err != nil {
		return err
	}
	w.later(key.Deregister)
	win, err := b.pd.AllocMW()
	if err != nil {
		return err
	}
	w.later(func() error { // its bind may be outstanding
		_ = b.qp.SetError()
		return win.Close()
	})
	if err := b.qp.BindMW(win, b.mr, 8192, 4096, verbs.AccessRemoteWrite, 30); err != nil {
		return err
	}
	if err := b.await(w.ctx, 30); err != nil {
		return err
	}
	if err := a.send(verbs.SendWR{WRID: 2, Opcode: verbs.OpWrite, RemoteAddr: b.mr.Addr() + 4100, RKey: key.RKey(), SGEs: a.sge(2000, 7)}); err != nil {
		return err
	}
	if err := a.send(verbs.SendWR{WRID: 3, Opcode: verbs.OpWrite, RemoteAddr: b.mr.Addr() + 8200, RKey: win.RKey(), SGEs: a.sge(2000, 7)}); err != nil {
		return err
	}
	if err := a.send(verbs.SendWR{
		WRID: 4, Opcode: verbs.OpRead, Flags: verbs.SendSignaled, RemoteAddr: b.mr.Addr() + 4100, RKey: key.RKey(), SGEs: a.sge(3000, 7),
	}); err != nil {
		return err
	}
	if err := a.await(w.ctx, 4); err != nil {
		return err
	}
	if string(a.mem[3000:3007]) != "payload" || string(b.mem[8200:8207]) != "payload" {
		return errors.New("wrong bytes")
	}
	if err := b.send(verbs.SendWR{WRID: 31, Opcode: verbs.OpLocalInvalidate, Flags: verbs.SendSignaled, InvalidateRKey: win.RKey()}); err != nil {
		return err
	}
	if err := b.await(w.ctx, 31); err != nil {
		return err
	}
	if err := errors.Join(win.Close(), key.Deregister()); err != nil {
		return err
	}
	if err := a.qp.Disconnect(); err != nil {
		return err
	}
	for _, q := range []*verbs.QP{a.qp, b.qp} {
		select {
		case <-q.Disconnected():
		case <-w.ctx.Done():
			return fmt.Errorf("%v is not disconnected", q)
		}
	}
	if _, err := a.qp.Query(); err != nil {
		return err
	}
	return nil
}

// Each driver call in turn fails: the error reaches the caller, and everything
// can be closed.
func TestEveryCallFails(t *testing.T) {
	verbstest.FailEach(t, errInjected, nil, func(t *testing.T, s *verbstest.Script) {
		w := newWorld(t, s)
		switch err := w.everything(); {
		case s.Fired() == 0:
			require.NoError(t, err)
			for _, op := range []verbstest.Op{verbstest.CallSetLimit, verbstest.CallReject} {
				require.Positive(t, s.Calls(op), "%v is not among the calls that were failed", op)
			}
		case err != nil:
			require.ErrorIs(t, err, errInjected)
		}
	})
}

// The same with the calls whose number depends on timing.
func TestEveryPolledCallFails(t *testing.T) {
	for _, op := range []verbstest.Op{verbstest.CallPoll, verbstest.CallState, verbstest.CallAcceptRequest} {
		t.Run(op.String(), func(t *testing.T) {
			for k := range 3 {
				s := verbstest.FailKth(k, errInjected, func(o verbstest.Op) bool { return o == op })
				if err := newWorld(t, s).everything(); err != nil {
					require.ErrorIs(t, err, errInjected)
				}
			}
		})
	}
}

// Completions that the device loses: Close gives the requests back.
func TestLostCompletions(t *testing.T) {
	s := &verbstest.Script{Poll: func(wcs []driver.WC) []driver.WC { return nil }}
	w := newWorld(t, s)
	a, err := w.end(w.devs[0], false)
	require.NoError(t, err)
	b, err := w.end(w.devs[1], true)
	require.NoError(t, err)
	require.NoError(t, b.recv(20))
	require.NoError(t, b.recv(21))
	require.NoError(t, w.connect(a, b))
	require.NoError(t, a.recv(10))
	require.NoError(t, a.send(verbs.SendWR{WRID: 1, SGEs: a.sge(0, 5)}))
	require.NoError(t, a.send(verbs.SendWR{WRID: 2, Flags: verbs.SendSignaled, SGEs: a.sge(0, 5)}))
	require.NoError(t, a.qp.SetError())
	require.NoError(t, a.cq.ReqNotify(false))
	short, cancel := context.WithTimeout(w.ctx, 20*time.Millisecond) // nothing is to come
	defer cancel()
	require.ErrorIs(t, a.cq.Drain(short, nil), context.DeadlineExceeded)
	require.ErrorIs(t, a.mr.Deregister(), verbs.ErrBusy)
	w.close()
	require.Equal(t, []verbs.Orphan{{WRID: 1}, {WRID: 2}, {10, true}}, a.orphans)
	require.ElementsMatch(t, []verbs.Orphan{{20, true}, {21, true}}, b.orphans)
}

// A QP that goes to ERR under a post.
func TestFlushAtPost(t *testing.T) {
	for k := range 4 {
		s := &verbstest.Script{Call: func(c verbstest.Call) verbstest.Fault {
			return verbstest.Fault{Flush: c.Op == verbstest.CallPostSend && c.N == k}
		}}
		w := newWorld(t, s)
		err := w.everything()
		require.Error(t, err)
		require.Equal(t, 1, s.Fired())
	}
}

// A destructor that hangs, on a real device.
func TestDelayedDestroy(t *testing.T) {
	wait := make(chan struct{})
	s := &verbstest.Script{Call: func(c verbstest.Call) verbstest.Fault {
		if c.Op == verbstest.CallDestroyQP && c.N == 0 {
			return verbstest.Fault{Wait: wait}
		}
		return verbstest.Fault{}
	}}
	w := newWorld(t, s)
	a, err := w.end(w.devs[0], false)
	require.NoError(t, err)
	require.NoError(t, a.recv(1))
	closed := make(chan []verbs.Orphan)
	go func() {
		o, err := a.qp.Close()
		require.NoError(t, err)
		closed <- o
	}()
	require.Eventually(t, func() bool { return s.Calls(verbstest.CallDestroyQP) == 1 }, time.Minute, time.Millisecond)
	require.ErrorIs(t, a.mr.Deregister(), verbs.ErrBusy)
	require.ErrorIs(t, a.pd.Close(), verbs.ErrBusy)
	close(wait)
	require.Equal(t, []verbs.Orphan{{1, true}}, <-closed)
}
