package verbs

import (
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/argonaut-rdma/argonaut/verbs/driver"
)

// SRQConfig is what a shared receive queue is made of.
type SRQConfig struct {
	MaxWR  int // entries; default 256
	MaxSGE int // SGEs of one request; default 1
	// OnEvent is called on the device's event goroutine and must not block.
	OnEvent func(Event)
}

const defaultSRQWR = 256

// SRQ is a shared receive queue.
type SRQ struct {
	pd      *PD
	drv     driver.SRQ
	obj     object
	owner   uint32
	gen     uint64 // first generation of the slots
	maxWR   int
	maxSGE  int
	onEvent func(Event)
	closing atomic.Bool

	recvs, refused atomic.Uint64

	recvMu sync.Mutex // one post at a time
	rwr    []driver.RecvWR
	rsge   []driver.SGE
	taken  []uint32 // the slots of the batch

	mu      sync.Mutex // the ledger
	slots   slots
	uses    uses
	dead    bool
	orphans []Orphan // for Close
}

// CreateSRQ makes a shared receive queue, with Caps.SRQ.
func (pd *PD) CreateSRQ(c SRQConfig) (*SRQ, error) {
	const op = "create SRQ"
	d := pd.dev
	if c.MaxWR == 0 {
		c.MaxWR = defaultSRQWR
	}
	if c.MaxSGE == 0 {
		c.MaxSGE = 1
	}
	err := within("MaxWR", c.MaxWR, 1, d.caps.MaxSRQWR)
	if err == nil {
		err = within("MaxWR", c.MaxWR, 1, slotMask)
	}
	if err == nil {
		err = within("MaxSGE", c.MaxSGE, 1, d.caps.MaxSRQSGE)
	}
	if !d.caps.SRQ {
		err = fmt.Errorf("%w: SRQ", ErrNotSupported)
	}
	if err != nil {
		return nil, d.opError(op, 0, err)
	}
	n := min(c.MaxWR, scratchWR)
	s := &SRQ{
		pd: pd, maxWR: c.MaxWR, maxSGE: c.MaxSGE, onEvent: c.OnEvent,
		rwr: make([]driver.RecvWR, n), rsge: make([]driver.SGE, n*c.MaxSGE), taken: make([]uint32, n),
	}
	if err := s.obj.reserve(d, KindSRQ, s, &pd.obj); err != nil {
		return nil, d.opError(op, 0, err)
	}
	if s.drv, err = pd.drv.CreateSRQ(c.MaxWR, c.MaxSGE); err != nil {
		s.obj.abandon()
		return nil, d.opError(op, 0, err)
	}
	d.mu.Lock()
	own, slot, ok := d.owners.take()
	if ok {
		s.owner, s.gen = own, slot.next
		s.slots = newSlots(c.MaxWR, c.MaxSGE, s.gen)
		d.bySRQ[s.drv] = s
		pd.srqs[s] = struct{}{}
		s.obj.linkLocked()
		slot.srq.Store(s)
	}
	d.mu.Unlock()
	if !ok {
		err := joinErr(fmt.Errorf("%w: queues", ErrLimit), s.drv.Destroy())
		s.obj.abandon()
		return nil, d.opError(op, 0, err)
	}
	return s, nil
}

// PD returns the protection domain.
func (s *SRQ) PD() *PD { return s.pd }

func (s *SRQ) describe(r *Resource) { r.Posted = s.Posted() }

// Posted is how many requests are posted or not yet polled.
func (s *SRQ) Posted() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.slots.live
}

