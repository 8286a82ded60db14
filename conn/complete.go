package conn

import (
	"log/slog"

	"github.com/argonaut-rdma/argonaut/verbs"
)

// completed handles one completion.
func (p *poller) completed(l *lane, wc *verbs.WC) {
	c := l.conn(wc.QPN)
	kind, index := wc.WRID&wrKind, uint32(wc.WRID&wrIndex)
	if kind == wrRecv && l.rq != nil {
		b := l.rq.take(wc.WRID)
		if c == nil || wc.Status != verbs.StatusSuccess {
			l.drop(b, c)
		} else {
			c.received(b, wc)
		}
	}
	if c == nil {
		p.e.stats.lateReceives.Add(1)
		return
	}
	p.touch(c)
	if kind == wrRecv && l.rq == nil {
		b := c.rq.take(wc.WRID)
		if wc.Status != verbs.StatusSuccess {
			b.Release()
		} else {
			c.received(b, wc)
		}
	}
	if wc.Status != verbs.StatusSuccess {
		c.completedErr(wc)
		if kind == wrOp {
			c.opFailed(index)
			return
		}
	}
	switch kind {
	case wrSend:
		c.mu.Lock()
		ok := c.retire(index)
		c.mu.Unlock()
		if !ok {
			c.note(slog.LevelError, "completion of a send that is not outstanding", "seq", index)
		}
	case wrControl:
		c.mu.Lock()
		c.tx.controlBusy[index] = false
		c.mu.Unlock()
	case wrOp:
		c.opCompleted(index)
	case wrBind:
		c.bindCompleted()
	}
}

// completedErr handles a status other than success: the connection is over.
func (c *Conn) completedErr(wc *verbs.WC) {
	if c.rx.dead || c.Err() != nil {
		return
	}
	if wc.Status == verbs.StatusWRFlushErr {
		// The QP is in ERR. Why, another completion or an event may tell, and
		// what was received before may still be in the queue.
		c.kick(mailGone)
		return
	}
	c.fail(c.fault(classify(wc.Status), verbs.WCErr(wc)))
}

// classify says whose fault a status is.
func classify(s verbs.WCStatus) FaultKind {
	switch s {
	case verbs.StatusRetryExcErr, verbs.StatusRNRRetryExcErr, verbs.StatusRespTimeoutErr, verbs.StatusWRFlushErr,
		verbs.StatusGeneralErr:
		return FaultPath
	case verbs.StatusRemInvReqErr, verbs.StatusRemAccessErr, verbs.StatusRemOpErr, verbs.StatusRemAbortErr, verbs.StatusBadRespErr:
		return FaultPeer
	}
	return FaultLocal
}
