package iwarp

import (
	"sync/atomic"
	"unsafe"

	"github.com/argonaut-rdma/argonaut/verbs/driver"
	"github.com/argonaut-rdma/argonaut/verbs/iwarp/internal/wire"
)

// control is the body of the control message being received, kept until its checksum is known to be good.
type control struct {
	readReq    wire.ReadReq
	atomicReq  wire.AtomicReq
	atomicResp wire.AtomicResp
	imm        uint32
	term       wire.Terminate
	raw        [wire.ReadReqLen]byte // of a Read Request, for Terminate
}

// onSegment checks a segment's header and finds its destination; false when the connection is over.
func (q *queuePair) onSegment() bool {
	r := &q.rx
	h := &r.hdr
	switch {
	case h.Op == wire.OpWrite:
		return q.onWrite()
	case h.Op == wire.OpReadResp:
		return q.onReadResp()
	case h.MSN != r.msn[h.QN]+1:
		return q.peerBroke(wire.TermDDPMSNRange)
	case h.Op.IsSend():
		return q.onSend()
	case h.Op.IsImm() && r.recv != nil: // they share a queue, where one message ends before the next begins
		return q.peerBroke(wire.TermRDMAPOpcode)
	}
	if h.MO != 0 {
		return q.peerBroke(wire.TermDDPInvalidMO)
	}
	if r.left > smallSize {
		return q.peerBroke(wire.TermDDPTooLong)
	}
	if !h.Last || r.left == 0 { // control messages have one segment
		return q.peerBroke(wire.TermRDMAPStreamCatastrophic)
	}
	r.begin(rxBody, r.left)
	return true
}

// toPayload goes on with the segment's payload, or its trailer when there is none.
func (q *queuePair) toPayload(dst *cursor) bool {
	r := &q.rx
	if r.left == 0 {
		r.begin(rxTrailer, q.par.framing.Pad(r.ulpdu)+wire.CRCLen)
		return true
	}
	r.dst = dst
	r.phase = rxPayload
	return true
}

func (q *queuePair) onWrite() bool {
	r := &q.rx
	if r.wdone {
		r.wlen, r.wdone = 0, false
	}
	r.wlen += uint32(r.left)
	if r.left > 0 { // of an empty WRITE neither STag nor TO is looked at
		reg, off, v := q.remoteAccess(r.hdr.STag, r.hdr.TO, uint64(r.left), driver.AccessRemoteWrite)
		if v != accessOK {
			return q.peerBroke(v.tagged())
		}
		r.sge[0] = sge{reg: reg, off: off, n: uint32(r.left)}
		r.one = cursor{sges: r.sge[:]}
	}
	return q.toPayload(&r.one)
}

func (q *queuePair) onReadResp() bool {
	r := &q.rx
	w := q.sq.firstAwait()
	if w == nil || w.op != driver.OpRead {
		return q.peerBroke(wire.TermDDPInvalidSTag)
	}
	if uint32(r.left) > w.length-r.aoff || r.hdr.Last && uint32(r.left) != w.length-r.aoff {
		return q.peerBroke(wire.TermDDPBounds)
	}
	if r.left > 0 {
		stag, to := w.sink()
		if r.hdr.STag != stag {
			return q.peerBroke(wire.TermDDPInvalidSTag)
		}
		if r.hdr.TO != to+uint64(r.aoff) {
			return q.peerBroke(wire.TermDDPBounds)
		}
		r.one = cursor{sges: w.sges, off: r.aoff}
		r.aoff += uint32(r.left)
	}
	return q.toPayload(&r.one)
}

func (q *queuePair) onSend() bool {
	r := &q.rx
	h := &r.hdr
	if r.recv == nil {
		if h.MO != 0 {
			return q.peerBroke(wire.TermDDPInvalidMO)
		}
		if !q.takeRecv() {
			return false
		}
		r.rcur, r.roff, r.rop = cursor{sges: r.recv.sges}, 0, h.Op
	} else if h.MO != r.roff {
		return q.peerBroke(wire.TermDDPInvalidMO)
	} else if h.Op != r.rop {
		return q.peerBroke(wire.TermRDMAPOpcode)
	}
	if uint64(r.left) > r.recv.total-uint64(r.roff) {
		return q.recvFault(wire.TermDDPTooLong, driver.StatusLocLenErr)
	}
	if r.recv.bad && r.left > 0 {
		return q.recvFault(wire.TermRDMAPLocalCatastrophic, driver.StatusLocProtErr)
	}
	r.roff += uint32(r.left)
	return q.toPayload(&r.rcur)
}

