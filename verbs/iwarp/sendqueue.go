package iwarp

import (
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/argonaut-rdma/argonaut/verbs/driver"
)

// sendWQE is a posted send request, in its slot of the ring until it is retired.
type sendWQE struct {
	wrid   uint64
	op     driver.Opcode
	flags  driver.SendFlags
	done   bool // executed; status holds
	bad    bool // an SGE names no memory that may be used so
	status driver.WCStatus
	length uint32 // bytes
	sges   []sge
	inline []byte // the bytes themselves, with SendInline

	raddr      uint64
	rkey       uint32
	imm        uint32
	invalidate uint32
	compareAdd uint64
	swap       uint64
	bind       driver.MWBind
	msn        uint32 // of the request that awaits an answer
}

// awaits says whether the request completes by the peer's answer.
func (w *sendWQE) awaits() bool { return awaits(w.op) }

func awaits(op driver.Opcode) bool {
	return op == driver.OpRead || op == driver.OpCompareSwap || op == driver.OpFetchAdd
}

// sendQueue is a QP's send queue. Indices only grow; a slot is index mod len(slots).
//
//	head <= tx.next <= tail: retired | handed to the sender | posted
type sendQueue struct {
	tail atomic.Uint64 // stored with mu held, after the slot is filled

	mu        sync.Mutex
	slots     []sendWQE
	depth     int
	maxInline int
	head      uint64
	failed    bool // a request has completed with an error: none after it succeeds
	flushed   bool // ERR, and everything before was completed: further posts complete at once

	// Requests that await an answer, as indices, oldest first: answers come in order. The ring has room for ORD.
	await      []uint64
	awaitHead  int
	awaitCount int
}

func (s *sendQueue) init(depth, maxSGE, maxInline int) {
	s.depth, s.maxInline = depth, maxInline
	s.slots = make([]sendWQE, max(depth, 1))
	sges := make([]sge, len(s.slots)*maxSGE)
	for i := range s.slots {
		s.slots[i].sges = sges[i*maxSGE : i*maxSGE : (i+1)*maxSGE]
	}
}

func (s *sendQueue) slot(i uint64) *sendWQE { return &s.slots[i%uint64(len(s.slots))] }

// PostSend never blocks. What the network takes at once has gone out when it returns, but for what is deferred.
func (q *queuePair) PostSend(wrs []driver.SendWR) (int, error) {
	s := &q.sq
	s.mu.Lock()
	st := q.qpState()
	if st != driver.QPStateRTS && st != driver.QPStateErr {
		s.mu.Unlock()
		return 0, fmt.Errorf("iwarp: send in %v: %w", st, driver.ErrQPState)
	}
	var err error
	n := 0
	for ; n < len(wrs); n++ {
		if err = q.enqueue(&wrs[n]); err != nil {
			break
		}
	}
	if st == driver.QPStateErr {
		if s.flushed {
			q.flushLocked()
		}
		s.mu.Unlock()
		return n, err
	}
	s.mu.Unlock()
	if n > 0 && wrs[n-1].Flags&driver.SendDeferred == 0 {
		q.kick()
	}
	return n, err
}

// Doorbell implements driver.Doorbell.
func (q *queuePair) Doorbell() {
	if q.qpState() == driver.QPStateRTS {
		q.kick()
	}
}

// enqueue fills the next slot. Called with sq.mu held.
func (q *queuePair) enqueue(wr *driver.SendWR) error {
	s := &q.sq
	tail := s.tail.Load()
	if int(tail-s.head) >= s.depth {
		return fmt.Errorf("iwarp: send: %w", driver.ErrQueueFull)
	}
	switch wr.Opcode {
	case driver.OpSend, driver.OpSendWithInv, driver.OpWrite, driver.OpLocalInvalidate, driver.OpBindMW:
	case driver.OpRead:
		if len(wr.SGEs) > 1 {
			return fmt.Errorf("iwarp: READ of %d SGEs: %w: at most 1", len(wr.SGEs), driver.ErrInvalid)
		}
	case driver.OpSendWithImm, driver.OpWriteWithImm:
		if !q.par.ours && q.qpState() == driver.QPStateRTS {
			return fmt.Errorf("iwarp: %v: %w by the peer", wr.Opcode, driver.ErrNotSupported)
		}
	case driver.OpCompareSwap, driver.OpFetchAdd:
		if !q.par.ours && q.qpState() == driver.QPStateRTS {
			return fmt.Errorf("iwarp: %v: %w by the peer", wr.Opcode, driver.ErrNotSupported)
		}
		if len(wr.SGEs) != 1 || wr.SGEs[0].Length != 8 {
			return fmt.Errorf("iwarp: %v: %w: one SGE of 8 bytes", wr.Opcode, driver.ErrInvalid)
		}
	default:
		return fmt.Errorf("iwarp: %v on the send queue: %w", wr.Opcode, driver.ErrInvalid)
	}
	w := s.slot(tail)
	if len(wr.SGEs) > cap(w.sges) {
		return fmt.Errorf("iwarp: send of %d SGEs: %w: at most %d", len(wr.SGEs), driver.ErrInvalid, cap(w.sges))
	}
	need := driver.Access(0)
	if awaits(wr.Opcode) {
		need = driver.AccessLocalWrite
	}
	inline := wr.Flags&driver.SendInline != 0 && !awaits(wr.Opcode)
	var total uint64
	w.bad = false
	w.sges, total, w.bad = q.dev.resolve(w.sges[:0], wr.SGEs, q.pd, need)
	w.inline = w.inline[:0]
	if inline {
		if total > uint64(s.maxInline) {
			return fmt.Errorf("iwarp: %d bytes inline: %w: at most %d", total, driver.ErrInvalid, s.maxInline)
		}
		for i := range w.sges {
			e := &w.sges[i]
			if e.reg == nil || !e.reg.acquire() {
				w.bad = true
				continue
			}
			w.inline = append(w.inline, e.reg.mem[e.off:e.off+uint64(e.n)]...)
			e.reg.release()
		}
		clear(w.sges)
		w.sges = w.sges[:0]
	}
	w.wrid, w.op, w.flags = wr.WRID, wr.Opcode, wr.Flags
	w.done, w.status = false, driver.StatusSuccess
	w.length = uint32(total)
	if total > uint64(q.dev.cfg.MaxMsgSize) {
		w.status = driver.StatusLocLenErr
	}
	w.raddr, w.rkey, w.imm, w.invalidate = wr.RemoteAddr, wr.RKey, wr.Imm, wr.InvalidateRKey
	w.compareAdd, w.swap = wr.CompareAdd, wr.Swap
	if wr.Opcode == driver.OpBindMW {
		w.bind = wr.Bind
	}
	s.tail.Store(tail + 1)
	return nil
}

