package verbs_test

import (
	"context"
	"sync"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/argonaut-rdma/argonaut/verbs"
	"github.com/argonaut-rdma/argonaut/verbs/driver"
)

// loop is a device without a wire, for tests of the core's ledger: it takes
// requests, and a test says when which of them is done. It moves no data.
type loop struct {
	caps   driver.Caps
	events chan driver.Event
	making func() // called by CreateQP, if set
	made   func() // called by Connect, if set, when the QP is in RTS

	mu      sync.Mutex
	keys    uint32
	qpn     uint32
	qps     []*loopQP
	refuse  int           // a post accepts at most so many requests; < 0: all
	fail    error         // what the next destructor returns
	block   chan struct{} // destructors wait for it, if set
	destroy int           // destructor calls
}

func newLoop(change func(*driver.Caps)) *loop {
	l := &loop{
		caps: driver.Caps{
			Name: "loop", MaxQPWR: 1 << 10, MaxSRQWR: 1 << 10, MaxSGE: 4, MaxReadSGE: 2, MaxSRQSGE: 4, MaxInline: 64, MaxCQE: 1 << 16,
			MaxMRSize: 1 << 30, MaxMsgSize: 1 << 20, MaxPrivateData: 64, MaxIRD: 16, MaxORD: 16,
			MW2: true, MWConfines: true, ScopedKeys: true, Atomics: true, Imm: true, SendInv: true, SRQ: true, SRQLimit: true,
			Inline: true, DeregBarrier: true,
		},
		events: make(chan driver.Event, 64),
		refuse: -1,
	}
	if change != nil {
		change(&l.caps)
	}
	return l
}

// open makes a Device over l and closes it when the test ends.
func (l *loop) open(t testing.TB, cfg verbs.Config) *verbs.Device {
	d, err := verbs.NewDevice(l, cfg)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, d.Close()) })
	return d
}

func (l *loop) Caps() driver.Caps { return l.caps }

func (l *loop) AllocPD() (driver.PD, error) { return &loopPD{l: l}, nil }

func (l *loop) CreateCompChannel() (driver.CompChannel, error) {
	return &loopChannel{wake: make(chan driver.CQ, 16), closed: make(chan struct{})}, nil
}

func (l *loop) CreateCQ(depth int, ch driver.CompChannel, _ int) (driver.CQ, error) {
	c := &loopCQ{l: l}
	if ch != nil {
		c.ch = ch.(*loopChannel)
	}
	return c, nil
}

func (l *loop) Listen(context.Context, string) (driver.Listener, error) {
	return nil, driver.ErrNotSupported
}

func (l *loop) NextEvent(ctx context.Context) (driver.Event, error) {
	select {
	case e := <-l.events:
		return e, nil
	case <-ctx.Done():
		return driver.Event{}, driver.ErrClosed
	}
}

func (l *loop) Close() error { return nil }

// gone is the common part of destructors.
func (l *loop) gone() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.destroy++
	if block := l.block; block != nil {
		l.mu.Unlock()
		<-block
		l.mu.Lock()
	}
	err := l.fail
	l.fail = nil
	return err
}

func (l *loop) failNext(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.fail = err
}

func (l *loop) key() uint32 {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.keys += 0x100
	return l.keys
}

type loopPD struct{ l *loop }

func (p *loopPD) RegMR(mem []byte, acc driver.Access) (driver.MR, error) {
	k := p.l.key()
	m := &loopMR{l: p.l, addr: uint64(uintptr(unsafe.Pointer(&mem[0]))), length: uint64(len(mem)), lkey: k}
	if acc&driver.AccessRemote != 0 {
		m.rkey = k
	}
	return m, nil
}

func (p *loopPD) RegScoped(mr driver.MR, off, n uint64, acc driver.Access, qp driver.QP) (driver.MR, error) {
	k := p.l.key()
	return &loopMR{l: p.l, addr: mr.Addr() + off, length: n, rkey: k}, nil
}
func (p *loopPD) AllocMW() (driver.MW, error) { return &loopMW{l: p.l, rkey: p.l.key()}, nil }
func (p *loopPD) CreateSRQ(maxWR, maxSGE int) (driver.SRQ, error) {
	return &loopSRQ{l: p.l}, nil
}
func (p *loopPD) Dealloc() error { return p.l.gone() }

