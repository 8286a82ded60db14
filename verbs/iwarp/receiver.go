package iwarp

import (
	"errors"
	"fmt"
	"io"
	"sync/atomic"

	"github.com/argonaut-rdma/argonaut/verbs/driver"
	"github.com/argonaut-rdma/argonaut/verbs/iwarp/internal/wire"
)

// Implementation constants of the receiver.
const (
	bulkSize  = 64 << 10 // one read of small FPDUs
	directMin = 8 << 10  // bytes of payload still to come that are read straight into their destination
	smallSize = 64       // the longest header, body or trailer: an Atomic Request
	directIOV = maxSGE + 1
)

type rxPhase uint8

const (
	rxHeader rxPhase = iota
	rxBody           // a control message
	rxPayload
	rxTrailer // pad and CRC
)

// receiver is the receiving half of a QP, all of it the receiver goroutine's but eof. It is a machine that takes the
// stream in pieces of any size; what it has to see in one piece (header, control message, trailer) is at most smallSize
// bytes and waits in small, so that a connection with nothing to read holds no other buffer.
type receiver struct {
	eof atomic.Bool // the peer has ended its direction

	bulk []byte // borrowed while there is something to read

	phase rxPhase
	need  int // bytes of header, body or trailer
	have  int // of which in small
	small [smallSize]byte

	hdr   wire.Header
	ulpdu int
	left  int // payload bytes of this segment still to come
	crc   uint32
	large bool // the last segment was one to be read directly

	dst   *cursor  // where the payload goes
	one   cursor   // of a WRITE or READ response
	sge   [1]sge   // of one
	recv  *recvWQE // the SEND being received
	rcur  cursor   // of recv
	roff  uint32   // bytes of it received
	rop   wire.Opcode
	wlen  uint32 // bytes of the WRITE being received, or the last one
	wdone bool   // that one is over
	aoff  uint32 // bytes of the READ response received
	msn   [4]uint32

	iov  []iovec
	held []*region
	tail [smallSize]byte

	ctl control
	due dueCQs // to be announced after what was read is handled

	stop error // why the loop ended; nil at the end of the stream
}

var errStopped = errors.New("iwarp: QP in ERR")

// receiverLoop is the receiver goroutine: started with the connection, owned by the QP, ended by the end of the stream
// or by ERR. It flushes the receive queue, gives the peer time to read our last words, closes the connection and says
// that it is gone. It touches no queue once rxQuiet is closed.
func (q *queuePair) receiverLoop() {
	r := &q.rx
	if q.raw != nil {
		f := q.receive
		if err := q.raw.Read(f); err != nil && r.stop == nil {
			r.stop = err
		}
	} else {
		q.receiveBounced()
	}
	q.endOfStream()
	<-q.failed
	if w := r.recv; w != nil {
		r.recv = nil
		q.recvDone(w, driver.WC{Status: driver.StatusWRFlushErr}, false)
	}
	q.flushRecvs()
	r.due.announce()
	close(q.rxQuiet)
	q.linger()
	<-q.txDone
	_ = q.conn.Close()
	q.dev.dig(q.conn)
	q.raise(driver.EventDisconnected)
	close(q.finished)
}

// endOfStream moves the QP to ERR for whatever ended the loop. When the peer has ended its direction while ours still
// has work that Disconnect was promised, the sender finishes that first, unless it still waits for the peer to speak.
func (q *queuePair) endOfStream() {
	r := &q.rx
	q.returnBulk()
	switch {
	case r.stop == errStopped:
	case r.stop != nil:
		q.fail(failure{kind: failLost, err: r.stop}) // no effect when a fault was found
	case r.phase != rxHeader || r.have > 0:
		q.fail(failure{kind: failLost, err: fmt.Errorf("iwarp: stream ended in mid-FPDU: %w", io.ErrUnexpectedEOF)})
	default:
		r.eof.Store(true)
		if q.qpState() == driver.QPStateSQD && q.tx.open.Load() && q.sq.awaiting() == 0 {
			q.kick() // endIfDone sees eof
			return
		}
		q.fail(failure{kind: failClosed})
	}
}

