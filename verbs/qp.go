package verbs

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/argonaut-rdma/argonaut/verbs/driver"
)

// QPConfig is what a queue pair is made of.
type QPConfig struct {
	SendCQ, RecvCQ *CQ  // RecvCQ nil: SendCQ
	SRQ            *SRQ // nil: the QP has a receive queue of its own

	MaxSendWR  int // outstanding send requests; default 128
	MaxRecvWR  int // outstanding receives; default 128; without meaning with an SRQ
	MaxSendSGE int // default 1
	MaxRecvSGE int // default 1
	MaxInline  int // bytes of SendInline data; default 0
	// OnEvent is called on the device's event goroutine and must not block.
	// It also gets EventCQErr when a CQ of the QP has overrun, and
	// EventDeviceFatal when the device is lost.
	OnEvent func(Event)
}

const (
	defaultQPWR = 128
	// scratchWR is how many requests are handed to the driver at a time.
	scratchWR = 64
)

// QPInfo is what QP.Query returns.
type QPInfo struct {
	QPN           uint32
	State         QPState // the device's
	SendPosted    int     // requests posted or not yet polled
	RecvPosted    int     // likewise, of the QP's own receive queue
	MaxSendWR     int
	MaxRecvWR     int
	MaxInline     int
	Children      int // bound windows and scoped keys
	EverConnected bool
}

// QP is a reliable connected queue pair.
type QP struct {
	pd             *PD
	dev            *Device
	drv            driver.QP
	bell           driver.Doorbell // nil: PostSend begins at once
	obj            object
	qpn            uint32
	owner          uint32
	sendCQ, recvCQ *CQ
	srq            *SRQ
	cfg            QPConfig
	onEvent        func(Event)

	state         atomic.Uint32 // QPState as far as known; RTR while connecting
	features      atomic.Uint32 // feature bits, valid in RTS
	closing       atomic.Bool   // no posts: the destructor is running or has run
	everConnected atomic.Bool   // a peer may have been given keys
	discOnce      sync.Once
	disconnected  chan struct{}

	sends, recvs, refused atomic.Uint64

	sendMu     sync.Mutex // one post at a time: ledger and device see the same order
	noSend     bool       // disconnecting
	unsignaled int        // since the last signalled request
	sendFlags  SendFlags  // that the device knows; constant
	swr        []driver.SendWR
	ssge       []driver.SGE

	recvMu sync.Mutex
	rwr    []driver.RecvWR
	rsge   []driver.SGE

	ctl        sync.Mutex // calls into the driver other than posts, against its Destroy
	destroying bool
	cancelConn context.CancelFunc // of a Connect or Accept under way
	connDone   chan struct{}
	noManager  bool // connected by Modify

	mu        sync.Mutex // the ledger
	sq, rq    ring
	uses      uses
	windowOps map[uint64]windowOp // by sequence
	dead      bool                // destroyed: the ledger is closed
	orphans   []Orphan            // for Close
	drained   chan struct{}       // closed when nothing is outstanding; nil: nobody waits
}

