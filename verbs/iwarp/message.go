package iwarp

import (
	"github.com/argonaut-rdma/argonaut/verbs/driver"
	"github.com/argonaut-rdma/argonaut/verbs/iwarp/internal/wire"
)

type msgKind uint8

const (
	msgNone msgKind = iota
	msgRequest
	msgResponse
)

// txMessage is the DDP message being cut into segments.
type txMessage struct {
	kind    msgKind
	request uint64 // index of the send request, or noRequest
	hdr     wire.Header
	left    int    // bytes
	src     cursor // registered memory
	inline  []byte // instead of src: bytes of our own
	imm     bool   // immediate data follows the WRITE
	// The request completes by the peer's answer. That may come, and the slot be another request's, before the call of the
	// system that has sent it returns.
	answered bool
	snap     bool // checksum a copy: the owner may write to the memory meanwhile
	body     [wire.AtomicReqLen]byte
}

// fill builds as many FPDUs as fit an empty batch; false when there is nothing to send. Called with tx.mu held.
func (q *queuePair) fill(b *txBatch) bool {
	s := &q.tx
	b.reset()
	for b.room() {
		if s.cur.kind == msgNone && !q.nextMessage(b.total > 0) {
			break
		}
		if !q.buildFPDU(b) {
			break
		}
	}
	return b.total > 0
}

// nextMessage chooses what goes out next: responses and requests take turns. behind says that FPDUs wait to be sent;
// then a request that ends the connection has to wait too.
func (q *queuePair) nextMessage(behind bool) bool {
	s := &q.tx
	if !s.open.Load() {
		return q.nextRequest(behind) // local ones may go
	}
	if s.rtr {
		s.rtr = false
		s.cur = txMessage{kind: msgRequest, request: noMessage, hdr: wire.Header{Tagged: true, Op: wire.OpWrite}}
		return true
	}
	if s.turn = !s.turn; s.turn {
		return q.nextResponse() || q.nextRequest(behind)
	}
	return q.nextRequest(behind) || q.nextResponse()
}

func (q *queuePair) nextResponse() bool {
	r := q.tx.responses.take()
	if r == nil {
		return false
	}
	m := &q.tx.cur
	*m = txMessage{kind: msgResponse, request: noRequest}
	if r.atomic {
		m.hdr = wire.Header{Op: wire.OpAtomicResp, QN: wire.QNAtomicResp, MSN: q.nextMSN(wire.QNAtomicResp)}
		wire.PutAtomicResp(m.body[:], wire.AtomicResp{ID: r.id, Value: r.value})
		m.inline = m.body[:wire.AtomicRespLen]
		m.left = wire.AtomicRespLen
		return true
	}
	m.hdr = wire.Header{Tagged: true, Op: wire.OpReadResp, STag: r.sinkSTag, TO: r.sinkTO}
	m.left = int(r.src[0].n)
	m.src.sges = r.src[:]
	m.snap = q.par.crc
	return true
}

func (q *queuePair) nextMSN(qn int) uint32 {
	q.tx.msn[qn]++
	return q.tx.msn[qn]
}

// nextRequest starts the next send request that goes on the wire, executing local ones on the way.
func (q *queuePair) nextRequest(behind bool) bool {
	s := &q.tx
	for ; s.next != q.sq.tail.Load(); s.next++ {
		w := q.sq.slot(s.next)
		if w.flags&driver.SendFence != 0 && q.sq.awaiting() > 0 {
			return false
		}
		if w.bad {
			w.status = driver.StatusLocProtErr
		} else if w.awaits() && q.par.ord == 0 {
			w.status = driver.StatusLocQPOpErr // the peer answers none
		}
		if w.status == driver.StatusSuccess {
			if q.executeLocal(w) {
				q.finish(s.next, driver.StatusSuccess)
				continue
			}
		}
		if w.status != driver.StatusSuccess {
			if behind {
				return false
			}
			q.sq.mu.Lock()
			w.done = true
			q.sq.mu.Unlock()
			s.next++
			q.fail(failure{kind: failRequest, term: wire.Terminate{Code: wire.TermRDMAPLocalCatastrophic}, err: &requestError{w.op, w.status}})
			return false
		}
		if !s.open.Load() || !q.startRequest(w) {
			return false
		}
		s.next++
		return true
	}
	return false
}

