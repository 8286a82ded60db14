//go:build ibverbs && linux && cgo

package ibverbs

import (
	"fmt"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/argonaut-rdma/argonaut/verbs/driver"
	"github.com/argonaut-rdma/argonaut/verbs/ibverbs/internal/cverbs"
)

// srq is a shared receive queue.
type srq struct {
	dev *device
	c   cverbs.SRQ

	mu        sync.Mutex
	destroyed bool
	scratch   recvScratch
}

var _ driver.SRQ = (*srq)(nil)

func (p *pd) CreateSRQ(maxWR, maxSGE int) (driver.SRQ, error) {
	d := p.dev
	if !d.caps.SRQ {
		return nil, fmt.Errorf("shared receive queues: %w", driver.ErrNotSupported)
	}
	if maxWR <= 0 || maxSGE <= 0 {
		return nil, fmt.Errorf("ibv_create_srq: %d requests of %d SGEs: %w", maxWR, maxSGE, driver.ErrInvalid)
	}
	c, err := p.c.CreateSRQ(maxWR, maxSGE)
	if err != nil {
		return nil, createErr("ibv_create_srq", err)
	}
	s := &srq{dev: d, c: c, scratch: recvScratch{padEmpty: d.siw()}}
	d.mu.Lock()
	d.srqs[c] = s
	d.mu.Unlock()
	return s, nil
}

func (s *srq) PostRecv(wrs []driver.RecvWR) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.destroyed {
		return 0, driver.ErrClosed
	}
	n, errno, err := s.scratch.post(wrs, "ibv_post_srq_recv", s.c.PostRecv)
	if errno != 0 {
		s.fault(errno)
	}
	return n, err
}

// fault reports a queue that the device no longer serves.
func (s *srq) fault(cause error) {
	s.dev.log.Error("shared receive queue faulted", "device", s.dev.caps.Name, "error", cause)
	s.dev.events.push(driver.Event{Type: driver.EventSRQErr, SRQ: s})
}

func (s *srq) SetLimit(n int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.destroyed {
		return driver.ErrClosed
	}
	if n < 0 {
		return fmt.Errorf("ibv_modify_srq: limit %d: %w", n, driver.ErrInvalid)
	}
	return opErr("ibv_modify_srq", s.c.SetLimit(n))
}

func (s *srq) Destroy() error {
	s.mu.Lock()
	s.destroyed = true
	s.mu.Unlock()
	s.dev.mu.Lock()
	delete(s.dev.srqs, s.c)
	s.dev.mu.Unlock()
	if err := s.c.Destroy(); err != nil {
		s.dev.mu.Lock()
		s.dev.srqs[s.c] = s
		s.dev.mu.Unlock()
		s.mu.Lock()
		s.destroyed = false
		s.mu.Unlock()
		return opErr("ibv_destroy_srq", err)
	}
	return nil
}

// recvScratch holds receives as they cross into C.
type recvScratch struct {
	// padEmpty: siw refuses a receive without an SGE, but takes one of no bytes
	// (which others take for 2 GiB).
	padEmpty bool
	wrs      [cverbs.MaxBatch]cverbs.RecvWR
	sges     []cverbs.SGE
}

// post crosses into C once for every 64 requests, by post. fault is not 0 when the
// device has queued requests and failed all the same: then it has stopped there.
func (s *recvScratch) post(wrs []driver.RecvWR, call string, post func([]cverbs.RecvWR, []cverbs.SGE) (int, unix.Errno)) (done int, fault unix.Errno, err error) {
	for done < len(wrs) {
		batch := wrs[done:min(done+len(s.wrs), len(wrs))]
		s.sges = s.sges[:0]
		for i := range batch {
			s.wrs[i] = cverbs.RecvWR{WRID: batch[i].WRID, NumSGE: uint32(len(batch[i].SGEs))}
			s.sges = appendSGEs(s.sges, batch[i].SGEs)
			if len(batch[i].SGEs) == 0 && s.padEmpty {
				s.wrs[i].NumSGE = 1
				s.sges = append(s.sges, cverbs.SGE{})
			}
		}
		n, errno := post(s.wrs[:len(batch)], s.sges)
		done += n
		if n < len(batch) {
			return done, 0, postErr(call, errno)
		}
		if errno != 0 {
			return done, errno, faultErr(call, errno, len(wrs)-done)
		}
	}
	return done, 0, nil
}

func appendSGEs(to []cverbs.SGE, from []driver.SGE) []cverbs.SGE {
	for _, s := range from {
		to = append(to, cverbs.SGE(s))
	}
	return to
}
