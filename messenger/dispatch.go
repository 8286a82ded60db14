package messenger

import (
	"fmt"
	"log/slog"
	"runtime/debug"
	"time"

	"github.com/argonaut-rdma/argonaut/messenger/internal/msgr2"
	"github.com/argonaut-rdma/argonaut/messenger/internal/session"
)

// receive takes a complete message from the link's reader: it numbers it,
// matches replies, and hands the rest to the dispatchers. It takes m. Errors:
// ErrProtocol, and the link is to end.
func (l *link) receive(h *msgr2.Header, m *Message) error {
	c := l.owner.Load()
	l.touch(true)
	m.Conn = c
	size := m.size()
	n := &c.m.n
	if c.m.inject != nil {
		if err := l.callStep("MESSAGE", false); err != nil {
			m.Release()
			c.broken(l, "inject", err)
			return nil
		}
	}
	var batch [ackBatch]*Message
	c.recvMu.Lock()
	defer c.recvMu.Unlock()
	c.mu.Lock()
	if c.link != l { // closed, or another transport has taken over
		c.mu.Unlock()
		m.Release()
		return nil
	}
	if c.refuse || l.last.Load() || c.m.discarding.Load() {
		c.mu.Unlock()
		l.receiveLast(h, m)
		return nil
	}
	last := c.session.InSeq
	if h.Seq > last && h.Seq-last-1 > l.gap && l.own&featureGaps != 0 && c.lossless() {
		c.mu.Unlock()
		c.m.inject.unexpected("skipped message", c)
		return fmt.Errorf("%w: message %d comes after %d, and the peer has said of %d numbers between that they are not sent: it is to send what is missing",
			ErrProtocol, h.Seq, last, l.gap)
	}
	v := c.session.Receive(h.Seq, h.AckSeq)
	acked := c.acked(&batch)
	ackNow := v != session.Duplicate && c.received(size)
	own := l.own != 0 && m.Type >= ReservedTypes
	if v != session.Duplicate && !own {
		c.serve(m)
	}
	c.mu.Unlock()
	c.releaseAcked(&batch, acked)
	switch v {
	case session.Duplicate:
		n.duplicates.Add(1)
		c.m.inject.unexpected("old message", c)
		m.Release()
		return nil
	case session.Skipped:
		n.skipped.Add(1)
		if h.Seq-last-1 > l.gap {
			c.logGap(l, last, h.Seq)
		}
		c.m.inject.unexpected("skipped message", c)
	}
	n.received.Add(1)
	n.bytesReceived.Add(uint64(size))
	if l.shield != nil {
		n.bytesOpened.Add(uint64(size))
	}
	if ackNow {
		c.acknowledge()
	}
	if c.m.inject.blackholed(c.peerType) {
		m.Release()
		return nil
	}
	if own {
		l.receiveOwn(m)
		return nil
	}
	since, flagged, told := l.lastReceived.Load(), l.own != 0, l.own&featureRefusals != 0
	if !c.strand.delays.take(m, since, flagged, told) {
		c.dispatch(m, since, flagged, told)
	}
	return nil
}

// logGap says that numbers are missing between last and seq.
func (c *Connection) logGap(l *link, last, seq uint64) {
	if !c.m.mayLog(&c.m.gapLogged) {
		return
	}
	c.note(slog.LevelWarn, "numbers of received messages are missing: pulls, pushes, and messages that turned out to be too large, "+
		"are not sent again after a reconnect; without one the peer has lost messages",
		"remote", l.remote, "after", last, "next", seq, "gaps", c.m.n.skipped.Load())
}

// receiveLast is receive while shutting down, or when the link is about to end: replies to calls under way still
// come, and nothing is numbered any more, so that the peer of a lossless session
// does not take for received what is not handled.
func (l *link) receiveLast(h *msgr2.Header, m *Message) {
	c := l.owner.Load()
	c.acknowledged(l, h.AckSeq)
	isReply := m.flags&flagReply != 0 || (l.own == 0 && m.TID != 0)
	c.hold(m)
	switch {
	case c.m.inject.blackholed(c.peerType):
		m.Release()
	case isReply && c.replied(m):
	case l.own != 0 && m.Type >= ReservedTypes:
		l.receiveOwn(m)
	default:
		m.Release()
	}
}