// executeLocal executes a request that stays here, and says whether it was one that went well; one that did not has a
// status.
func (q *queuePair) executeLocal(w *sendWQE) bool {
	switch w.op {
	case driver.OpBindMW:
		if win, ok := w.bind.MW.(*window); ok && win.bind(q, &w.bind) {
			return true
		}
		w.status = driver.StatusMWBindErr
	case driver.OpLocalInvalidate:
		if r := q.dev.stags.lookup(w.invalidate); r != nil && r.qp == q {
			r.owner.revoke(r)
			return true
		}
		w.status = driver.StatusLocQPOpErr
	}
	return false
}

// startRequest makes w the current message; false when it has to wait for ORD, or the connection is over.
func (q *queuePair) startRequest(w *sendWQE) bool {
	s := &q.tx
	msn := s.msn[wire.QNReadReq] + 1
	m := &s.cur
	*m = txMessage{kind: msgRequest, request: s.next, left: int(w.length), answered: w.awaits()}
	m.src.sges = w.sges
	if w.flags&driver.SendInline != 0 {
		m.inline = w.inline
	}
	solicited := w.flags&driver.SendSolicited != 0
	switch w.op {
	case driver.OpSend, driver.OpSendWithImm, driver.OpSendWithInv:
		m.hdr = wire.Header{Op: wire.OpSend, QN: wire.QNSend, MSN: q.nextMSN(wire.QNSend)}
		if solicited {
			m.hdr.Op = wire.OpSendSE
		}
		switch w.op {
		case driver.OpSendWithInv:
			m.hdr.STag = w.invalidate
			m.hdr.Op = wire.OpSendInv
			if solicited {
				m.hdr.Op = wire.OpSendSEInv
			}
		case driver.OpSendWithImm:
			m.hdr.Imm, m.hdr.STag = true, w.imm
		}
	case driver.OpWrite, driver.OpWriteWithImm:
		m.hdr = wire.Header{Tagged: true, Op: wire.OpWrite, STag: w.rkey, TO: w.raddr}
		m.imm = w.op == driver.OpWriteWithImm
	case driver.OpRead:
		m.hdr = wire.Header{Op: wire.OpReadReq, QN: wire.QNReadReq, MSN: msn}
		r := wire.ReadReq{Length: w.length, SrcSTag: w.rkey, SrcTO: w.raddr}
		r.SinkSTag, r.SinkTO = w.sink()
		wire.PutReadReq(m.body[:], &r)
		m.inline, m.left = m.body[:wire.ReadReqLen], wire.ReadReqLen
	case driver.OpCompareSwap, driver.OpFetchAdd:
		m.hdr = wire.Header{Op: wire.OpAtomicReq, QN: wire.QNReadReq, MSN: msn}
		r := wire.AtomicReq{Op: wire.AtomicFetchAdd, ID: m.hdr.MSN, STag: w.rkey, TO: w.raddr, AddSwap: w.compareAdd}
		if w.op == driver.OpCompareSwap {
			r.Op, r.AddSwap, r.AddSwapMask, r.Compare, r.CompareMask = wire.AtomicCmpSwap, w.swap, ^uint64(0), w.compareAdd, ^uint64(0)
		}
		wire.PutAtomicReq(m.body[:], &r)
		m.inline, m.left = m.body[:], wire.AtomicReqLen
	}
	if m.answered {
		// The last look at w: a peer that breaks the rules answers what it was not asked.
		if !q.sq.pushAwait(s.next, msn) {
			m.kind = msgNone
			return false
		}
		if q.rx.eof.Load() { // nobody will answer. Looked at after pushAwait, as endOfStream looks after it has set eof.
			m.kind = msgNone
			q.fail(failure{kind: failClosed})
			return false
		}
		q.nextMSN(wire.QNReadReq)
	}
	return true
}

// sink is where a READ's response is to go: STag and TO of its one SGE.
func (w *sendWQE) sink() (stag uint32, to uint64) {
	if len(w.sges) == 0 {
		return 0, 0
	}
	e := &w.sges[0]
	return e.reg.stag, e.reg.base + e.off
}

