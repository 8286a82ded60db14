package iwarp

import (
	"fmt"
	"sync"

	"github.com/argonaut-rdma/argonaut/verbs/driver"
)

// recvWQE is a posted receive. It belongs to its queue until taken, then to the taker until given back.
type recvWQE struct {
	wrid  uint64
	sges  []sge
	total uint64 // bytes
	bad   bool   // an SGE names no memory that may be written
}

// recvQueue is the receive queue of a QP or of an SRQ: first posted, first taken.
type recvQueue struct {
	dev    *Device
	pd     *pd
	maxSGE int

	mu    sync.Mutex
	ring  []*recvWQE
	head  int
	n     int
	free  []*recvWQE
	limit int // SRQ: raise an event when fewer are left; 0: not armed
}

func newRecvQueue(d *Device, p *pd, depth, maxSGE int) *recvQueue {
	rq := &recvQueue{dev: d, pd: p, maxSGE: maxSGE, ring: make([]*recvWQE, depth), free: make([]*recvWQE, depth)}
	wqes := make([]recvWQE, depth)
	sges := make([]sge, depth*maxSGE)
	for i := range wqes {
		wqes[i].sges = sges[i*maxSGE : i*maxSGE : (i+1)*maxSGE]
		rq.free[i] = &wqes[i]
	}
	return rq
}

// post adds requests until one is refused.
func (rq *recvQueue) post(wrs []driver.RecvWR) (int, error) {
	rq.mu.Lock()
	defer rq.mu.Unlock()
	for i := range wrs {
		wr := &wrs[i]
		if len(wr.SGEs) > rq.maxSGE {
			return i, fmt.Errorf("iwarp: receive of %d SGEs: %w: at most %d", len(wr.SGEs), driver.ErrInvalid, rq.maxSGE)
		}
		if len(rq.free) == 0 {
			return i, fmt.Errorf("iwarp: receive: %w", driver.ErrQueueFull)
		}
		w := rq.free[len(rq.free)-1]
		rq.free = rq.free[:len(rq.free)-1]
		w.wrid = wr.WRID
		w.sges, w.total, w.bad = rq.dev.resolve(w.sges[:0], wr.SGEs, rq.pd, driver.AccessLocalWrite)
		t := rq.head + rq.n
		if t >= len(rq.ring) {
			t -= len(rq.ring)
		}
		rq.ring[t] = w
		rq.n++
	}
	return len(wrs), nil
}

// take removes the oldest request, nil if there is none; limit says that the SRQ fell below its armed limit.
func (rq *recvQueue) take() (w *recvWQE, limit bool) {
	rq.mu.Lock()
	defer rq.mu.Unlock()
	if rq.n == 0 {
		return nil, false
	}
	w = rq.ring[rq.head]
	rq.ring[rq.head] = nil
	if rq.head++; rq.head == len(rq.ring) {
		rq.head = 0
	}
	rq.n--
	if rq.n < rq.limit {
		rq.limit = 0
		limit = true
	}
	return w, limit
}

// giveBack returns a taken request.
func (rq *recvQueue) giveBack(w *recvWQE) {
	clear(w.sges)
	rq.mu.Lock()
	rq.free = append(rq.free, w)
	rq.mu.Unlock()
}

// flush takes and gives back every request, in order.
func (rq *recvQueue) flush(f func(*recvWQE)) {
	rq.mu.Lock()
	defer rq.mu.Unlock()
	for ; rq.n > 0; rq.n-- {
		w := rq.ring[rq.head]
		rq.ring[rq.head] = nil
		if rq.head++; rq.head == len(rq.ring) {
			rq.head = 0
		}
		f(w)
		clear(w.sges)
		rq.free = append(rq.free, w)
	}
}