const (
	// ackEvery and ackBytes are how many messages and bytes are received before
	// the peer is told at once; ackDelay is how long it waits to be told
	// otherwise, in the hope that a message does.
	ackEvery = 16
	ackBytes = 1 << 20
	ackDelay = 2 * time.Millisecond
)

// received counts a message that the peer is to be told of. true: now. c.mu is
// held.
func (c *Connection) received(size int64) (now bool) {
	if !c.session.AckDue() {
		return false
	}
	c.unacked++
	c.unackedB += size
	if c.unacked >= ackEvery || c.unackedB >= ackBytes {
		return true
	}
	if !c.ackArmed {
		c.ackArmed = true
		if c.ackTimer == nil {
			c.ackTimer = time.AfterFunc(ackDelay, c.acknowledge) // stopped by close
		} else {
			c.ackTimer.Reset(ackDelay)
		}
	}
	return false
}

// acknowledge tells the peer what has been received, if no message has done so.
func (c *Connection) acknowledge() {
	c.mu.Lock()
	c.ackArmed = false
	due := c.link != nil && !c.ackQueued && c.session.AckDue()
	c.ackQueued = c.ackQueued || due
	c.mu.Unlock()
	if due {
		c.sendControl(entry{kind: entryAck})
	}
}

// dispatch hands m to the call that it answers, to a fast dispatcher, or to the
// strand. since is when it came, by Messenger.clock; flagged: the peer marks
// replies; told: it knows refusals.
func (c *Connection) dispatch(m *Message, since int64, flagged, told bool) {
	isReply := m.flags&flagReply != 0 || (!flagged && m.TID != 0)
	if m.arrived = c.m.lat.now(); m.begun != 0 {
		c.m.lat.receive.Observe(m.arrived - m.begun)
	}
	begun := m.arrived
	c.hold(m)
	if isReply && c.replied(m) {
		return
	}
	if m.flags&flagReply != 0 { // the call was given up
		m.Release()
		return
	}
	var d *debt
	if m.flags&flagCall != 0 && told {
		d = m.owe()
		if c.m.draining.Load() && !c.loop { // handlers under way may need the loopback
			m.refuse(ReasonDraining, 0, "")
			m.Release()
			d.returned(false)
			return
		}
	}
	if c.fastDispatch(c.m.mark, m, d) {
		if begun != 0 {
			c.m.lat.fast.Observe(c.m.lat.now() - begun)
		}
		c.m.n.fast.Add(1)
		return
	}
	c.strand.push(event{kind: eventMessage, m: m, since: since})
}

// fastDispatch asks the dispatchers in order. A panic ends the connection.
//
//go:noinline
func (c *Connection) fastDispatch(_ handlerMark, m *Message, owed *debt) (consumed bool) {
	tid, serving := m.callTID, m.serving
	defer func() {
		if r := recover(); r != nil {
			owed.returned(true)
			if serving {
				c.abandon(tid)
			}
			c.panicked(r, owed != nil)
			consumed = true
		} else if consumed {
			owed.returned(false)
		}
	}()
	for _, d := range c.m.dispatchers() {
		if d.FastDispatch(m) {
			return true
		}
	}
	return false
}

// handle runs one event of the connection, on its strand.
func (c *Connection) handle(e event) { c.runHandlers(c.m.mark, e) }

