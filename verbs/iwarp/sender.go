package iwarp

import (
	"errors"
	"fmt"
	"math"
	"net"
	"sync"
	"sync/atomic"

	"github.com/argonaut-rdma/argonaut/verbs/driver"
	"github.com/argonaut-rdma/argonaut/verbs/iwarp/internal/wire"
)

// sender is the sending half of a QP. Whoever has work for it (a poster, the receiver with a response) tries to take mu
// and writes to the socket itself, without ever blocking; when the socket is full, or the work more than one caller
// should do, it is handed to the QP's sender goroutine, which parks in the netpoller. seq counts reasons to look: the
// holder of mu looks again when it changed, so a caller that fails to take mu may leave.
type sender struct {
	wake chan struct{} // one token, for the sender goroutine
	seq  atomic.Uint64

	open atomic.Bool // FPDUs may go out: a responder waits for the initiator's first

	responses responseQueue

	mu     sync.Mutex // guards what follows
	handed bool       // the sender goroutine has the work; nobody else writes
	batch  *txBatch   // nil when there is nothing to send
	cur    txMessage
	next   uint64 // index of the next send request
	msn    [4]uint32
	turn   bool // responses had the last turn
	fin    bool // our direction is over
	rtr    bool // an empty WRITE is due, which lets the responder send

	inline  func(fd uintptr) bool // of kick
	parked  func(fd uintptr) bool // of the sender goroutine
	outcome txOutcome             // of inline and parked
	bounce  []byte
}

type txOutcome uint8

const (
	txIdle txOutcome = iota // nothing to send
	txFull                  // the socket takes no more
	txMore                  // budget used up
	txDead                  // QP in ERR, or the connection broke
)

const (
	inlineBudget = 4 << 20 // bytes that one caller sends for others before it hands over
	inlineRounds = 8       // times that it looks again
	bounceSize   = 64 << 10
)

func (s *sender) signal() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// kick sends what there is to send, as far as the socket takes it, in the calling goroutine. It never blocks.
func (q *queuePair) kick() {
	s := &q.tx
	s.seq.Add(1)
	if q.raw == nil {
		s.signal()
		return
	}
	for round := 0; ; round++ {
		if !s.mu.TryLock() {
			return
		}
		if s.handed {
			s.mu.Unlock()
			return
		}
		seen := s.seq.Load()
		if err := q.raw.Write(s.inline); err != nil {
			s.outcome = txDead
		}
		out := s.outcome
		if out == txFull || out == txMore || round == inlineRounds {
			s.handed = true
			s.signal()
		}
		s.mu.Unlock()
		if out != txIdle || s.seq.Load() == seen {
			return
		}
	}
}

// sendInline is one attempt by a caller; mu is held.
func (q *queuePair) sendInline(fd uintptr) bool {
	q.tx.outcome = q.transmit(fd, inlineBudget)
	return true
}

// sendParked is one attempt by the sender goroutine, which parks for more room when it returns false.
func (q *queuePair) sendParked(fd uintptr) bool {
	s := &q.tx
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		seen := s.seq.Load()
		s.outcome = q.transmit(fd, math.MaxInt)
		if s.outcome == txFull {
			s.handed = true
			return false
		}
		if s.outcome != txIdle {
			return true
		}
		if s.seq.Load() == seen {
			s.handed = false
			return true
		}
	}
}

// senderLoop is the sender goroutine: started with the connection, owned by the QP, ended by ERR. It then says the last
// words and flushes the queues.
func (q *queuePair) senderLoop() {
	defer close(q.txDone)
	for q.qpState() != driver.QPStateErr {
		<-q.tx.wake
		if q.raw == nil {
			q.sendBounced()
			continue
		}
		// Before the descriptor's lock, which a caller of kick takes while it
		// holds mu: from here on there is none.
		q.tx.mu.Lock()
		q.tx.handed = true
		q.tx.mu.Unlock()
		if err := q.raw.Write(q.tx.parked); err != nil && q.qpState() != driver.QPStateErr {
			q.fail(failure{kind: failLost, err: err})
		}
		q.kick() // what came while handed was being given up
	}
	<-q.failed
	q.lastWords()
	<-q.rxQuiet
	q.flushRecvs() // those posted behind the receiver's own flush
	q.flushSends()
	close(q.quiet)
}

