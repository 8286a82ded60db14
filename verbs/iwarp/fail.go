package iwarp

import (
	"fmt"
	"log/slog"

	"github.com/argonaut-rdma/argonaut/verbs/driver"
	"github.com/argonaut-rdma/argonaut/verbs/iwarp/internal/wire"
)

// failKind is why a QP went to ERR.
type failKind uint8

const (
	failLocal      failKind = iota // asked for: SetState, Destroy
	failClosed                     // both directions ended between FPDUs
	failLost                       // the connection broke
	failRequest                    // a send request of ours is wrong; tell the peer the stream is over
	failPeer                       // the peer broke a rule; tell it which
	failTerminated                 // the peer told us that we did
	failCut                        // memory went away in mid-segment: reset
)

// failure is the cause of ERR.
type failure struct {
	kind failKind
	term wire.Terminate // failRequest, failPeer: what we say; failTerminated: what we were told
	err  error          // for the log
}

// event is the asynchronous event a cause raises, besides EventDisconnected.
func (f *failure) event() (driver.EventType, bool) {
	switch f.kind {
	case failRequest, failTerminated, failCut:
		return driver.EventQPFatal, true
	case failPeer:
		switch c := f.term.Code; {
		case c.Layer() == 0 && c.Type() == 1, c.Layer() == 1 && c.Type() == 1:
			return driver.EventQPAccessErr, true
		case c.Layer() == 2 || c == wire.TermRDMAPLocalCatastrophic:
			return driver.EventQPFatal, true
		}
		return driver.EventQPReqErr, true
	}
	return 0, false
}

// local says whether the cause is something of ours: a request, memory, or a receive, for which the peer is told the same
// as for a request.
func (f *failure) local() bool {
	switch f.kind {
	case failRequest, failCut:
		return true
	case failPeer:
		return f.term.Code == wire.TermRDMAPLocalCatastrophic
	}
	return false
}

// fail moves the QP to ERR, once, and sets its goroutines on their way out. Without goroutines it flushes at once. It
// takes no lock but mu, and does not wait for anything.
func (q *queuePair) fail(f failure) {
	q.mu.Lock()
	if q.qpState() == driver.QPStateErr {
		q.mu.Unlock()
		return
	}
	q.state.Store(uint32(driver.QPStateErr))
	q.cause = f
	running := q.running
	q.mu.Unlock()

	if e, ok := f.event(); ok {
		q.raise(e)
	}
	if f.kind != failLocal && f.kind != failClosed {
		q.dev.log.Debug("iwarp: QP to ERR", slog.Uint64("qpn", uint64(q.qpn)), slog.Any("cause", f.err), slog.String("terminate", f.term.Code.String()))
	}
	defer close(q.failed)
	if !running {
		close(q.rxQuiet)
		q.flushRecvs()
		q.flushSends()
		close(q.quiet)
		close(q.finished)
		return
	}
	// Past deadlines bring both goroutines back from the network; they see ERR.
	q.dev.bury(q.conn)
	_ = q.conn.SetReadDeadline(past)
	_ = q.conn.SetWriteDeadline(past)
	q.tx.signal()
}

// raise raises an event of the QP, unless it was destroyed.
func (q *queuePair) raise(e driver.EventType) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.destroyed {
		q.dev.raise(driver.Event{Type: e, QP: q})
	}
}

// Cause implements driver.Explainer: state and cause are set in one.
func (q *queuePair) Cause() (driver.EventType, bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.qpState() != driver.QPStateErr {
		return 0, false
	}
	return q.cause.event()
}

// LocalCause implements driver.Explainer.
func (q *queuePair) LocalCause() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.cause.local()
}

// reason returns the cause of ERR.
func (q *queuePair) reason() failure {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.cause
}

// peerFault makes the failure for a rule that the peer broke with the segment of h.
func peerFault(code wire.TermCode, h *wire.Header, ulpdu int, err error) failure {
	f := failure{kind: failPeer, term: wire.Terminate{Code: code}, err: err}
	if err == nil {
		f.err = fmt.Errorf("%w: %v", driver.ErrProtocol, code)
	}
	if h != nil && code.Layer() != 2 {
		f.term.HasDDP, f.term.DDP, f.term.SegLen = true, *h, uint16(min(ulpdu, 1<<16-1))
	}
	return f
}