// CreateQP makes a queue pair in state INIT: receives may be posted.
func (pd *PD) CreateQP(c QPConfig) (*QP, error) {
	const op = "create QP"
	d := pd.dev
	if err := c.complete(pd); err != nil {
		return nil, d.opError(op, 0, err)
	}
	q := &QP{
		pd: pd, dev: d, sendCQ: c.SendCQ, recvCQ: c.RecvCQ, srq: c.SRQ, cfg: c, onEvent: c.OnEvent,
		disconnected: make(chan struct{}),
	}
	n := min(c.MaxSendWR, scratchWR)
	q.swr, q.ssge = make([]driver.SendWR, n), make([]driver.SGE, n*c.MaxSendSGE)
	n = min(c.MaxRecvWR, scratchWR)
	q.rwr, q.rsge = make([]driver.RecvWR, n), make([]driver.SGE, n*c.MaxRecvSGE)

	parents := []*object{&pd.obj, &c.SendCQ.obj, nil, nil}
	if c.RecvCQ != c.SendCQ {
		parents[2] = &c.RecvCQ.obj
	}
	attr := driver.QPAttr{
		SendCQ: c.SendCQ.drv, RecvCQ: c.RecvCQ.drv, MaxSendWR: c.MaxSendWR, MaxRecvWR: c.MaxRecvWR,
		MaxSendSGE: c.MaxSendSGE, MaxRecvSGE: c.MaxRecvSGE, MaxInline: c.MaxInline,
	}
	if c.SRQ != nil {
		parents[3], attr.SRQ = &c.SRQ.obj, c.SRQ.drv
	}
	if err := q.obj.reserve(d, KindQP, q, parents...); err != nil {
		return nil, d.opError(op, 0, err)
	}
	undo := func(err error) (*QP, error) {
		q.obj.abandon()
		return nil, d.opError(op, 0, err)
	}
	d.mu.Lock()
	own, slot, err := q.admitLocked()
	d.mu.Unlock()
	if err != nil {
		return undo(err)
	}
	drv, err := pd.drv.CreateQP(attr)
	if err != nil {
		d.mu.Lock()
		q.dismissLocked(slot.next)
		d.mu.Unlock()
		return undo(err)
	}
	q.drv, q.qpn, q.owner, q.sendFlags = drv, drv.QPN(), own, ^SendDeferred
	if d.caps.Doorbell {
		q.bell, q.sendFlags = drv.(driver.Doorbell), ^SendFlags(0)
	}
	q.state.Store(uint32(QPStateInit))
	d.mu.Lock()
	if d.isLost() { // and nobody has told the QP
		q.dismissLocked(slot.next)
		d.mu.Unlock()
		return undo(joinErr(ErrDeviceLost, drv.Destroy()))
	}
	d.byQP[drv], d.byQPN[q.qpn] = q, q
	pd.qps[q] = struct{}{}
	q.obj.linkLocked()
	slot.qp.Store(q)
	d.mu.Unlock()
	return q, nil
}

// complete fills in defaults and checks.
func (c *QPConfig) complete(pd *PD) error {
	d := pd.dev
	if c.RecvCQ == nil {
		c.RecvCQ = c.SendCQ
	}
	if c.MaxSendWR == 0 {
		c.MaxSendWR = defaultQPWR
	}
	if c.MaxRecvWR == 0 {
		c.MaxRecvWR = defaultQPWR
	}
	if c.MaxSendSGE == 0 {
		c.MaxSendSGE = 1
	}
	if c.MaxRecvSGE == 0 {
		c.MaxRecvSGE = 1
	}
	if c.SRQ != nil {
		c.MaxRecvWR, c.MaxRecvSGE = 0, 0
	}
	switch {
	case c.SendCQ == nil:
		return fmt.Errorf("%w: no SendCQ", ErrInvalid)
	case c.SendCQ.dev != d || c.RecvCQ.dev != d:
		return fmt.Errorf("%w: the CQ is of another device", ErrInvalid)
	case c.SRQ != nil && c.SRQ.pd != pd:
		return fmt.Errorf("%w: the SRQ is of another PD", ErrInvalid)
	}
	for _, l := range []struct {
		name     string
		v, least int
		most     int // 0: none known
	}{
		{"MaxSendWR", c.MaxSendWR, 1, d.caps.MaxQPWR},
		{"MaxRecvWR", c.MaxRecvWR, 0, d.caps.MaxQPWR},
		{"MaxSendSGE", c.MaxSendSGE, 1, d.caps.MaxSGE},
		{"MaxRecvSGE", c.MaxRecvSGE, 0, d.caps.MaxSGE},
	} {
		if err := within(l.name, l.v, l.least, l.most); err != nil {
			return err
		}
	}
	if c.MaxInline < 0 || c.MaxInline > 0 && (!d.caps.Inline || c.MaxInline > d.caps.MaxInline) {
		return fmt.Errorf("%w: MaxInline %d, the device takes up to %d", ErrInvalid, c.MaxInline, d.caps.MaxInline)
	}
	return nil
}

// within checks a limit; most 0 is no limit known.
func within(name string, v, least, most int) error {
	if v < least || most > 0 && v > most {
		return fmt.Errorf("%w: %s %d is not within %d and the device's %d", ErrInvalid, name, v, least, most)
	}
	return nil
}