func (p *loopPD) CreateQP(a driver.QPAttr) (driver.QP, error) {
	if p.l.making != nil {
		p.l.making()
	}
	p.l.mu.Lock()
	defer p.l.mu.Unlock()
	p.l.qpn++
	q := &loopQP{l: p.l, qpn: p.l.qpn, attr: a, state: driver.QPStateInit}
	p.l.qps = append(p.l.qps, q)
	return q, nil
}

// last is the QP made last.
func (l *loop) last() *loopQP {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.qps[len(l.qps)-1]
}

type loopMR struct {
	l            *loop
	addr, length uint64
	lkey, rkey   uint32
}

func (m *loopMR) Addr() uint64      { return m.addr }
func (m *loopMR) Length() uint64    { return m.length }
func (m *loopMR) LKey() uint32      { return m.lkey }
func (m *loopMR) RKey() uint32      { return m.rkey }
func (m *loopMR) Deregister() error { return m.l.gone() }

type loopMW struct {
	l    *loop
	rkey uint32
}

func (w *loopMW) RKey() uint32   { return w.rkey }
func (w *loopMW) Dealloc() error { return w.l.gone() }

type loopCQ struct {
	l     *loop
	ch    *loopChannel
	wcs   []driver.WC
	armed bool
}

func (c *loopCQ) Poll(wcs []driver.WC) (int, error) {
	c.l.mu.Lock()
	defer c.l.mu.Unlock()
	n := copy(wcs, c.wcs)
	c.wcs = c.wcs[n:]
	if len(c.wcs) == 0 {
		c.wcs = nil
	}
	return n, nil
}

func (c *loopCQ) ReqNotify(bool) error {
	c.l.mu.Lock()
	defer c.l.mu.Unlock()
	c.armed = true
	return nil
}
func (c *loopCQ) Destroy() error { return c.l.gone() }

// add is called with l.mu held.
func (c *loopCQ) add(wc driver.WC) {
	c.wcs = append(c.wcs, wc)
	if c.armed && c.ch != nil {
		c.armed = false
		c.ch.wake <- c
	}
}

type loopChannel struct {
	wake   chan driver.CQ
	closed chan struct{}
}

func (c *loopChannel) Wait(ctx context.Context) (driver.CQ, error) {
	select {
	case cq := <-c.wake:
		return cq, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-c.closed:
		return nil, driver.ErrClosed
	}
}
func (c *loopChannel) Wake()        { c.wake <- nil }
func (c *loopChannel) Close() error { close(c.closed); return nil }

type loopSRQ struct {
	l   *loop
	wrs []driver.RecvWR
}

func (s *loopSRQ) PostRecv(wrs []driver.RecvWR) (int, error) {
	s.l.mu.Lock()
	defer s.l.mu.Unlock()
	n := len(wrs)
	var err error
	if s.l.refuse >= 0 && s.l.refuse < n {
		n, err = s.l.refuse, driver.ErrQueueFull
	}
	s.wrs = append(s.wrs, wrs[:n]...)
	return n, err
}
func (s *loopSRQ) SetLimit(int) error { return nil }
func (s *loopSRQ) Destroy() error     { return s.l.gone() }

type loopQP struct {
	l     *loop
	qpn   uint32
	attr  driver.QPAttr
	state driver.QPState
	sq    []driver.SendWR // without SGEs
	rq    []driver.RecvWR
	sges  int // of the send requests posted last
	cause driver.EventType
	local bool // of cause
}

func (q *loopQP) Cause() (driver.EventType, bool) { return q.cause, q.cause != 0 }
func (q *loopQP) LocalCause() bool                { return q.local }

func (q *loopQP) QPN() uint32 { return q.qpn }

