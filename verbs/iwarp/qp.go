package iwarp

import (
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/argonaut-rdma/argonaut/verbs/driver"
	"github.com/argonaut-rdma/argonaut/verbs/iwarp/internal/wire"
)

// queuePair is a reliable connected QP. See doc.go for its goroutines and lock order.
type queuePair struct {
	dev  *Device
	pd   *pd
	qpn  uint32
	attr driver.QPAttr
	scq  *cq
	rcq  *cq
	srq  *srq
	rq   *recvQueue // the QP's own, or the SRQ's

	windows sync.Map // *window to its *region, of those bound to this QP

	state atomic.Uint32 // driver.QPState; changed with mu held, to RTS and SQD with sq.mu held as well

	mu        sync.Mutex
	taken     bool    // Connect or Accept has begun
	running   bool    // the goroutines have started
	destroyed bool    // Destroy has begun
	cause     failure // of ERR

	// Set before the goroutines start, then constant.
	conn          net.Conn
	raw           syscall.RawConn // nil: everything goes through a bounce buffer and conn's own Read and Write
	par           connParams
	local, remote string

	failed   chan struct{} // closed when fail has done its part
	quiet    chan struct{} // closed when the goroutines touch no memory and no queue any more
	rxQuiet  chan struct{} // closed when the receiver does not
	txDone   chan struct{} // closed when the sender has ended
	finished chan struct{} // closed when the connection is gone

	sq sendQueue
	tx sender
	rx receiver
}

// connParams are what the two ends agreed on.
type connParams struct {
	initiator bool
	ours      bool // the peer speaks the vendor extension
	crc       bool
	framing   wire.Framing
	maxULPDU  int // of what we send, bytes
	ird, ord  int
}

var (
	_ driver.QP        = (*queuePair)(nil)
	_ driver.Explainer = (*queuePair)(nil)
	_ driver.Doorbell  = (*queuePair)(nil)
)

// maxSGE bounds Config.MaxSGE: one system call takes a whole list.
const maxSGE = 64

// CreateQP makes a QP in INIT.
func (p *pd) CreateQP(a driver.QPAttr) (driver.QP, error) {
	d := p.dev
	c := &d.cfg
	scq, ok1 := a.SendCQ.(*cq)
	rcq, ok2 := a.RecvCQ.(*cq)
	if !ok1 || !ok2 || scq.dev != d || rcq.dev != d {
		return nil, fmt.Errorf("iwarp: QP without CQs of its device: %w", driver.ErrInvalid)
	}
	if a.MaxSendWR < 0 || a.MaxSendWR > c.MaxQPWR || a.MaxRecvWR < 0 || a.MaxRecvWR > c.MaxQPWR ||
		a.MaxSendSGE < 0 || a.MaxSendSGE > c.MaxSGE || a.MaxRecvSGE < 0 || a.MaxRecvSGE > c.MaxSGE ||
		a.MaxInline < 0 || a.MaxInline > c.MaxInline {
		return nil, fmt.Errorf("iwarp: QP of %d+%d requests, %d+%d SGEs, %d bytes inline: %w: at most %d, %d and %d", a.MaxSendWR,
			a.MaxRecvWR, a.MaxSendSGE, a.MaxRecvSGE, a.MaxInline, driver.ErrInvalid, c.MaxQPWR, c.MaxSGE, c.MaxInline)
	}
	q := &queuePair{dev: d, pd: p, attr: a, scq: scq, rcq: rcq,
		failed: make(chan struct{}), quiet: make(chan struct{}), rxQuiet: make(chan struct{}), txDone: make(chan struct{}), finished: make(chan struct{})}
	if a.SRQ != nil {
		s, ok := a.SRQ.(*srq)
		if !ok || s.rq.pd != p {
			return nil, fmt.Errorf("iwarp: SRQ of another PD: %w", driver.ErrInvalid)
		}
		q.srq, q.rq = s, s.rq
	}
	if err := d.take(&d.nQP, c.MaxQP, "QPs"); err != nil {
		return nil, err
	}
	if q.srq == nil {
		q.rq = newRecvQueue(d, p, a.MaxRecvWR, a.MaxRecvSGE)
	} else {
		q.srq.qps.Add(1)
	}
	q.sq.init(a.MaxSendWR, a.MaxSendSGE, a.MaxInline)
	q.tx.wake = make(chan struct{}, 1)
	p.children.Add(1)
	scq.qps.Add(1)
	rcq.qps.Add(1)
	q.state.Store(uint32(driver.QPStateInit))
	d.addQP(q)
	return q, nil
}

