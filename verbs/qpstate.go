package verbs

import (
	"context"
	"fmt"

	"github.com/argonaut-rdma/argonaut/verbs/driver"
)

// Feature bits of QP.features.
const (
	featAtomics = 1 << iota
	featImm
	featSendInv
)

// State is the QP's state as the core knows it, without asking the device: INIT,
// RTR while connecting, RTS once connected, ERR once that is known, RESET once
// closed.
func (q *QP) State() QPState { return QPState(q.state.Load()) }

// Features are what the connection can do; they hold once connected, which the first
// message of the peer tells, too.
func (q *QP) Features() Features {
	q.askConnected()
	f := q.features.Load()
	return Features{Atomics: f&featAtomics != 0, Imm: f&featImm != 0, SendInv: f&featSendInv != 0}
}

// connected moves a QP that was connecting to RTS.
func (q *QP) connected() {
	f := q.drv.Features()
	var bits uint32
	if f.Atomics {
		bits |= featAtomics
	}
	if f.Imm {
		bits |= featImm
	}
	if f.SendInv {
		bits |= featSendInv
	}
	q.features.Store(bits)
	q.state.CompareAndSwap(uint32(QPStateRTR), uint32(QPStateRTS))
}

// setKnownError records that the QP is in ERR.
func (q *QP) setKnownError() {
	for {
		s := q.state.Load()
		if s == uint32(QPStateErr) || s == uint32(QPStateReset) || q.state.CompareAndSwap(s, uint32(QPStateErr)) {
			return
		}
	}
}

// askConnected asks the device whether a QP that is connecting is connected: the
// peer's first message may be polled before Connect or Accept has returned, and
// answered. (Of a kernel's iWARP device it is known only when an event of the
// connection manager has been read.)
func (q *QP) askConnected() {
	if q.State() != QPStateRTR {
		return
	}
	if s, err := q.drv.State(); err == nil && s == QPStateRTS {
		q.connected()
	}
}

// canSend says whether sends may be posted; sendMu is held.
func (q *QP) canSend() error {
	if q.closing.Load() {
		return ErrClosed
	}
	q.askConnected()
	switch {
	case q.State() != QPStateRTS:
		return q.stateErr()
	case q.noSend:
		return fmt.Errorf("%w: disconnecting", ErrQPState)
	}
	return nil
}

// canRecv says whether receives may be posted; recvMu is held.
func (q *QP) canRecv() error {
	if q.closing.Load() {
		return ErrClosed
	}
	if q.State() == QPStateErr {
		return q.stateErr()
	}
	return nil
}

// stateErr says that the QP is in a state that does not allow it, and of which
// device that was lost.
func (q *QP) stateErr() error {
	return q.dev.lostErr(fmt.Errorf("%w: %v", ErrQPState, q.State()))
}

// Cause is why the QP is in ERR, where the device or the peer has put it there:
// EventQPFatal, EventQPReqErr or EventQPAccessErr. The event says the same, but who
// reads it may be late: completions come by another way. Where the device tells
// (driver.Explainer: iwarp), the cause is known before a completion is flushed and
// before a post is refused for the state. false: the QP is not in ERR, for none of
// these reasons, or the device does not tell, and then there is only the event. It
// does not block.
func (q *QP) Cause() (EventType, bool) {
	if x, ok := q.drv.(driver.Explainer); ok {
		return x.Cause()
	}
	return 0, false
}

// LocalCause reports whether Cause is this end's own doing: a request or a receive
// that is wrong, or memory of what is sent, of a receive or of a READ that went away
// under a message. Otherwise the peer has broken a rule, or has ended the connection
// because it says that we have; of EventQPFatal it may be either. A WRITE of the peer
// into memory that has just been withdrawn counts as the peer's. known is false where
// Cause is. It does not block.
func (q *QP) LocalCause() (local, known bool) {
	if x, ok := q.drv.(driver.Explainer); ok {
		if _, known = x.Cause(); known {
			local = x.LocalCause()
		}
	}
	return local, known
}