// buildFPDU adds the next segment of the current message to the batch; false when the connection is over. Called with
// tx.mu held.
func (q *queuePair) buildFPDU(b *txBatch) bool {
	s := &q.tx
	m := &s.cur
	f := q.par.framing
	hl := m.hdr.Len()
	n := min(m.left, q.par.maxULPDU-hl)
	if m.snap && n > copyMax {
		n = min(n, b.snapRoom(q.dev))
		if n == 0 {
			return false // the next batch has room
		}
	}
	m.hdr.Last = n == m.left

	from := b.used
	f.PutLength(b.scratch[from:], hl+n)
	wire.PutHeader(b.scratch[from+int(f):], &m.hdr)
	b.used += int(f) + hl
	pad := f.Pad(hl + n)
	crc := uint32(0)
	switch {
	case m.inline != nil && n <= copyMax:
		b.used += copy(b.scratch[b.used:], m.inline[:n])
		m.inline = m.inline[n:]
	case m.inline != nil:
		if q.par.crc {
			crc = wire.CRC(wire.CRC(0, b.scratch[from:b.used]), m.inline[:n])
		}
		b.addScratch(from)
		b.add(nil, m.inline[:n], noRequest)
		m.inline = m.inline[n:]
		from = b.used
	case n <= copyMax:
		for left := n; left > 0; {
			reg, p := m.src.next(left)
			if !reg.acquire() {
				q.cutShort(&piece{request: m.request})
				return false
			}
			b.used += copy(b.scratch[b.used:], p)
			reg.release()
			left -= len(p)
		}
	default:
		if q.par.crc {
			crc = wire.CRC(0, b.scratch[from:b.used])
		}
		b.addScratch(from)
		for left := n; left > 0; {
			reg, p := m.src.next(left)
			left -= len(p)
			if !q.par.crc {
				b.add(reg, p, m.request)
				continue
			}
			if !reg.acquire() {
				q.cutShort(&piece{request: m.request})
				return false
			}
			if m.snap {
				p = b.snapshot(p)
			}
			crc = wire.CRC(crc, p)
			reg.release()
			if m.snap {
				reg = nil
			}
			b.add(reg, p, m.request)
		}
		from = b.used
	}
	clear(b.scratch[b.used : b.used+pad+wire.CRCLen])
	b.used += pad
	if q.par.crc {
		crc = wire.CRC(crc, b.scratch[from:b.used])
		wire.PutCRC(b.scratch[b.used:], crc)
	}
	b.used += wire.CRCLen
	b.addScratch(from)
	b.fpdus++

	m.left -= n
	if m.hdr.Tagged {
		m.hdr.TO += uint64(n)
	} else {
		m.hdr.MO += uint32(n)
	}
	if m.hdr.Last {
		q.endMessage(b)
	}
	return true
}

// endMessage follows the last segment of the current message.
func (q *queuePair) endMessage(b *txBatch) {
	m := &q.tx.cur
	if m.imm { // RFC 7306: a WRITE's immediate data is a message behind it
		w := q.sq.slot(m.request)
		op := wire.OpImm
		if w.flags&driver.SendSolicited != 0 {
			op = wire.OpImmSE
		}
		*m = txMessage{kind: msgRequest, request: m.request, left: wire.ImmLen,
			hdr: wire.Header{Op: op, QN: wire.QNSend, MSN: q.nextMSN(wire.QNSend)}}
		wire.PutImm(m.body[:], w.imm)
		m.inline = m.body[:wire.ImmLen]
		return
	}
	if m.request != noMessage && !m.answered {
		b.ends = append(b.ends, ending{at: b.total, request: m.request})
	}
	m.kind = msgNone
	m.src = cursor{}
	m.inline = nil
}

// snapRoom is how many bytes of snapshot the batch still takes.
func (b *txBatch) snapRoom(d *Device) int {
	if b.snap == nil {
		b.snap = d.bulk.get()
	}
	return len(b.snap) - b.snapped
}

func (b *txBatch) snapshot(p []byte) []byte {
	n := copy(b.snap[b.snapped:], p)
	s := b.snap[b.snapped : b.snapped+n : b.snapped+n]
	b.snapped += n
	return s
}

// requestError is a send request that could not be executed, for the log.
type requestError struct {
	op     driver.Opcode
	status driver.WCStatus
}

func (e *requestError) Error() string { return "iwarp: " + e.op.String() + ": " + e.status.String() }