// admitLocked takes CQ entries and an index for wr_ids. Device.mu is held.
func (q *QP) admitLocked() (uint32, *owner, error) {
	if err := q.sendCQ.admitLocked(q.cfg.MaxSendWR, nil); err != nil {
		return 0, nil, fmt.Errorf("send: %w", err)
	}
	if err := q.recvCQ.admitLocked(q.cfg.MaxRecvWR, q.srq); err != nil {
		q.sendCQ.dismissLocked(q.cfg.MaxSendWR, nil)
		return 0, nil, fmt.Errorf("receive: %w", err)
	}
	own, slot, ok := q.dev.owners.take()
	if !ok {
		q.sendCQ.dismissLocked(q.cfg.MaxSendWR, nil)
		q.recvCQ.dismissLocked(q.cfg.MaxRecvWR, q.srq)
		return 0, nil, fmt.Errorf("%w: queues", ErrLimit)
	}
	q.owner = own
	q.sq = newRing(q.cfg.MaxSendWR, q.cfg.MaxSendSGE, slot.next, q.dev.caps.InOrderCompletions)
	q.rq = newRing(q.cfg.MaxRecvWR, q.cfg.MaxRecvSGE, slot.next, true)
	q.rq.recv = 1
	return own, slot, nil
}

func (q *QP) dismissLocked(next uint64) {
	q.sendCQ.dismissLocked(q.cfg.MaxSendWR, nil)
	q.recvCQ.dismissLocked(q.cfg.MaxRecvWR, q.srq)
	q.dev.owners.give(q.owner, next)
}

// QPN is the queue pair's number.
func (q *QP) QPN() uint32 { return q.qpn }

// Device returns the device.
func (q *QP) Device() *Device { return q.dev }

// PD returns the protection domain.
func (q *QP) PD() *PD { return q.pd }

// LocalAddr is our address, "host:port", once connected.
func (q *QP) LocalAddr() string { return q.drv.LocalAddr() }

// RemoteAddr is the peer's address, "host:port", once connected.
func (q *QP) RemoteAddr() string { return q.drv.RemoteAddr() }

func (q *QP) String() string { return fmt.Sprintf("QP %d", q.qpn) }

func (q *QP) describe(r *Resource) {
	r.QPN = q.qpn
	q.mu.Lock()
	r.Posted = q.sq.live + q.rq.live
	q.mu.Unlock()
}