// sendBounced sends through conn's own Write, which may block: no lock and no region is held meanwhile.
func (q *queuePair) sendBounced() {
	s := &q.tx
	for {
		s.mu.Lock()
		seen := s.seq.Load()
		if !q.ready() {
			s.mu.Unlock()
			if s.seq.Load() == seen || q.qpState() == driver.QPStateErr {
				return
			}
			continue
		}
		n, cut := s.batch.copyOut(s.bounce)
		if cut != nil {
			q.cutShort(cut)
			s.mu.Unlock()
			return
		}
		s.mu.Unlock()
		n, err := q.conn.Write(s.bounce[:n])
		s.mu.Lock()
		q.sent(n)
		s.mu.Unlock()
		q.dev.stats.Writes.Add(1)
		if err != nil {
			q.fail(failure{kind: failLost, err: err})
			return
		}
	}
}

// ready makes sure that there is a batch with something in it; false when there is nothing to send. Called with tx.mu
// held.
func (q *queuePair) ready() bool {
	s := &q.tx
	if q.qpState() == driver.QPStateErr {
		return false
	}
	if s.batch == nil {
		if !q.worth() {
			return false
		}
		s.batch = q.dev.batches.get()
	}
	if !s.batch.empty() || q.fill(s.batch) {
		return true
	}
	q.returnBatch()
	q.endIfDone()
	return false
}

// worth says, cheaply, whether a batch is worth borrowing.
func (q *queuePair) worth() bool {
	s := &q.tx
	if s.rtr || s.cur.kind != msgNone || s.next != q.sq.tail.Load() || s.responses.pending() {
		return true
	}
	q.endIfDone()
	return false
}

func (q *queuePair) returnBatch() {
	b := q.tx.batch
	q.tx.batch = nil
	b.reset()
	if b.snap != nil {
		q.dev.bulk.put(b.snap)
		b.snap = nil
	}
	q.dev.batches.put(b)
}

// transmit builds and writes FPDUs until there are none, the socket is full or budget bytes are out. Called with tx.mu
// held, inside a RawConn.Write.
func (q *queuePair) transmit(fd uintptr, budget int) txOutcome {
	for q.ready() {
		b := q.tx.batch
		if cut := b.gather(); cut != nil {
			q.cutShort(cut)
			return txDead
		}
		n, err := writev(fd, b.iov)
		b.letGo()
		q.dev.stats.Writes.Add(1)
		if n > 0 {
			q.sent(n)
			budget -= n
		}
		if err != nil {
			if wouldBlock(err) {
				q.dev.stats.FullStops.Add(1)
				return txFull
			}
			q.fail(failure{kind: failLost, err: err})
			return txDead
		}
		if budget <= 0 {
			return txMore
		}
	}
	if q.qpState() == driver.QPStateErr {
		return txDead
	}
	return txIdle
}

// sent accounts for n bytes that the network took, and completes the messages that are out. Called with tx.mu held.
func (q *queuePair) sent(n int) {
	b := q.tx.batch
	b.advance(n)
	q.dev.stats.BytesOut.Add(int64(n))
	locked := false
	for ; b.over < len(b.ends) && b.ends[b.over].at <= b.sent; b.over++ {
		i := b.ends[b.over].request
		if i == noRequest {
			q.tx.responses.free()
			continue
		}
		if !locked {
			q.sq.mu.Lock()
			locked = true
		}
		q.sq.slot(i).done = true
	}
	if locked {
		q.retire(false)
		q.sq.mu.Unlock()
	}
}