//go:noinline
func (c *Connection) runHandlers(_ handlerMark, e event) {
	var k servedCall
	if e.m != nil && e.m.serving {
		k = servedCall{tid: e.m.callTID, owed: e.m.debt, serving: true}
	}
	defer func() {
		r := recover()
		k.owed.returned(r != nil)
		if r == nil {
			return
		}
		if k.serving {
			c.abandon(k.tid)
		}
		c.panicked(r, k.owed != nil)
	}()
	c.mu.Lock()
	down := c.down
	c.down = down || e.kind == eventReset // a message may come behind it, from FastDispatch
	c.mu.Unlock()
	if down || c.m.discarding.Load() {
		c.discard(e)
		return
	}
	chain := c.m.dispatchers()
	if e.kind == eventMessage {
		if begun := e.m.arrived; begun != 0 {
			now := c.m.lat.now()
			c.m.lat.dispatch.Observe(now - begun)
			defer func() { c.m.lat.handle.Observe(c.m.lat.now() - now) }()
		}
		c.handleMessage(chain, e.m)
		return
	}
	for _, d := range chain {
		switch e.kind {
		case eventConnect:
			d.HandleConnect(c)
		case eventAccept:
			d.HandleAccept(c)
		case eventReset:
			d.HandleReset(c)
		case eventRemoteReset:
			d.HandleRemoteReset(c)
		case eventRefused:
			d.HandleRefused(c)
		}
	}
}

// discard gives up what has not been handled, and is not going to be: the session was
// marked down or has been reset, or the messenger shuts down and does not wait any more. (Ceph:
// DispatchQueue::shutdown.)
func (c *Connection) discard(e event) {
	if e.m == nil {
		return
	}
	if c.loop && e.m.debt != nil { // the Call ends with the loopback, by ErrClosed
		e.m.debt.open.Store(false)
	}
	e.m.refuse(ReasonDraining, 0, "") // it has not been begun
	e.m.Release()
}

func (c *Connection) handleMessage(chain []Dispatcher, m *Message) {
	ctx := m.Context()
	for _, d := range chain {
		if d.Dispatch(ctx, m) {
			return
		}
	}
	c.m.n.unhandled.Add(1)
	if c.m.log.Enabled(c.ctx, slog.LevelDebug) {
		c.note(slog.LevelDebug, "no dispatcher for a message", "type", m.Type)
	}
	c.m.inject.unexpected("unhandled message", c)
	m.refuse(ReasonUnhandled, 0, "")
	m.Release()
}

func (c *Connection) peerName() EntityName {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.peer
}

// servedCall is what is known of a call that a handler has, whose message may be
// gone when it panics.
type servedCall struct {
	tid     uint64
	owed    *debt
	serving bool // it is in Connection.serving
}

// panicked reports a panic of a handler and ends the connection. What the
// handler owned it has released in its deferred calls, or not at all: nobody
// else can know. answer: it was a call's, and
// its answer, or that there will be none, is to reach the caller.
func (c *Connection) panicked(r any, answer bool) {
	c.m.n.panics.Add(1)
	c.note(slog.LevelError, "handler panicked", "panic", fmt.Sprint(r), "stack", string(debug.Stack()))
	err := fmt.Errorf("%w: %v", ErrHandlerPanic, r)
	if answer {
		c.failAfterFlush("dispatch", err)
		return
	}
	c.mu.Lock()
	l := c.link
	c.mu.Unlock()
	if l != nil {
		l.fail("dispatch", err)
	}
}

// deliverLocally is Send on the loopback: the message arrives here.
func (c *Connection) deliverLocally(m *Message, p purpose) (bool, error) {
	c.mu.Lock()
	if c.session.State == session.Closed || c.refused(p) {
		err := c.closedErr()
		c.mu.Unlock()
		return false, err
	}
	c.session.OutSeq++
	c.session.InSeq++
	seq := c.session.InSeq
	c.mu.Unlock()
	if m.serving { // a call that is sent on: it is another one now
		m.Conn.served(m)
	}
	if m.debt != nil {
		m.debt.abandon(false)
		m.debt = nil
	}
	m.unsend() // it is the receiver's from here on
	m.Conn, m.Seq, m.flags, m.deadline, m.begun = c, seq, p.flags, p.deadline, 0
	c.mu.Lock()
	c.serve(m)
	c.mu.Unlock()
	c.m.n.sent.Add(1)
	c.m.n.received.Add(1)
	c.dispatch(m, c.m.clock(), true, true)
	return true, nil
}