// linger reads and drops what the peer still sends, until it ends or Linger is over: a close with unread bytes would
// reset the connection and take our last words with it.
func (q *queuePair) linger() {
	if q.rx.eof.Load() {
		return
	}
	if f := q.reason(); f.kind == failLost || f.kind == failCut {
		return
	}
	q.dev.linger(q.conn.SetReadDeadline)
	buf := make([]byte, 4<<10)
	for {
		if _, err := q.conn.Read(buf); err != nil {
			return
		}
	}
}

func (q *queuePair) returnBulk() {
	if q.rx.bulk != nil {
		q.dev.bulk.put(q.rx.bulk)
		q.rx.bulk = nil
	}
}

// receive reads until the socket is empty; then it returns false and is called again when there is more.
func (q *queuePair) receive(fd uintptr) bool {
	r := &q.rx
	for {
		if q.qpState() == driver.QPStateErr {
			r.stop = errStopped
			return true
		}
		var n int
		var err error
		if r.phase == rxPayload && (r.large || r.left >= directMin) {
			n, err = q.readDirect(fd)
		} else {
			n, err = q.readBulk(fd)
		}
		r.due.announce()
		switch {
		case err != nil && wouldBlock(err):
			q.returnBulk()
			return false
		case err != nil: // errStopped among others
			r.stop = err
			return true
		case n == 0:
			return true
		}
		q.dev.stats.Reads.Add(1)
		q.dev.stats.BytesIn.Add(int64(n))
	}
}

// readBulk reads many FPDUs into one buffer; or, among large ones, just a header, so that no payload is copied.
func (q *queuePair) readBulk(fd uintptr) (int, error) {
	r := &q.rx
	buf := r.tail[:]
	if r.large {
		buf = buf[:q.lookahead()]
	} else {
		if r.bulk == nil {
			r.bulk = q.dev.bulk.get()
		}
		buf = r.bulk
	}
	r.iov = append(r.iov[:0], makeIovec(buf))
	n, err := readv(fd, r.iov)
	if n > 0 && !q.process(buf[:n]) {
		return n, errStopped
	}
	return n, err
}

// lookahead is how many bytes up to the next segment's payload are still to come, as far as is known.
func (q *queuePair) lookahead() int {
	r := &q.rx
	n := r.need - r.have
	if r.phase == rxTrailer {
		n += q.nextHeader()
	}
	return n
}

// nextHeader is the length of the next header if it is of this segment's kind.
func (q *queuePair) nextHeader() int { return int(q.par.framing) + q.rx.hdr.Len() }

// readDirect reads payload straight into its destination, and behind it the trailer and the next header.
func (q *queuePair) readDirect(fd uintptr) (int, error) {
	r := &q.rx
	r.iov = r.iov[:0]
	cur := *r.dst
	want := 0
	var last *region
	for want < r.left && len(r.iov) < directIOV-1 {
		reg, p := cur.next(r.left - want)
		if reg != last {
			if !reg.acquire() {
				if want == 0 {
					q.destinationGone()
					return 0, errStopped
				}
				break
			}
			last = reg
			r.held = append(r.held, reg)
		}
		r.iov = append(r.iov, makeIovec(p))
		want += len(p)
	}
	tail := 0
	if want == r.left {
		tail = q.par.framing.Pad(r.ulpdu) + wire.CRCLen + q.nextHeader()
		r.iov = append(r.iov, makeIovec(r.tail[:tail]))
	}
	n, err := readv(fd, r.iov)
	got := min(n, want)
	for left := got; left > 0; { // move the real cursor, and look at the bytes while they are held
		_, p := r.dst.next(left)
		left -= len(p)
		if q.par.crc {
			r.crc = wire.CRC(r.crc, p)
		}
	}
	for i, reg := range r.held {
		reg.release()
		r.held[i] = nil
	}
	r.held = r.held[:0]
	r.left -= got
	if r.left == 0 && got > 0 {
		r.begin(rxTrailer, q.par.framing.Pad(r.ulpdu)+wire.CRCLen)
	}
	if n > want && !q.process(r.tail[:n-want]) {
		return n, errStopped
	}
	return n, err
}

