package verbs

import (
	"errors"

	"github.com/argonaut-rdma/argonaut/verbs/driver"
)

var errShortPost = errors.New("the device took fewer requests than it was given")

// PostSend posts send requests and returns how many were accepted; with less
// than all, the error says why the next one was not: ErrInvalid (what is wrong),
// ErrQueueFull (poll completions first), ErrQPState (not connected, or ERR is
// known), ErrNotSupported (Caps or Features lack it), ErrClosed (the QP, or the
// MR of an SGE). It borrows wrs and does not block.
//
// A request that was accepted when the QP was already in ERR, which nobody knew
// yet, may never complete (Caps.ErrPostCompletesSQ): Close returns it.
func (q *QP) PostSend(wrs []SendWR) (int, error) {
	q.sendMu.Lock()
	defer q.sendMu.Unlock()
	done := 0
	for done < len(wrs) {
		batch := wrs[done:]
		if err := q.canSend(); err != nil {
			return done, q.postError("post send", err)
		}
		var n int
		var wait *MR
		var verr error
		if batch[0].Opcode == OpLocalInvalidate {
			n, verr = q.stageInvalidate(&batch[0])
		} else {
			n, wait, verr = q.stage(batch)
		}
		if n > 0 {
			k, err := q.drv.PostSend(q.swr[:n])
			k = min(max(k, 0), n)
			if k < n {
				q.unstage(n - k)
			}
			done += k
			q.sends.Add(uint64(k))
			if k < n && err == nil {
				err = errShortPost
			}
			if err != nil {
				return done, q.postError("post send", err)
			}
		}
		if verr != nil {
			return done, q.postError("post send", verr)
		}
		if wait != nil {
			wait.check.Lock() // a Deregister is deciding, which takes no lock of ours for long
			wait.check.Unlock()
		}
	}
	return done, nil
}

// Doorbell begins with the requests that were posted SendDeferred. It is called
// once a batch is posted, and whoever posts under a lock calls it without: with
// devices that work by themselves posting is cheap and this does nothing, but the
// software adapter writes to its socket. It never blocks, may be called at any time
// by any number of goroutines, and does nothing where there is nothing to begin. A
// later request without the flag, of anybody's, rings it too.
func (q *QP) Doorbell() {
	if q.bell != nil {
		q.bell.Doorbell()
	}
}

func (q *QP) postError(op string, err error) error {
	q.refused.Add(1)
	return q.dev.opError(op, q.qpn, err)
}

// stage checks requests, enters them in the ledger and writes them into scratch,
// up to the first that has to be posted otherwise, later (wait) or not at all.
func (q *QP) stage(wrs []SendWR) (n int, wait *MR, err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	sge := 0
	for n < len(wrs) && n < len(q.swr) {
		wr := &wrs[n]
		if wr.Opcode == OpLocalInvalidate {
			return n, nil, nil
		}
		total, wait, err := q.checkSend(wr)
		if wait != nil || err != nil {
			return n, wait, err
		}
		if q.sq.full() {
			return n, nil, ErrQueueFull
		}
		asked := wr.Flags&SendSignaled != 0
		signaled := asked || q.mustSignal(wr.Opcode, total)
		seq := q.sq.push(entry{wrid: wr.WRID, op: wr.Opcode, signaled: signaled, asked: asked})
		first := sge
		for i := range wr.SGEs {
			s := &wr.SGEs[i]
			if s.Length == 0 {
				continue // some devices take it for 2 GiB
			}
			q.ssge[sge] = driver.SGE{Addr: s.MR.addr + s.Offset, Length: s.Length, LKey: s.MR.lkey}
			sge++
			if wr.Flags&SendInline == 0 {
				q.sq.hold(&q.uses, s.MR)
			}
		}
		out := &q.swr[n]
		*out = driver.SendWR{
			WRID: wrID(kindSend, q.owner, seq), Opcode: wr.Opcode, Flags: wr.Flags & q.sendFlags, SGEs: q.ssge[first:sge:sge],
			RemoteAddr: wr.RemoteAddr, RKey: wr.RKey, Imm: wr.Imm, InvalidateRKey: wr.InvalidateRKey,
			CompareAdd: wr.CompareAdd, Swap: wr.Swap,
		}
		if signaled {
			out.Flags |= SendSignaled
			q.unsignaled = 0
		} else {
			q.unsignaled++
		}
		n++
	}
	return n, nil, nil
}