// SetError puts the QP to ERR: everything outstanding completes with
// WR_FLUSH_ERR. On a QP that is closed it does nothing.
func (q *QP) SetError() error {
	q.ctl.Lock()
	defer q.ctl.Unlock()
	if q.destroying {
		return nil
	}
	if err := q.drv.SetState(QPStateErr); err != nil {
		return q.dev.opError("set error", q.qpn, err)
	}
	q.setKnownError()
	return nil
}

// Disconnect ends the connection gracefully: what was posted is sent (through
// ibverbs only what has completed is sure to be: wait for completions first),
// then the peer is told. It does not block; Disconnected says when it is over.
// New sends are refused with ErrQPState. On a connection that is gone it does nothing; on
// a QP that was never connected it returns ErrQPState, on one connected by Modify
// ErrNotSupported.
func (q *QP) Disconnect() error {
	const op = "disconnect"
	switch s := q.State(); s {
	case QPStateErr, QPStateReset:
		return nil
	case QPStateInit:
		return q.dev.opError(op, q.qpn, fmt.Errorf("%w: %v", ErrQPState, s))
	}
	q.sendMu.Lock()
	defer q.sendMu.Unlock()
	q.ctl.Lock()
	defer q.ctl.Unlock()
	if q.destroying {
		return nil
	}
	if q.noManager {
		return q.dev.opError(op, q.qpn, fmt.Errorf("%w: the queue pair was connected by Modify: use SetError", ErrNotSupported))
	}
	if err := q.drv.Disconnect(); err != nil {
		return q.dev.opError(op, q.qpn, err)
	}
	q.noSend = true
	return nil
}

// Disconnected is closed once the connection is gone, whichever side ended it
// and however, and the QP has been put to ERR; or the connection could not be
// made; or the QP is closed.
func (q *QP) Disconnected() <-chan struct{} { return q.disconnected }

// gone is called when the connection is.
func (q *QP) gone() {
	if err := q.SetError(); err != nil && !isLost(err) {
		q.dev.log.Warn("verbs: a QP without connection could not be put to ERR", "device", q.dev.caps.Name, "err", err)
	}
	q.setKnownError()
	q.discOnce.Do(func() { close(q.disconnected) })
}

// orphaned tells the QP that its device is lost, before anything that follows
// from it can be seen.
func (q *QP) orphaned() {
	q.setKnownError()
	if q.onEvent != nil {
		q.onEvent(Event{Type: EventDeviceFatal, QP: q, Count: 1})
	}
}

// overrun retires the QP of a CQ that lost completions: it is destroyed as soon
// as nothing hangs on it, at the latest by Close, which has its orphans.
func (q *QP) overrun(c *CQ) {
	if err := q.SetError(); err != nil {
		q.dev.log.Warn("verbs: a QP whose CQ overran could not be put to ERR", "device", q.dev.caps.Name, "err", err)
	}
	q.setKnownError()
	_, _ = q.obj.beginShut(q.String(), nil, q.destroy, q.goneLocked) // *BusyError: left to Close
	if q.onEvent != nil {
		q.onEvent(Event{Type: EventCQErr, QP: q, CQ: c, Count: 1})
	}
}

// beginConnect makes the QP connecting and returns a context that Close cancels.
func (q *QP) beginConnect(ctx context.Context) (context.Context, error) {
	q.ctl.Lock()
	defer q.ctl.Unlock()
	if q.destroying {
		return nil, ErrClosed
	}
	if !q.state.CompareAndSwap(uint32(QPStateInit), uint32(QPStateRTR)) {
		return nil, q.stateErr()
	}
	q.everConnected.Store(true)
	ctx, q.cancelConn = q.dev.untilLost(ctx)
	q.connDone = make(chan struct{})
	return ctx, nil
}

// endConnect settles what beginConnect began.
func (q *QP) endConnect(err error) error {
	if err == nil {
		q.connected()
	} else {
		err = q.dev.lostErr(err)
		q.setKnownError()
		q.discOnce.Do(func() { close(q.disconnected) })
	}
	q.ctl.Lock()
	if q.destroying && err != nil {
		err = fmt.Errorf("%w: %w", ErrClosed, err)
	}
	q.cancelConn()
	q.cancelConn = nil
	close(q.connDone)
	q.ctl.Unlock()
	return err
}
