package iwarp

import (
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/argonaut-rdma/argonaut/verbs/driver"
)

// cq is a completion queue: a ring under a lock, and the count readable without it, so that polling an empty queue
// costs one load.
type cq struct {
	dev *Device
	ch  *compChannel // may be nil
	qps atomic.Int64 // queues that complete here

	count atomic.Int64

	mu    sync.Mutex
	ring  []cqe
	head  int
	n     int
	armed arming
	gone  bool
}

type cqe struct {
	wc driver.WC
	qp *queuePair
}

type arming uint8

const (
	disarmed arming = iota
	armedSolicited
	armedAny
)

var _ driver.CQ = (*cq)(nil)

// CreateCQ makes a CQ of exactly depth entries. There are no interrupts, so vector chooses nothing.
func (d *Device) CreateCQ(depth int, ch driver.CompChannel, vector int) (driver.CQ, error) {
	if depth < 1 || depth > d.cfg.MaxCQE || vector < 0 {
		return nil, fmt.Errorf("iwarp: CQ of %d entries, vector %d: %w: from 1 to %d entries", depth, vector, driver.ErrInvalid, d.cfg.MaxCQE)
	}
	c := &cq{dev: d}
	if ch != nil {
		cc, ok := ch.(*compChannel)
		if !ok || cc.dev != d {
			return nil, fmt.Errorf("iwarp: completion channel of another device: %w", driver.ErrInvalid)
		}
		c.ch = cc
	}
	if err := d.take(&d.nCQ, d.cfg.MaxCQ, "CQs"); err != nil {
		return nil, err
	}
	c.ring = make([]cqe, depth)
	if c.ch != nil {
		c.ch.cqs.Add(1)
	}
	return c, nil
}

// push adds a completion and announces it when that is due. A full queue loses it and raises EventCQErr.
func (c *cq) push(wc *driver.WC, q *queuePair, solicited bool) {
	if c.add(wc, q, solicited) {
		c.ch.announce(c)
	}
}

// pushReceived is push by q's receiver, which announces later, without a lock.
func (c *cq) pushReceived(wc *driver.WC, q *queuePair, solicited bool) {
	if c.add(wc, q, solicited) {
		q.rx.due.add(c)
	}
}

// add adds a completion and reports whether it has to be announced.
func (c *cq) add(wc *driver.WC, q *queuePair, solicited bool) bool {
	c.mu.Lock()
	if c.n == len(c.ring) {
		c.mu.Unlock()
		c.dev.stats.CQOverruns.Add(1)
		c.dev.raise(driver.Event{Type: driver.EventCQErr, CQ: c})
		return false
	}
	i := c.head + c.n
	if i >= len(c.ring) {
		i -= len(c.ring)
	}
	c.ring[i] = cqe{wc: *wc, qp: q}
	c.n++
	c.count.Store(int64(c.n))
	notify := c.armed == armedAny || c.armed == armedSolicited && (solicited || wc.Status != driver.StatusSuccess)
	if notify {
		c.armed = disarmed
	}
	c.mu.Unlock()
	return notify && c.ch != nil
}

// dueCQs are the CQs of a QP that a receiver has to announce.
type dueCQs [2]*cq

func (d *dueCQs) add(c *cq) {
	if d[0] != nil && d[0] != c {
		d[1] = c
		return
	}
	d[0] = c
}

// announce announces them. The receiver holds no lock and no region.
func (d *dueCQs) announce() {
	for i, c := range d {
		if c != nil {
			d[i] = nil
			c.ch.deliver(c)
		}
	}
}

func (c *cq) Poll(wcs []driver.WC) (int, error) {
	if c.count.Load() == 0 {
		return 0, nil
	}
	c.mu.Lock()
	n := min(len(wcs), c.n)
	for i := range n {
		wcs[i] = c.ring[c.head].wc
		c.ring[c.head].qp = nil
		if c.head++; c.head == len(c.ring) {
			c.head = 0
		}
	}
	c.n -= n
	c.count.Store(int64(c.n))
	c.mu.Unlock()
	return n, nil
}

func (c *cq) ReqNotify(solicitedOnly bool) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.gone {
		return driver.ErrClosed
	}
	if !solicitedOnly {
		c.armed = armedAny
	} else if c.armed == disarmed {
		c.armed = armedSolicited
	}
	return nil
}

// purge drops the completions of q.
func (c *cq) purge(q *queuePair) {
	c.mu.Lock()
	defer c.mu.Unlock()
	kept := 0
	for i := range c.n {
		from := (c.head + i) % len(c.ring)
		if c.ring[from].qp == q {
			continue
		}
		if to := (c.head + kept) % len(c.ring); to != from {
			c.ring[to] = c.ring[from]
		}
		kept++
	}
	for i := kept; i < c.n; i++ {
		c.ring[(c.head+i)%len(c.ring)].qp = nil
	}
	c.n = kept
	c.count.Store(int64(kept))
}

func (c *cq) Destroy() error {
	if n := c.qps.Load(); n != 0 {
		return fmt.Errorf("iwarp: CQ has %d queues: %w", n, driver.ErrInvalid)
	}
	c.mu.Lock()
	gone := c.gone
	c.gone, c.armed = true, disarmed
	c.mu.Unlock()
	if gone {
		return nil
	}
	if c.ch != nil {
		c.ch.forget(c)
		c.ch.cqs.Add(-1)
	}
	c.dev.dropEvents(func(e driver.Event) bool { return e.CQ == driver.CQ(c) })
	c.dev.nCQ.Add(-1)
	return nil
}