// mustSignal says whether the core needs a completion that the caller did not
// ask for. READs and atomics end in any order; large requests are lent to the
// transport by some devices; and without one completion in half a queue nobody
// would ever retire the others.
func (q *QP) mustSignal(op Opcode, total uint64) bool {
	switch op {
	case OpRead, OpCompareSwap, OpFetchAdd:
		return true
	}
	above := q.dev.caps.SignalAbove
	return above > 0 && total >= uint64(above) || q.unsignaled+1 >= (q.cfg.MaxSendWR+1)/2
}

// stageInvalidate does what stage does for one LOCAL_INV. It needs Device.mu,
// which comes before the ledger's lock.
func (q *QP) stageInvalidate(wr *SendWR) (int, error) {
	if err := q.checkInvalidate(wr); err != nil {
		return 0, err
	}
	q.dev.mu.Lock()
	defer q.dev.mu.Unlock()
	w, err := q.boundLocked(wr.InvalidateRKey)
	if err != nil {
		return 0, err
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.sq.full() {
		return 0, ErrQueueFull
	}
	seq := q.sq.push(entry{wrid: wr.WRID, op: wr.Opcode, signaled: true, asked: wr.Flags&SendSignaled != 0})
	if q.windowOps == nil {
		q.windowOps = map[uint64]windowOp{}
	}
	q.windowOps[seq] = windowOp{mw: w}
	w.pending++
	q.unsignaled = 0
	q.swr[0] = driver.SendWR{
		WRID: wrID(kindSend, q.owner, seq), Opcode: wr.Opcode, Flags: wr.Flags&q.sendFlags | SendSignaled, InvalidateRKey: wr.InvalidateRKey,
	}
	return 1, nil
}

// unstage takes the last n requests out of the ledger: the device refused them.
func (q *QP) unstage(n int) {
	q.dev.mu.Lock()
	defer q.dev.mu.Unlock()
	q.mu.Lock()
	defer q.mu.Unlock()
	for s := q.sq.tail - uint64(n); s < q.sq.tail; s++ {
		if op, ok := q.windowOps[s]; ok {
			op.mw.pending--
			delete(q.windowOps, s)
		}
	}
	q.sq.unpush(q.uses, n)
	q.unsignaled = q.cfg.MaxSendWR // which of them were signalled is not known any more: the next one is
	q.drainedLocked()
}

// PostRecv posts receives on the QP's own receive queue, as PostSend. It is
// allowed from INIT on.
func (q *QP) PostRecv(wrs []RecvWR) (int, error) {
	q.recvMu.Lock()
	defer q.recvMu.Unlock()
	if q.srq != nil {
		return 0, q.postError("post receive", errOnSRQ)
	}
	done := 0
	for done < len(wrs) {
		if err := q.canRecv(); err != nil {
			return done, q.postError("post receive", err)
		}
		n, wait, verr := q.stageRecv(wrs[done:])
		if n > 0 {
			k, err := q.drv.PostRecv(q.rwr[:n])
			k = min(max(k, 0), n)
			if k < n {
				q.mu.Lock()
				q.rq.unpush(q.uses, n-k)
				q.drainedLocked()
				q.mu.Unlock()
			}
			done += k
			q.recvs.Add(uint64(k))
			if k < n && err == nil {
				err = errShortPost
			}
			if err != nil {
				return done, q.postError("post receive", err)
			}
		}
		if verr != nil {
			return done, q.postError("post receive", verr)
		}
		if wait != nil {
			wait.check.Lock()
			wait.check.Unlock()
		}
	}
	return done, nil
}

func (q *QP) stageRecv(wrs []RecvWR) (n int, wait *MR, err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	sge := 0
	for n < len(wrs) && n < len(q.rwr) {
		wr := &wrs[n]
		if wait, err := checkRecv(q.pd, wr.SGEs, q.cfg.MaxRecvSGE); wait != nil || err != nil {
			return n, wait, err
		}
		if q.rq.full() {
			return n, nil, ErrQueueFull
		}
		seq := q.rq.push(entry{wrid: wr.WRID, op: OpRecv, signaled: true, asked: true})
		first := sge
		for i := range wr.SGEs {
			s := &wr.SGEs[i]
			if s.Length == 0 {
				continue
			}
			q.rsge[sge] = driver.SGE{Addr: s.MR.addr + s.Offset, Length: s.Length, LKey: s.MR.lkey}
			sge++
			q.rq.hold(&q.uses, s.MR)
		}
		q.rwr[n] = driver.RecvWR{WRID: wrID(kindRecv, q.owner, seq), SGEs: q.rsge[first:sge:sge]}
		n++
	}
	return n, nil, nil
}
