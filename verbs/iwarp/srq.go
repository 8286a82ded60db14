package iwarp

import (
	"fmt"
	"sync/atomic"

	"github.com/argonaut-rdma/argonaut/verbs/driver"
)

type srq struct {
	rq   *recvQueue
	qps  atomic.Int64
	gone atomic.Bool
}

var _ driver.SRQ = (*srq)(nil)

// CreateSRQ makes a shared receive queue.
func (p *pd) CreateSRQ(maxWR, maxSGE int) (driver.SRQ, error) {
	d := p.dev
	if maxWR < 1 || maxWR > d.cfg.MaxSRQWR || maxSGE < 0 || maxSGE > d.cfg.MaxSGE {
		return nil, fmt.Errorf("iwarp: SRQ of %d requests of %d SGEs: %w: at most %d of %d", maxWR, maxSGE, driver.ErrInvalid, d.cfg.MaxSRQWR, d.cfg.MaxSGE)
	}
	if err := d.take(&d.nSRQ, d.cfg.MaxSRQ, "SRQs"); err != nil {
		return nil, err
	}
	p.children.Add(1)
	return &srq{rq: newRecvQueue(d, p, maxWR, maxSGE)}, nil
}

func (s *srq) PostRecv(wrs []driver.RecvWR) (int, error) {
	if s.gone.Load() {
		return 0, driver.ErrClosed
	}
	return s.rq.post(wrs)
}

// SetLimit arms one EventSRQLimitReached for when fewer than n entries are left.
func (s *srq) SetLimit(n int) error {
	if n < 0 || n > len(s.rq.ring) {
		return fmt.Errorf("iwarp: SRQ limit %d: %w: at most %d", n, driver.ErrInvalid, len(s.rq.ring))
	}
	s.rq.mu.Lock()
	reached := s.rq.n < n
	s.rq.limit = n
	if reached {
		s.rq.limit = 0
	}
	s.rq.mu.Unlock()
	if reached {
		s.rq.dev.raise(driver.Event{Type: driver.EventSRQLimitReached, SRQ: s})
	}
	return nil
}

func (s *srq) Destroy() error {
	if n := s.qps.Load(); n != 0 {
		return fmt.Errorf("iwarp: SRQ has %d QPs: %w", n, driver.ErrInvalid)
	}
	if s.gone.CompareAndSwap(false, true) {
		s.rq.dev.dropEvents(func(e driver.Event) bool { return e.SRQ == driver.SRQ(s) })
		s.rq.pd.children.Add(-1)
		s.rq.dev.nSRQ.Add(-1)
	}
	return nil
}