// cutShort ends the connection because memory that a message names is gone. Called with tx.mu held.
func (q *queuePair) cutShort(p *piece) {
	if p.request != noRequest {
		q.sq.mu.Lock()
		w := q.sq.slot(p.request)
		w.done, w.status = true, driver.StatusLocProtErr
		q.sq.mu.Unlock()
	}
	q.fail(failure{kind: failCut, err: errors.New("iwarp: memory was deregistered in mid-message")})
}

// endIfDone ends our direction of the connection once Disconnect was called and everything is out and answered. Called
// with tx.mu held.
func (q *queuePair) endIfDone() {
	if q.qpState() != driver.QPStateSQD {
		return
	}
	q.sq.mu.Lock()
	done := q.sq.head == q.sq.tail.Load()
	q.sq.mu.Unlock()
	if !done || q.tx.responses.pending() {
		return
	}
	if !q.tx.fin {
		q.tx.fin = true
		closeWrite(q.conn)
	}
	if q.rx.eof.Load() {
		q.fail(failure{kind: failClosed})
	}
}

// closeWrite ends our direction; a connection without half-close ends as a whole.
func closeWrite(c net.Conn) {
	if h, ok := c.(interface{ CloseWrite() error }); ok {
		_ = h.CloseWrite()
		return
	}
	_ = c.Close()
}

// lastWords finishes the FPDU that is under way, says Terminate when the peer is to be told, and ends our direction; or
// resets the connection. It takes at most Linger.
func (q *queuePair) lastWords() {
	s := &q.tx
	f := q.reason()
	s.mu.Lock() // an inline caller is in one non-blocking call at most
	s.handed = true
	s.mu.Unlock()
	defer func() {
		if s.batch != nil {
			q.returnBatch()
		}
	}()
	switch f.kind {
	case failLost, failTerminated:
		closeWrite(q.conn)
		return
	case failPeer, failRequest:
		q.dev.linger(q.conn.SetWriteDeadline)
		if err := q.sayTerminate(&f.term); err == nil {
			q.dev.stats.TerminatesSent.Add(1)
			closeWrite(q.conn)
			return
		}
	}
	if s.batch != nil && s.batch.sent > 0 && !s.batch.empty() || f.kind == failCut {
		// The peer waits for the rest of an FPDU that will not come.
		q.dev.stats.Resets.Add(1)
		if l, ok := q.conn.(interface{ SetLinger(int) error }); ok {
			_ = l.SetLinger(0)
		}
		_ = q.conn.Close()
		return
	}
	closeWrite(q.conn)
}

// sayTerminate sends what is left of the batch under way and a Terminate behind it.
func (q *queuePair) sayTerminate(t *wire.Terminate) error {
	if b := q.tx.batch; b != nil && b.sent > 0 {
		buf := make([]byte, bounceSize)
		for !b.empty() {
			n, cut := b.copyOut(buf)
			if cut != nil {
				return fmt.Errorf("iwarp: memory of an FPDU under way: %w", driver.ErrClosed)
			}
			n, err := q.conn.Write(buf[:n])
			q.sent(n)
			if err != nil {
				return err
			}
		}
	}
	_, err := q.conn.Write(encodeTerminate(&q.par, t))
	return err
}

// encodeTerminate makes the FPDU of a Terminate.
func encodeTerminate(par *connParams, t *wire.Terminate) []byte {
	body := wire.AppendTerminate(nil, t)
	f := int(par.framing)
	ulpdu := wire.UntaggedLen + len(body)
	p := make([]byte, par.framing.Len(ulpdu))
	par.framing.PutLength(p, ulpdu)
	wire.PutHeader(p[f:], &wire.Header{Last: true, Op: wire.OpTerminate, QN: wire.QNTerminate, MSN: 1})
	copy(p[f+wire.UntaggedLen:], body)
	if par.crc {
		end := len(p) - wire.CRCLen
		wire.PutCRC(p[end:], wire.CRC(0, p[:end]))
	}
	return p
}
