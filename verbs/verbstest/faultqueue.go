package verbstest

import (
	"context"
	"slices"
	"sync"

	"github.com/argonaut-rdma/argonaut/verbs/driver"
)

type faultyCQ struct {
	driver.CQ
	f *Faulty

	mu      sync.Mutex
	pending []driver.WC // from Script.Poll, beyond the room that there was
}

func (c *faultyCQ) Poll(wcs []driver.WC) (int, error) {
	if err := c.f.s.call(CallPoll, len(wcs)).Err; err != nil {
		return 0, err
	}
	if c.f.s.Poll == nil {
		return c.CQ.Poll(wcs)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.pending) == 0 {
		n, err := c.CQ.Poll(wcs)
		if err != nil {
			return n, err
		}
		c.f.s.mu.Lock()
		c.pending = append(c.pending, c.f.s.Poll(slices.Clone(wcs[:n]))...)
		c.f.s.mu.Unlock()
	}
	n := copy(wcs, c.pending)
	c.pending = c.pending[n:]
	return n, nil
}

func (c *faultyCQ) ReqNotify(solicitedOnly bool) error {
	if err := c.f.s.enter(CallReqNotify); err != nil {
		return err
	}
	return c.CQ.ReqNotify(solicitedOnly)
}

func (c *faultyCQ) Destroy() error {
	if err := c.f.s.enter(CallDestroyCQ); err != nil {
		return err
	}
	err := c.CQ.Destroy()
	if err == nil {
		c.f.mu.Lock()
		delete(c.f.cqs, c.CQ)
		c.f.mu.Unlock()
	}
	return err
}

type faultyChannel struct {
	driver.CompChannel
	f *Faulty
}

func (c *faultyChannel) Wait(ctx context.Context) (driver.CQ, error) {
	for {
		if err := c.f.s.enter(CallWait); err != nil {
			return nil, err
		}
		cq, err := c.CompChannel.Wait(ctx)
		if err != nil || cq == nil {
			return nil, err
		}
		c.f.mu.Lock()
		w := c.f.cqs[cq]
		c.f.mu.Unlock()
		if w != nil {
			return w, nil
		}
	}
}

func (c *faultyChannel) SetUpcall(f func(driver.CQ) bool) bool {
	u, ok := c.CompChannel.(driver.Upcaller)
	return ok && u.SetUpcall(func(cq driver.CQ) bool {
		c.f.mu.Lock()
		w := c.f.cqs[cq]
		c.f.mu.Unlock()
		return w != nil && f(w)
	})
}

func (c *faultyChannel) Close() error {
	if err := c.f.s.enter(CallCloseCompChannel); err != nil {
		return err
	}
	return c.CompChannel.Close()
}

type faultySRQ struct {
	driver.SRQ
	f *Faulty
}

func (s *faultySRQ) PostRecv(wrs []driver.RecvWR) (int, error) {
	return postWith(s.f.s.call(CallPostSRQRecv, len(wrs)), wrs, s.SRQ.PostRecv)
}

func (s *faultySRQ) SetLimit(n int) error {
	if err := s.f.s.enter(CallSetLimit); err != nil {
		return err
	}
	return s.SRQ.SetLimit(n)
}

func (s *faultySRQ) Destroy() error {
	if err := s.f.s.enter(CallDestroySRQ); err != nil {
		return err
	}
	err := s.SRQ.Destroy()
	if err == nil {
		s.f.mu.Lock()
		delete(s.f.srqs, s.SRQ)
		s.f.mu.Unlock()
	}
	return err
}

// postWith posts what the fault lets through.
func postWith[WR any](fault Fault, wrs []WR, post func([]WR) (int, error)) (int, error) {
	if fault.Err == nil {
		return post(wrs)
	}
	n := min(fault.Accept, len(wrs))
	if n == 0 {
		return 0, fault.Err
	}
	k, err := post(wrs[:n])
	if err == nil {
		err = fault.Err
	}
	return k, err
}