// takeRecv takes the next receive; none ends the connection.
func (q *queuePair) takeRecv() bool {
	w, limit := q.rq.take()
	if limit {
		q.dev.raise(driver.Event{Type: driver.EventSRQLimitReached, SRQ: q.srq})
	}
	if w == nil {
		return q.peerBroke(wire.TermDDPNoBuffer)
	}
	q.rx.recv = w
	return true
}

// recvDone completes a receive that was taken. It is free for the next one before its completion is seen.
func (q *queuePair) recvDone(w *recvWQE, wc driver.WC, solicited bool) {
	wc.WRID, wc.QPN = w.wrid, q.qpn
	if wc.Opcode != driver.OpRecvWriteImm {
		wc.Opcode = driver.OpRecv
	}
	q.rq.giveBack(w)
	q.rcq.pushReceived(&wc, q, solicited)
}

// recvFault ends the connection for a receive that can not take its message.
func (q *queuePair) recvFault(code wire.TermCode, st driver.WCStatus) bool {
	q.peerBroke(code)
	w := q.rx.recv
	q.rx.recv = nil
	q.recvDone(w, driver.WC{Status: st}, false)
	return false
}

// destinationGone ends the connection because memory that payload was to go to was deregistered.
func (q *queuePair) destinationGone() {
	switch r := &q.rx; {
	case r.hdr.Op == wire.OpWrite:
		q.peerBroke(wire.TermDDPInvalidSTag)
	case r.hdr.Op == wire.OpReadResp:
		q.failAwait(q.sq.firstAwait().msn, driver.StatusLocProtErr)
		q.fail(failure{kind: failRequest, term: wire.Terminate{Code: wire.TermRDMAPLocalCatastrophic},
			err: &requestError{driver.OpRead, driver.StatusLocProtErr}})
	default:
		q.recvFault(wire.TermRDMAPLocalCatastrophic, driver.StatusLocProtErr)
	}
}

// peerBroke ends the connection for the segment at hand. It returns false.
func (q *queuePair) peerBroke(code wire.TermCode) bool {
	r := &q.rx
	f := peerFault(code, &r.hdr, r.ulpdu, nil)
	if r.hdr.Op == wire.OpReadReq && code.Layer() == 0 {
		f.term.HasRDMAP, f.term.RDMAP = true, r.ctl.raw
	}
	q.fail(f)
	return false
}

// onBody takes the body of a control message.
func (q *queuePair) onBody(p []byte) bool {
	r := &q.rx
	c := &r.ctl
	if q.par.crc {
		r.crc = wire.CRC(r.crc, p)
	}
	var err error
	switch r.hdr.Op {
	case wire.OpReadReq:
		if c.readReq, err = wire.DecodeReadReq(p); err == nil {
			copy(c.raw[:], p)
		}
	case wire.OpAtomicReq:
		c.atomicReq, err = wire.DecodeAtomicReq(p)
	case wire.OpAtomicResp:
		c.atomicResp, err = wire.DecodeAtomicResp(p)
	case wire.OpImm, wire.OpImmSE:
		c.imm, err = wire.DecodeImm(p)
	case wire.OpTerminate:
		c.term, err = wire.DecodeTerminate(p)
	}
	if err != nil {
		return q.decodeFault(err, &r.hdr)
	}
	r.begin(rxTrailer, q.par.framing.Pad(r.ulpdu)+wire.CRCLen)
	return true
}

// onSegmentEnd does what a segment asks for, now that it is whole.
func (q *queuePair) onSegmentEnd() bool {
	r := &q.rx
	h := &r.hdr
	if !h.Last {
		return true
	}
	if !h.Tagged {
		r.msn[h.QN]++
	}
	switch op := h.Op; {
	case op == wire.OpWrite:
		r.wdone = true
		return true
	case op == wire.OpReadResp:
		r.aoff = 0
		q.finishAwait(driver.StatusSuccess)
		return true
	case op.IsSend():
		return q.endSend()
	case op == wire.OpReadReq:
		return q.answerRead(&r.ctl.readReq)
	case op == wire.OpTerminate:
		return q.onTerminate(&r.ctl.term)
	case !q.par.ours:
		return q.peerBroke(wire.TermRDMAPOpcode)
	case op.IsImm():
		if !q.takeRecv() {
			return false
		}
		w := r.recv
		r.recv = nil
		q.recvDone(w, driver.WC{Opcode: driver.OpRecvWriteImm, ByteLen: r.wlen, Imm: r.ctl.imm, HasImm: true}, op.Solicited())
		return true
	case op == wire.OpAtomicReq:
		return q.answerAtomic(&r.ctl.atomicReq)
	}
	return q.onAtomicResp(&r.ctl.atomicResp)
}

