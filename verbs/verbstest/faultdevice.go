package verbstest

import (
	"context"
	"sync"

	"github.com/argonaut-rdma/argonaut/verbs/driver"
)

// Faulty is a driver that wraps a driver and injects the faults of a Script. Use
// it with verbs.NewDevice.
type Faulty struct {
	d driver.Device
	s *Script

	injected chan driver.Event
	once     sync.Once // of the reader of the wrapped device's events
	read     chan eventRead
	readCtx  context.Context
	stop     context.CancelFunc

	mu   sync.Mutex
	cqs  map[driver.CQ]*faultyCQ
	qps  map[driver.QP]*faultyQP
	srqs map[driver.SRQ]*faultySRQ
}

type eventRead struct {
	e   driver.Event
	err error
}

var _ driver.Device = (*Faulty)(nil)

// NewFaulty wraps d, which it takes: Close closes it. Several devices may share
// a Script. s may be nil.
func NewFaulty(d driver.Device, s *Script) *Faulty {
	if s == nil {
		s = &Script{}
	}
	f := &Faulty{
		d: d, s: s, injected: make(chan driver.Event, 1024), read: make(chan eventRead),
		cqs: map[driver.CQ]*faultyCQ{}, qps: map[driver.QP]*faultyQP{}, srqs: map[driver.SRQ]*faultySRQ{},
	}
	f.readCtx, f.stop = context.WithCancel(context.Background())
	return f
}

// Inject makes NextEvent return e. Its objects are those of the Faulty device;
// see QPs, CQs and SRQs.
func (f *Faulty) Inject(e driver.Event) { f.injected <- e }

// QPs returns the live QPs, for Inject.
func (f *Faulty) QPs() (qps []driver.QP) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, q := range f.qps {
		qps = append(qps, q)
	}
	return qps
}

// CQs returns the live CQs, for Inject.
func (f *Faulty) CQs() (cqs []driver.CQ) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, q := range f.cqs {
		cqs = append(cqs, q)
	}
	return cqs
}

// SRQs returns the live SRQs, for Inject.
func (f *Faulty) SRQs() (srqs []driver.SRQ) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, q := range f.srqs {
		srqs = append(srqs, q)
	}
	return srqs
}

// FlushAll puts every QP to ERR.
func (f *Faulty) FlushAll() error {
	for _, q := range f.QPs() {
		if err := q.(*faultyQP).QP.SetState(driver.QPStateErr); err != nil {
			return err
		}
	}
	return nil
}

// Caps are the wrapped device's, less what the Script takes away.
func (f *Faulty) Caps() driver.Caps {
	c := f.d.Caps()
	if f.s.Caps != nil {
		f.s.Caps(&c)
	}
	return c
}

// AllocPD implements driver.Device.
func (f *Faulty) AllocPD() (driver.PD, error) {
	if err := f.s.enter(CallAllocPD); err != nil {
		return nil, err
	}
	pd, err := f.d.AllocPD()
	if err != nil {
		return nil, err
	}
	return &faultyPD{pd, f}, nil
}

// CreateCompChannel implements driver.Device.
func (f *Faulty) CreateCompChannel() (driver.CompChannel, error) {
	if err := f.s.enter(CallCreateCompChannel); err != nil {
		return nil, err
	}
	ch, err := f.d.CreateCompChannel()
	if err != nil {
		return nil, err
	}
	return &faultyChannel{ch, f}, nil
}

// CreateCQ implements driver.Device.
func (f *Faulty) CreateCQ(depth int, ch driver.CompChannel, vector int) (driver.CQ, error) {
	if err := f.s.enter(CallCreateCQ); err != nil {
		return nil, err
	}
	if ch != nil {
		ch = ch.(*faultyChannel).CompChannel
	}
	cq, err := f.d.CreateCQ(depth, ch, vector)
	if err != nil {
		return nil, err
	}
	c := &faultyCQ{CQ: cq, f: f}
	f.mu.Lock()
	f.cqs[cq] = c
	f.mu.Unlock()
	return c, nil
}

// Listen implements driver.Device.
func (f *Faulty) Listen(ctx context.Context, addr string) (driver.Listener, error) {
	if err := f.s.enter(CallListen); err != nil {
		return nil, err
	}
	l, err := f.d.Listen(ctx, addr)
	if err != nil {
		return nil, err
	}
	return &faultyListener{l, f}, nil
}