// References counts the SGEs of posted requests that name m.
func (s *SRQ) References(m *MR) int {
	if m.scope != nil {
		return 0
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.uses.count(m)
}

// PostRecv posts receives and returns how many were accepted; with less than
// all, the error says why the next one was not. It borrows wrs and does not
// block.
func (s *SRQ) PostRecv(wrs []RecvWR) (int, error) {
	s.recvMu.Lock()
	defer s.recvMu.Unlock()
	done := 0
	for done < len(wrs) {
		if s.closing.Load() {
			return done, s.postError(ErrClosed)
		}
		n, wait, verr := s.stage(wrs[done:])
		if n > 0 {
			k, err := s.drv.PostRecv(s.rwr[:n])
			k = min(max(k, 0), n)
			if k < n {
				s.mu.Lock()
				for _, i := range s.taken[k:n] {
					s.slots.retire(s.uses, i)
				}
				s.mu.Unlock()
			}
			done += k
			s.recvs.Add(uint64(k))
			if k < n && err == nil {
				err = errShortPost
			}
			if err != nil {
				return done, s.postError(err)
			}
		}
		if verr != nil {
			return done, s.postError(verr)
		}
		if wait != nil {
			wait.check.Lock()
			wait.check.Unlock()
		}
	}
	return done, nil
}

func (s *SRQ) postError(err error) error {
	s.refused.Add(1)
	return s.pd.dev.opError("post receive on SRQ", 0, err)
}

func (s *SRQ) stage(wrs []RecvWR) (n int, wait *MR, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	sge := 0
	for n < len(wrs) && n < len(s.rwr) {
		wr := &wrs[n]
		if wait, err := checkRecv(s.pd, wr.SGEs, s.maxSGE); wait != nil || err != nil {
			return n, wait, err
		}
		if len(s.slots.free) == 0 {
			return n, nil, ErrQueueFull
		}
		i, low := s.slots.take(wr.WRID)
		s.taken[n] = i
		first := sge
		for k := range wr.SGEs {
			g := &wr.SGEs[k]
			if g.Length == 0 {
				continue
			}
			s.rsge[sge] = driver.SGE{Addr: g.MR.addr + g.Offset, Length: g.Length, LKey: g.MR.lkey}
			sge++
			s.slots.hold(&s.uses, i, g.MR)
		}
		s.rwr[n] = driver.RecvWR{WRID: wrID(kindSRQ, s.owner, low), SGEs: s.rsge[first:sge:sge]}
		n++
	}
	return n, nil, nil
}

// settle retires the request that wc completes and gives wc the caller's wr_id;
// false if it is not outstanding.
func (s *SRQ) settle(wc *WC, low uint64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.dead {
		return false
	}
	i, v := s.slots.find(low)
	if v != vOK {
		return false
	}
	wc.WRID = s.slots.tab[i].wrid
	if wc.Status != StatusSuccess {
		wc.Opcode = OpRecv
	}
	s.slots.retire(s.uses, i)
	return true
}

// SetLimit arms one EventSRQLimitReached for when fewer than n entries are left;
// with Caps.SRQLimit.
func (s *SRQ) SetLimit(n int) error {
	const op = "set SRQ limit"
	d := s.pd.dev
	switch {
	case !d.caps.SRQLimit:
		return d.opError(op, 0, fmt.Errorf("%w: SRQ limit", ErrNotSupported))
	case n < 0 || n > s.maxWR:
		return d.opError(op, 0, fmt.Errorf("%w: limit %d of an SRQ of %d", ErrInvalid, n, s.maxWR))
	}
	s.recvMu.Lock()
	defer s.recvMu.Unlock()
	if s.closing.Load() {
		return d.opError(op, 0, ErrClosed)
	}
	return d.opError(op, 0, s.drv.SetLimit(n))
}

// Close destroys the queue and returns its requests that never completed,
// exactly once. With live QPs on it it returns *BusyError and changes nothing.
func (s *SRQ) Close() (orphans []Orphan, err error) {
	err = s.obj.shut("close", "SRQ", nil, func() error {
		s.closing.Store(true)
		s.recvMu.Lock() // the post under way
		s.recvMu.Unlock()
		err := s.drv.Destroy()
		if err != nil && !isLost(err) {
			s.closing.Store(false)
			return err
		}
		s.mu.Lock()
		s.dead = true
		s.orphans = s.slots.orphans(s.uses)
		s.mu.Unlock()
		return err
	}, func() {
		d := s.pd.dev
		s.mu.Lock()
		d.owners.give(s.owner, s.slots.nextGen(s.gen))
		d.total.Orphans += uint64(len(s.orphans))
		s.mu.Unlock()
		delete(d.bySRQ, s.drv)
		delete(s.pd.srqs, s)
		d.events.withdraw(func(e *Event) bool { return e.SRQ == s })
		s.addStats(&d.total)
	})
	s.mu.Lock()
	if s.dead {
		orphans, s.orphans = s.orphans, nil
	}
	s.mu.Unlock()
	return orphans, err
}