func (q *loopQP) PostSend(wrs []driver.SendWR) (int, error) {
	q.l.mu.Lock()
	defer q.l.mu.Unlock()
	n := len(wrs)
	var err error
	if q.l.refuse >= 0 && q.l.refuse < n {
		n, err = q.l.refuse, driver.ErrQueueFull
	}
	q.sges = 0
	for _, wr := range wrs[:n] {
		q.sges += len(wr.SGEs)
		wr.SGEs = nil
		q.sq = append(q.sq, wr)
	}
	return n, err
}

func (q *loopQP) PostRecv(wrs []driver.RecvWR) (int, error) {
	q.l.mu.Lock()
	defer q.l.mu.Unlock()
	for _, wr := range wrs {
		q.rq = append(q.rq, driver.RecvWR{WRID: wr.WRID})
	}
	return len(wrs), nil
}

func (q *loopQP) Connect(context.Context, string, driver.ConnParam) (driver.ConnParam, error) {
	q.l.mu.Lock()
	q.state = driver.QPStateRTS
	q.l.mu.Unlock()
	if q.l.made != nil {
		q.l.made()
	}
	return driver.ConnParam{}, nil
}

func (q *loopQP) Endpoint() (driver.QPEndpoint, error) {
	return driver.QPEndpoint{QPN: q.qpn, PSN: 1, LID: 1, MTU: 1024}, nil
}

func (q *loopQP) Modify(a driver.ModifyAttr) error {
	q.l.mu.Lock()
	defer q.l.mu.Unlock()
	q.state = a.State
	return nil
}

func (q *loopQP) LocalAddr() string  { return "loop:1" }
func (q *loopQP) RemoteAddr() string { return "loop:2" }
func (q *loopQP) Features() driver.Features {
	return driver.Features{Atomics: true, Imm: true, SendInv: true}
}

func (q *loopQP) SetState(s driver.QPState) error {
	q.l.mu.Lock()
	defer q.l.mu.Unlock()
	if s != driver.QPStateErr {
		return driver.ErrNotSupported
	}
	q.state = s
	for _, wr := range q.sq {
		q.send().add(driver.WC{WRID: wr.WRID, Status: driver.StatusWRFlushErr, QPN: q.qpn})
	}
	for _, wr := range q.rq {
		q.recv().add(driver.WC{WRID: wr.WRID, Status: driver.StatusWRFlushErr, QPN: q.qpn})
	}
	q.sq, q.rq = nil, nil
	return nil
}

func (q *loopQP) State() (driver.QPState, error) {
	q.l.mu.Lock()
	defer q.l.mu.Unlock()
	return q.state, nil
}
func (q *loopQP) Disconnect() error { return nil }
func (q *loopQP) Destroy() error    { return q.l.gone() }

func (q *loopQP) send() *loopCQ { return q.attr.SendCQ.(*loopCQ) }
func (q *loopQP) recv() *loopCQ { return q.attr.RecvCQ.(*loopCQ) }

// finish completes the i-th request of the send queue with success.
func (q *loopQP) finish(i int) {
	q.l.mu.Lock()
	defer q.l.mu.Unlock()
	wr := q.sq[i]
	q.sq = append(q.sq[:i:i], q.sq[i+1:]...)
	if wr.Flags&driver.SendSignaled != 0 {
		q.send().add(driver.WC{WRID: wr.WRID, Opcode: driver.OpSend, QPN: q.qpn}) // whatever it was: the core knows
	}
}

// receive completes the first receive with success.
func (q *loopQP) receive(wc driver.WC) {
	q.l.mu.Lock()
	defer q.l.mu.Unlock()
	if q.attr.SRQ != nil {
		s := q.attr.SRQ.(*loopSRQ)
		wc.WRID = s.wrs[0].WRID
		s.wrs = s.wrs[1:]
	} else {
		wc.WRID = q.rq[0].WRID
		q.rq = q.rq[1:]
	}
	wc.Opcode, wc.QPN = driver.OpRecv, q.qpn
	q.recv().add(wc)
}