// NextEvent implements driver.Device.
func (f *Faulty) NextEvent(ctx context.Context) (driver.Event, error) {
	f.once.Do(func() { go f.readEvents() })
	for {
		if err := f.s.enter(CallNextEvent); err != nil {
			return driver.Event{}, err
		}
		select {
		case e := <-f.injected:
			return e, nil
		case r := <-f.read:
			if r.err != nil {
				return driver.Event{}, r.err
			}
			if f.translate(&r.e) && (f.s.Event == nil || f.s.event(&r.e)) {
				return r.e, nil
			}
		case <-ctx.Done():
			return driver.Event{}, ctx.Err()
		case <-f.readCtx.Done():
			return driver.Event{}, driver.ErrClosed
		}
	}
}

func (s *Script) event(e *driver.Event) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.Event(e)
}

// readEvents is owned by the device and ends with Close.
func (f *Faulty) readEvents() {
	for {
		e, err := f.d.NextEvent(f.readCtx)
		select {
		case f.read <- eventRead{e, err}:
		case <-f.readCtx.Done():
			return
		}
		if err != nil {
			return
		}
	}
}

// translate replaces the wrapped device's objects; false if one is gone.
func (f *Faulty) translate(e *driver.Event) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if e.QP != nil {
		q := f.qps[e.QP]
		if q == nil {
			return false
		}
		e.QP = q
	}
	if e.CQ != nil {
		q := f.cqs[e.CQ]
		if q == nil {
			return false
		}
		e.CQ = q
	}
	if e.SRQ != nil {
		q := f.srqs[e.SRQ]
		if q == nil {
			return false
		}
		e.SRQ = q
	}
	return true
}

// Close implements driver.Device.
func (f *Faulty) Close() error {
	if err := f.s.enter(CallCloseDevice); err != nil {
		return err
	}
	f.stop()
	return f.d.Close()
}

type faultyPD struct {
	driver.PD
	f *Faulty
}

func (p *faultyPD) RegMR(mem []byte, acc driver.Access) (driver.MR, error) {
	if err := p.f.s.enter(CallRegMR); err != nil {
		return nil, err
	}
	m, err := p.PD.RegMR(mem, acc)
	if err != nil {
		return nil, err
	}
	return &faultyMR{m, p.f}, nil
}

func (p *faultyPD) RegScoped(mr driver.MR, off, n uint64, acc driver.Access, qp driver.QP) (driver.MR, error) {
	if err := p.f.s.enter(CallRegScoped); err != nil {
		return nil, err
	}
	m, err := p.PD.RegScoped(mr.(*faultyMR).MR, off, n, acc, qp.(*faultyQP).QP)
	if err != nil {
		return nil, err
	}
	return &faultyMR{m, p.f}, nil
}

func (p *faultyPD) AllocMW() (driver.MW, error) {
	if err := p.f.s.enter(CallAllocMW); err != nil {
		return nil, err
	}
	w, err := p.PD.AllocMW()
	if err != nil {
		return nil, err
	}
	return &faultyMW{w, p.f}, nil
}

func (p *faultyPD) CreateSRQ(maxWR, maxSGE int) (driver.SRQ, error) {
	if err := p.f.s.enter(CallCreateSRQ); err != nil {
		return nil, err
	}
	srq, err := p.PD.CreateSRQ(maxWR, maxSGE)
	if err != nil {
		return nil, err
	}
	s := &faultySRQ{srq, p.f}
	p.f.mu.Lock()
	p.f.srqs[srq] = s
	p.f.mu.Unlock()
	return s, nil
}

func (p *faultyPD) CreateQP(a driver.QPAttr) (driver.QP, error) {
	if err := p.f.s.enter(CallCreateQP); err != nil {
		return nil, err
	}
	a.SendCQ, a.RecvCQ = a.SendCQ.(*faultyCQ).CQ, a.RecvCQ.(*faultyCQ).CQ
	if a.SRQ != nil {
		a.SRQ = a.SRQ.(*faultySRQ).SRQ
	}
	qp, err := p.PD.CreateQP(a)
	if err != nil {
		return nil, err
	}
	q := &faultyQP{qp, p.f}
	p.f.mu.Lock()
	p.f.qps[qp] = q
	p.f.mu.Unlock()
	return q, nil
}

func (p *faultyPD) Dealloc() error {
	if err := p.f.s.enter(CallDeallocPD); err != nil {
		return err
	}
	return p.PD.Dealloc()
}

type faultyMR struct {
	driver.MR
	f *Faulty
}

func (m *faultyMR) Deregister() error {
	if err := m.f.s.enter(CallDeregister); err != nil {
		return err
	}
	return m.MR.Deregister()
}

type faultyMW struct {
	driver.MW
	f *Faulty
}

func (w *faultyMW) Dealloc() error {
	if err := w.f.s.enter(CallDeallocMW); err != nil {
		return err
	}
	return w.MW.Dealloc()
}