// References counts the SGEs of requests of the QP, posted or not yet polled,
// that name m. Those of its SRQ are not the QP's.
func (q *QP) References(m *MR) int {
	if m.scope != nil {
		return 0
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.uses.count(m)
}

// Query returns the QP's attributes.
func (q *QP) Query() (QPInfo, error) {
	const op = "query"
	q.ctl.Lock()
	if q.destroying {
		q.ctl.Unlock()
		return QPInfo{}, q.dev.opError(op, q.qpn, ErrClosed)
	}
	s, err := q.drv.State()
	q.ctl.Unlock()
	if err != nil {
		return QPInfo{}, q.dev.opError(op, q.qpn, err)
	}
	if s == QPStateErr {
		q.setKnownError()
	}
	q.dev.mu.Lock()
	children := q.obj.children
	q.dev.mu.Unlock()
	q.mu.Lock()
	defer q.mu.Unlock()
	return QPInfo{
		QPN: q.qpn, State: s, SendPosted: q.sq.live, RecvPosted: q.rq.live,
		MaxSendWR: q.cfg.MaxSendWR, MaxRecvWR: q.cfg.MaxRecvWR, MaxInline: q.cfg.MaxInline,
		Children: children, EverConnected: q.everConnected.Load(),
	}, nil
}

// Drain waits until the ledger has no request of the QP outstanding, or ctx
// ends. It never polls: somebody else has to. In RTS receives and a last
// un-signalled send stay outstanding, so SetError comes first; a device that
// completes nothing that was posted after an error leaves it to ctx, and to
// Close. Requests of an SRQ are not the QP's.
func (q *QP) Drain(ctx context.Context) error {
	for {
		q.mu.Lock()
		n := q.sq.live + q.rq.live
		if n == 0 {
			q.mu.Unlock()
			return nil
		}
		if q.drained == nil {
			q.drained = make(chan struct{})
		}
		ch := q.drained
		q.mu.Unlock()
		select {
		case <-ch:
		case <-ctx.Done():
			return q.dev.opError("drain", q.qpn, fmt.Errorf("%d requests outstanding: %w", n, ctx.Err()))
		}
	}
}

// drainedLocked wakes Drain; mu is held.
func (q *QP) drainedLocked() {
	if q.drained != nil && q.sq.live+q.rq.live == 0 {
		close(q.drained)
		q.drained = nil
	}
}

// settleLocked retires the request that wc completes, gives wc the caller's
// wr_id and the request's opcode, and reports whether the caller gets it. mu is
// held.
func (q *QP) settleLocked(wc *WC, kind int, low uint64) (keep bool, win windowOp, v verdict) {
	if q.dead {
		return false, win, vLate
	}
	r := &q.sq
	if kind == kindRecv {
		r = &q.rq
	}
	seq, v := r.find(low)
	if v != vOK {
		return false, win, v
	}
	e := r.buf[seq&r.mask]
	if wc.Status != StatusSuccess {
		q.setKnownError()
		if wc.Status == StatusLocQPOpErr && kind == kindSend && q.dev.caps.UnsentIsLocQPOp {
			wc.Status = StatusGeneralErr
		}
	}
	if kind == kindSend || wc.Status != StatusSuccess {
		wc.Opcode = e.op // devices do not tell a SEND from one with immediate data or invalidation
	}
	keep = e.asked || wc.Status != StatusSuccess
	r.complete(q.uses, seq, keep)
	if e.op == OpBindMW || e.op == OpLocalInvalidate {
		win = q.windowOps[seq]
		delete(q.windowOps, seq)
	}
	wc.WRID = e.wrid
	q.drainedLocked()
	return keep, win, vOK
}

// Close destroys the queue pair at once, and with it all access of the device
// on its behalf. It returns the requests that will never complete, exactly
// once: those outstanding, and those whose end no completion told the caller, as
// far back as the queue is deep. With windows bound or scoped keys live it
// returns *BusyError and changes nothing. After *StuckError a further Close waits
// again and returns the orphans. A QP on an SRQ has orphans of the SRQ too:
// entries that it had taken and whose completions were not polled. Entries that
// it had taken and that the device does not complete come back from SRQ.Close.
func (q *QP) Close() (orphans []Orphan, err error) {
	err = q.obj.shut("close", q.String(), nil, q.destroy, q.goneLocked)
	q.mu.Lock()
	if q.dead {
		orphans, q.orphans = q.orphans, nil
	}
	q.mu.Unlock()
	return orphans, err
}

// destroy is QP.Close's destructor.
func (q *QP) destroy() error {
	q.ctl.Lock()
	q.destroying = true // no call into the driver begins from here on
	cancel, done := q.cancelConn, q.connDone
	q.ctl.Unlock()
	if cancel != nil {
		cancel()
		<-done
	}
	q.closing.Store(true)
	q.sendMu.Lock() // the posts under way
	q.sendMu.Unlock()
	q.recvMu.Lock()
	q.recvMu.Unlock()

	var orphans []Orphan
	if q.srq != nil {
		// Some devices purge the completions of a QP that is destroyed, and
		// with them the SRQ entries that it had taken: take them out before.
		_ = q.drv.SetState(QPStateErr)
		orphans = q.recvCQ.purge(q, false, orphans)
	}
	err := q.drv.Destroy()
	if err != nil && !isLost(err) {
		q.mu.Lock()
		q.orphans = append(q.orphans, orphans...)
		q.mu.Unlock()
		q.ctl.Lock()
		q.destroying = false
		q.ctl.Unlock()
		q.closing.Store(false)
		return err
	}
	orphans = q.recvCQ.purge(q, true, orphans)
	if q.sendCQ != q.recvCQ {
		orphans = q.sendCQ.purge(q, true, orphans)
	}
	q.mu.Lock()
	q.dead = true
	q.orphans = append(q.orphans, orphans...)
	q.orphans = q.sq.orphans(q.uses, q.orphans, false)
	q.orphans = q.rq.orphans(q.uses, q.orphans, true)
	q.drainedLocked()
	q.mu.Unlock()
	q.state.Store(uint32(QPStateReset))
	q.discOnce.Do(func() { close(q.disconnected) })
	return err
}

// goneLocked takes the QP out of the device; Device.mu is held.
func (q *QP) goneLocked() {
	d := q.dev
	q.mu.Lock()
	next := max(q.sq.tail, q.rq.tail)
	for _, op := range q.windowOps {
		op.mw.pending-- // its orphan
	}
	q.windowOps = nil
	d.total.Orphans += uint64(len(q.orphans))
	q.mu.Unlock()
	q.dismissLocked(next)
	delete(d.byQP, q.drv)
	if d.byQPN[q.qpn] == q {
		delete(d.byQPN, q.qpn)
	}
	delete(q.pd.qps, q)
	for m := range q.pd.draining {
		m.poke() // it may have waited for this QP to go
	}
	d.events.withdraw(func(e *Event) bool { return e.QP == q })
	q.addStats(&d.total)
}