// receiveBounced reads through conn's own Read, for connections without a descriptor.
func (q *queuePair) receiveBounced() {
	r := &q.rx
	buf := make([]byte, bounceSize)
	for {
		n, err := q.conn.Read(buf)
		if q.qpState() == driver.QPStateErr {
			r.stop = errStopped
			return
		}
		q.dev.stats.Reads.Add(1)
		q.dev.stats.BytesIn.Add(int64(n))
		ok := q.process(buf[:n])
		r.due.announce()
		if !ok {
			r.stop = errStopped
			return
		}
		if err == io.EOF {
			return
		}
		if err != nil {
			r.stop = err
			return
		}
	}
}

func (r *receiver) begin(p rxPhase, need int) { r.phase, r.need, r.have = p, need, 0 }

// process takes the next bytes of the stream; false when the connection is over.
func (q *queuePair) process(in []byte) bool {
	r := &q.rx
	for len(in) > 0 {
		if r.phase == rxPayload {
			n := min(len(in), r.left)
			if !q.place(in[:n]) {
				return false
			}
			in = in[n:]
			if r.left == 0 {
				r.begin(rxTrailer, q.par.framing.Pad(r.ulpdu)+wire.CRCLen)
			}
			continue
		}
		var p []byte
		if r.have == 0 && len(in) >= r.need {
			p, in = in[:r.need], in[r.need:]
		} else {
			n := copy(r.small[r.have:r.need], in)
			r.have += n
			in = in[n:]
			if r.have < r.need {
				return true
			}
			p = r.small[:r.need]
		}
		var ok bool
		switch r.phase {
		case rxHeader:
			ok = q.onHeader(p)
		case rxBody:
			ok = q.onBody(p)
		case rxTrailer:
			ok = q.onTrailer(p)
		}
		if !ok {
			return false
		}
	}
	return true
}

// place copies payload to its destination.
func (q *queuePair) place(in []byte) bool {
	r := &q.rx
	if q.par.crc {
		r.crc = wire.CRC(r.crc, in)
	}
	r.left -= len(in)
	for len(in) > 0 {
		reg, p := r.dst.next(len(in))
		if !reg.acquire() {
			q.destinationGone()
			return false
		}
		copy(p, in)
		reg.release()
		in = in[len(p):]
	}
	return true
}

// onHeader takes length field and DDP header, in two steps for an untagged one.
func (q *queuePair) onHeader(p []byte) bool {
	r := &q.rx
	f := int(q.par.framing)
	if len(p) == f+wire.TaggedLen && !wire.IsTagged(p[f]) {
		copy(r.small[:], p)
		r.have, r.need = len(p), f+wire.UntaggedLen
		return true
	}
	n, err := q.par.framing.DecodeLength(p)
	if err != nil {
		return q.decodeFault(err, nil)
	}
	r.ulpdu = n
	if err := wire.DecodeHeader(p[f:min(len(p), f+n)], &r.hdr); err != nil {
		return q.decodeFault(err, &r.hdr)
	}
	if q.par.crc {
		r.crc = wire.CRC(0, p)
	}
	r.left = n - r.hdr.Len()
	r.large = r.left >= directMin
	return q.onSegment()
}

// onTrailer checks the FPDU and ends its segment.
func (q *queuePair) onTrailer(p []byte) bool {
	r := &q.rx
	if q.par.crc {
		pad := len(p) - wire.CRCLen
		if err := wire.CheckCRC(p[pad:], wire.CRC(r.crc, p[:pad])); err != nil {
			return q.decodeFault(err, nil)
		}
	}
	if !q.tx.open.Load() { // the initiator has spoken
		q.tx.open.Store(true)
		q.kick()
	}
	r.begin(rxHeader, int(q.par.framing)+wire.TaggedLen)
	return q.onSegmentEnd()
}

// decodeFault ends the connection for bytes that make no sense.
func (q *queuePair) decodeFault(err error, h *wire.Header) bool {
	code := wire.TermRDMAPUnspecified
	var de *wire.DecodeError
	if errors.As(err, &de) {
		code = de.Term
	}
	q.fail(peerFault(code, h, q.rx.ulpdu, fmt.Errorf("%w: %w", driver.ErrProtocol, err)))
	return false
}