func (q *queuePair) QPN() uint32 { return q.qpn }

func (q *queuePair) qpState() driver.QPState { return driver.QPState(q.state.Load()) }

// State never fails.
func (q *queuePair) State() (driver.QPState, error) { return q.qpState(), nil }

func (q *queuePair) LocalAddr() string {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.local
}

func (q *queuePair) RemoteAddr() string {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.remote
}

// Features: what RFC 7306 adds is there between two of this implementation.
func (q *queuePair) Features() driver.Features {
	q.mu.Lock()
	defer q.mu.Unlock()
	return driver.Features{Atomics: q.par.ours, Imm: q.par.ours, SendInv: true}
}

// PostRecv posts receives in every state. In ERR they complete flushed, at once or with the others.
func (q *queuePair) PostRecv(wrs []driver.RecvWR) (int, error) {
	if q.srq != nil {
		return 0, fmt.Errorf("iwarp: QP takes its receives from an SRQ: %w", driver.ErrInvalid)
	}
	n, err := q.rq.post(wrs)
	if n > 0 && q.qpState() == driver.QPStateErr {
		q.mu.Lock()
		running := q.running
		q.mu.Unlock()
		if running {
			select {
			case <-q.rxQuiet:
			default: // they are flushed before quiet is closed
				return n, err
			}
		}
		q.flushRecvs()
	}
	return n, err
}

// flushRecvs completes the QP's own receives with WR_FLUSH_ERR, in order. The receiver is out of the way.
func (q *queuePair) flushRecvs() {
	if q.srq != nil {
		return
	}
	q.rq.flush(func(w *recvWQE) {
		q.rcq.push(&driver.WC{WRID: w.wrid, Status: driver.StatusWRFlushErr, Opcode: driver.OpRecv, QPN: q.qpn}, q, false)
	})
}

// SetState moves the QP to ERR; what was posted completes flushed.
func (q *queuePair) SetState(s driver.QPState) error {
	if s != driver.QPStateErr {
		return fmt.Errorf("iwarp: QP to %v: %w", s, driver.ErrNotSupported)
	}
	q.fail(failure{kind: failLocal})
	return nil
}

// Disconnect lets what was posted go out and be answered, then ends our direction of the connection. When the peer has
// ended its own, the QP goes to ERR and EventDisconnected follows.
func (q *queuePair) Disconnect() error {
	q.mu.Lock()
	q.sq.mu.Lock()
	switch q.qpState() {
	case driver.QPStateRTS:
		q.state.Store(uint32(driver.QPStateSQD))
	case driver.QPStateSQD, driver.QPStateErr:
		q.sq.mu.Unlock()
		q.mu.Unlock()
		return nil
	default:
		q.sq.mu.Unlock()
		q.mu.Unlock()
		return fmt.Errorf("iwarp: disconnect of a QP that is not connected: %w", driver.ErrQPState)
	}
	q.sq.mu.Unlock()
	q.mu.Unlock()
	q.kick()
	return nil
}

// Destroy ends all access to memory and queues before it returns, which is prompt. The connection's last words go out
// behind it.
func (q *queuePair) Destroy() error {
	q.fail(failure{kind: failLocal})
	<-q.quiet
	q.mu.Lock()
	again := q.destroyed
	q.destroyed = true
	q.mu.Unlock()
	if again {
		return nil
	}
	q.windows.Range(func(w, r any) bool {
		w.(*window).revoke(r.(*region))
		return true
	})
	if q.srq == nil {
		q.scq.purge(q)
		q.rcq.purge(q)
	} // else its completions stay: only they say which entries of the SRQ it had taken
	q.dev.dropEvents(func(e driver.Event) bool { return e.QP == driver.QP(q) })
	q.scq.qps.Add(-1)
	q.rcq.qps.Add(-1)
	if q.srq != nil {
		q.srq.qps.Add(-1)
	}
	q.pd.children.Add(-1)
	q.dev.removeQP(q)
	q.dev.nQP.Add(-1)
	return nil
}