type faultyQP struct {
	driver.QP
	f *Faulty
}

func (q *faultyQP) flush(fault Fault) {
	if fault.Flush {
		_ = q.QP.SetState(driver.QPStateErr) // a fault that can not be injected shows as a test that sees none
	}
}

func (q *faultyQP) PostSend(wrs []driver.SendWR) (int, error) {
	fault := q.f.s.call(CallPostSend, len(wrs))
	q.flush(fault)
	if slices.ContainsFunc(wrs, func(wr driver.SendWR) bool { return wr.Opcode == driver.OpBindMW }) {
		wrs = slices.Clone(wrs)
		for i := range wrs {
			if b := &wrs[i].Bind; b.MW != nil {
				b.MW, b.MR = b.MW.(*faultyMW).MW, b.MR.(*faultyMR).MR
			}
		}
	}
	return postWith(fault, wrs, q.QP.PostSend)
}

// Doorbell is there whether the wrapped QP has it or not: Caps say so.
func (q *faultyQP) Doorbell() {
	if b, ok := q.QP.(driver.Doorbell); ok {
		b.Doorbell()
	}
}

func (q *faultyQP) PostRecv(wrs []driver.RecvWR) (int, error) {
	fault := q.f.s.call(CallPostRecv, len(wrs))
	q.flush(fault)
	return postWith(fault, wrs, q.QP.PostRecv)
}

func (q *faultyQP) Connect(ctx context.Context, addr string, p driver.ConnParam) (driver.ConnParam, error) {
	if err := q.f.s.enter(CallConnect); err != nil {
		_ = q.QP.SetState(driver.QPStateErr) // as after any Connect that failed
		return driver.ConnParam{}, err
	}
	return q.QP.Connect(ctx, addr, p)
}

// Endpoint is there whether the wrapped QP has it or not: Caps say so.
func (q *faultyQP) Endpoint() (driver.QPEndpoint, error) {
	m, ok := q.QP.(driver.OutOfBand)
	if !ok {
		return driver.QPEndpoint{}, driver.ErrNotSupported
	}
	if err := q.f.s.enter(CallEndpoint); err != nil {
		return driver.QPEndpoint{}, err
	}
	return m.Endpoint()
}

func (q *faultyQP) Modify(a driver.ModifyAttr) error {
	m, ok := q.QP.(driver.OutOfBand)
	if !ok {
		return driver.ErrNotSupported
	}
	if err := q.f.s.enter(CallModify); err != nil {
		return err
	}
	return m.Modify(a)
}

// Cause is the wrapped QP's, if that knows it.
func (q *faultyQP) Cause() (driver.EventType, bool) {
	x, ok := q.QP.(driver.Explainer)
	if !ok {
		return 0, false
	}
	return x.Cause()
}

// LocalCause is the wrapped QP's, if that knows it.
func (q *faultyQP) LocalCause() bool {
	x, ok := q.QP.(driver.Explainer)
	return ok && x.LocalCause()
}

func (q *faultyQP) SetState(s driver.QPState) error {
	if err := q.f.s.enter(CallSetState); err != nil {
		return err
	}
	return q.QP.SetState(s)
}

func (q *faultyQP) State() (driver.QPState, error) {
	if err := q.f.s.enter(CallState); err != nil {
		return 0, err
	}
	return q.QP.State()
}

func (q *faultyQP) Disconnect() error {
	if err := q.f.s.enter(CallDisconnect); err != nil {
		return err
	}
	return q.QP.Disconnect()
}

func (q *faultyQP) Destroy() error {
	if err := q.f.s.enter(CallDestroyQP); err != nil {
		return err
	}
	err := q.QP.Destroy()
	if err == nil {
		q.f.mu.Lock()
		delete(q.f.qps, q.QP)
		q.f.mu.Unlock()
	}
	return err
}