func (q *queuePair) endSend() bool {
	r := &q.rx
	h := &r.hdr
	wc := driver.WC{ByteLen: r.roff}
	if h.Imm && q.par.ours {
		wc.Imm, wc.HasImm = h.STag, true
	}
	if h.Op.Invalidates() {
		// Only a key made for this QP alone may be taken away by its peer.
		reg := q.dev.stags.lookup(h.STag)
		if reg == nil || reg.qp != q {
			return q.recvFault(wire.TermRDMAPCantInvalidate, driver.StatusWRFlushErr)
		}
		reg.owner.revoke(reg)
		wc.InvalidatedRKey, wc.HasInv = h.STag, true
	}
	w := r.recv
	r.recv = nil
	q.recvDone(w, wc, h.Op.Solicited())
	return true
}

func (q *queuePair) answerRead(req *wire.ReadReq) bool {
	x := response{sinkSTag: req.SinkSTag, sinkTO: req.SinkTO}
	if req.Length > 0 {
		reg, off, v := q.remoteAccess(req.SrcSTag, req.SrcTO, uint64(req.Length), driver.AccessRemoteRead)
		if v != accessOK {
			return q.peerBroke(v.rdmap())
		}
		x.src[0] = sge{reg: reg, off: off, n: req.Length}
	}
	return q.answer(&x)
}

func (q *queuePair) answer(x *response) bool {
	if !q.tx.responses.put(x) {
		return q.peerBroke(wire.TermDDPNoBuffer) // more than IRD at a time
	}
	q.kick()
	return true
}

// answerAtomic executes an atomic on memory that the host may change with atomics of its own.
func (q *queuePair) answerAtomic(req *wire.AtomicReq) bool {
	reg, off, v := q.remoteAccess(req.STag, req.TO, 8, driver.AccessRemoteAtomic)
	if v != accessOK {
		return q.peerBroke(v.rdmap())
	}
	p := unsafe.Pointer(&reg.mem[off])
	if uintptr(p)%8 != 0 {
		return q.peerBroke(wire.TermRDMAPProtection)
	}
	if !reg.acquire() {
		return q.peerBroke(wire.TermRDMAPInvalidSTag)
	}
	old := atomicExecute((*uint64)(p), req)
	reg.release()
	return q.answer(&response{atomic: true, id: req.ID, value: old})
}

// atomicExecute returns the value before. Masks are RFC 7306's: of the bits compared and swapped, and of the last bit
// of each field added.
func atomicExecute(p *uint64, req *wire.AtomicReq) uint64 {
	for {
		old := atomic.LoadUint64(p)
		var next uint64
		if req.Op == wire.AtomicCmpSwap {
			if (old^req.Compare)&req.CompareMask != 0 {
				return old
			}
			next = old&^req.AddSwapMask | req.AddSwap&req.AddSwapMask
		} else {
			m := req.AddSwapMask
			next = (old&^m + req.AddSwap&^m) ^ (old^req.AddSwap)&m
		}
		if atomic.CompareAndSwapUint64(p, old, next) {
			return old
		}
	}
}

func (q *queuePair) onAtomicResp(resp *wire.AtomicResp) bool {
	w := q.sq.firstAwait()
	if w == nil || w.op == driver.OpRead || w.msn != resp.ID {
		return q.peerBroke(wire.TermDDPMSNRange)
	}
	reg, p := (&cursor{sges: w.sges}).next(8)
	if !reg.acquire() {
		q.failAwait(w.msn, driver.StatusLocProtErr)
		q.fail(failure{kind: failRequest, term: wire.Terminate{Code: wire.TermRDMAPLocalCatastrophic},
			err: &requestError{w.op, driver.StatusLocProtErr}})
		return false
	}
	putNative(p, resp.Value)
	reg.release()
	q.finishAwait(driver.StatusSuccess)
	return true
}

// onTerminate ends the connection as the peer wants. When it names a request that awaits an answer, that one fails.
func (q *queuePair) onTerminate(t *wire.Terminate) bool {
	q.dev.stats.TerminatesReceived.Add(1)
	if t.HasDDP && !t.DDP.Tagged && t.DDP.QN == wire.QNReadReq {
		st := driver.StatusRemOpErr
		if t.Code.Layer() == 0 && t.Code.Type() == 1 {
			st = driver.StatusRemAccessErr
		}
		q.failAwait(t.DDP.MSN, st)
	}
	q.fail(failure{kind: failTerminated, term: *t, err: driver.ErrProtocol})
	return false
}