// retire completes what is done at the head of the queue, in order. received says that the receiver calls it. Called with sq.mu held.
func (q *queuePair) retire(received bool) {
	s := &q.sq
	for tail := s.tail.Load(); s.head < tail; s.head++ {
		w := s.slot(s.head)
		if !w.done {
			return
		}
		if w.status != driver.StatusSuccess {
			s.failed = true
		} else if s.failed {
			w.status = driver.StatusWRFlushErr
		}
		if w.status != driver.StatusSuccess || w.flags&driver.SendSignaled != 0 {
			wc := driver.WC{WRID: w.wrid, Status: w.status, Opcode: w.op, ByteLen: w.length, QPN: q.qpn}
			if received {
				q.scq.pushReceived(&wc, q, false)
			} else {
				q.scq.push(&wc, q, false)
			}
		}
		clear(w.sges)
		if w.op == driver.OpBindMW {
			w.bind = driver.MWBind{}
		}
	}
}

// finish marks one request done and retires what can be.
func (q *queuePair) finish(i uint64, st driver.WCStatus) {
	q.sq.mu.Lock()
	w := q.sq.slot(i)
	w.done, w.status = true, st
	q.retire(false)
	q.sq.mu.Unlock()
}

// flushSends completes everything outstanding: what was executed with its status, the rest with WR_FLUSH_ERR. Sender
// and receiver are out of the way.
func (q *queuePair) flushSends() {
	q.sq.mu.Lock()
	q.sq.flushed = true
	q.flushLocked()
	q.sq.mu.Unlock()
}

func (q *queuePair) flushLocked() {
	s := &q.sq
	for i, tail := s.head, s.tail.Load(); i < tail; i++ {
		if w := s.slot(i); !w.done {
			w.done, w.status = true, driver.StatusWRFlushErr
		}
	}
	s.awaitHead, s.awaitCount = 0, 0
	q.retire(false)
}

// pushAwait notes that the request at index i awaits an answer under msn; false when ORD are outstanding. From then on
// the receiver looks at it.
func (s *sendQueue) pushAwait(i uint64, msn uint32) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.awaitCount == len(s.await) {
		return false
	}
	s.slot(i).msn = msn
	s.await[(s.awaitHead+s.awaitCount)%len(s.await)] = i
	s.awaitCount++
	return true
}

// awaiting is the number of requests that await an answer.
func (s *sendQueue) awaiting() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.awaitCount
}

// firstAwait returns the oldest request that awaits an answer, or nil. It stays in place until finishAwait.
func (s *sendQueue) firstAwait() *sendWQE {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.awaitCount == 0 {
		return nil
	}
	return s.slot(s.await[s.awaitHead])
}

// finishAwait completes the oldest request that awaits an answer. It is the receiver who calls it.
func (q *queuePair) finishAwait(st driver.WCStatus) {
	s := &q.sq
	s.mu.Lock()
	w := s.slot(s.await[s.awaitHead])
	s.awaitHead = (s.awaitHead + 1) % len(s.await)
	s.awaitCount--
	w.done, w.status = true, st
	q.retire(true)
	s.mu.Unlock()
	q.kick() // what waited for ORD, a fence or the end may go
}

// failAwait gives the request that awaits an answer under msn its status, for the flush to come.
func (q *queuePair) failAwait(msn uint32, st driver.WCStatus) {
	s := &q.sq
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.awaitCount {
		if w := s.slot(s.await[(s.awaitHead+i)%len(s.await)]); w.msn == msn && !w.done {
			w.done, w.status = true, st
		}
	}
}
