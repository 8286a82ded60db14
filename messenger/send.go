package messenger

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/argonaut-rdma/argonaut/buffer"
	"github.com/argonaut-rdma/argonaut/messenger/internal/msgr2"
	"github.com/argonaut-rdma/argonaut/messenger/internal/session"
)

// sendWaiter waits for room in a send queue.
type sendWaiter struct{ ch chan struct{} }

func newSendWaiter() any { return &sendWaiter{ch: make(chan struct{}, 1)} }

// Send queues m; nil means queued or handed to the transport, not delivered. A
// lossless session keeps it until the peer has received it, and sends it again
// where a transport fails. It takes m. It blocks while the policy's queue limit is reached, until ctx ends:
// then nothing was sent. Messages of one priority are sent in the order of the
// calls. Errors: ctx's, ErrTooLarge, ErrInvalid, or why the connection ended.
func (c *Connection) Send(ctx context.Context, m *Message) error {
	_, err := c.enqueue(ctx, m, purpose{})
	return err
}

// TrySend is Send that never blocks: false where Send would, and the message
// stays the caller's.
func (c *Connection) TrySend(m *Message) (bool, error) {
	return c.enqueue(context.Background(), m, purpose{now: true})
}

// enqueue sends or queues m, and waits for room until ctx ends. It takes m where
// it returns true.
func (c *Connection) enqueue(ctx context.Context, m *Message, p purpose) (bool, error) {
	m.sending()
	ok, err := c.hand(ctx, m, p)
	if !ok {
		m.unsend()
	}
	return ok, err
}

// hand is enqueue's work.
func (c *Connection) hand(ctx context.Context, m *Message, p purpose) (bool, error) {
	if m.Type >= ReservedTypes {
		return false, fmt.Errorf("%w: type 0x%x: ReservedTypes and above are the messenger's own", ErrInvalid, m.Type)
	}
	if m.Data != nil && m.Data.Len() > math.MaxUint32 {
		return false, ErrTooLarge
	}
	if m.Data != nil && !c.m.ours(m.Data) {
		return false, fmt.Errorf("%w: Data has a buffer of another arena than Config.Arena, or of a RegCache that is not of Messenger.NewRegCache", ErrInvalid)
	}
	if c.loop {
		return c.deliverLocally(m, p)
	}
	e := entry{kind: entryMessage, m: m, size: m.size(), purpose: p, begun: c.m.lat.now()}
	woken := false
	for {
		c.mu.Lock()
		if c.session.State == session.Closed || c.refused(p) {
			err := c.closedErr()
			c.mu.Unlock()
			return false, err
		}
		if c.link != nil && !e.summed && c.link.sumsData() && m.Data != nil {
			// The pass over the payload is the caller's, without the lock.
			c.mu.Unlock()
			e.sum()
			continue
		}
		if l := c.link; l != nil {
			if err := c.fits(l, m); err != nil {
				if woken {
					c.wakeSender() // the room is the next one's
				}
				c.mu.Unlock()
				return false, err
			}
			if !c.draining && !c.unsent() && (!c.lossless() || c.room(e.size)) {
				ok, err := c.try(l, &e)
				if err != nil && !c.lossless() {
					c.mu.Unlock()
					l.fail("send", err)
					return false, c.failed(l, err)
				}
				if err != nil { // it will be sent on the next transport
					e.since = time.Now()
					c.queue.push(e)
					c.mu.Unlock()
					c.broken(l, "send", err)
					return true, nil
				}
				if ok {
					lossless := c.lossless()
					if c.waiting.n > 0 && c.room(0) {
						c.wakeSender() // nobody else may: the queue is empty
					}
					c.mu.Unlock()
					l.t.ring()
					c.wrote(&e, !lossless, false)
					return true, nil
				}
			}
		}
		if c.room(e.size) {
			e.since = time.Now()
			c.queue.push(e)
			c.leaveStandby()
			c.kick()
			c.mu.Unlock()
			return true, nil
		}
		if p.now {
			c.mu.Unlock()
			return false, nil
		}
		w := c.m.sendWaiters.Get().(*sendWaiter)
		c.waiting.push(w)
		c.mu.Unlock()
		select {
		case <-w.ch:
			c.m.sendWaiters.Put(w)
			woken = true
		case <-ctx.Done():
			c.forgetWaiter(w)
			return false, c.withLast(ctx.Err())
		}
	}
}

// refused reports whether new sends are: when shutting down, only what answers
// a peer passes. c.mu is held.
func (c *Connection) refused(p purpose) bool {
	return c.mute || (c.refuse && p.flags&flagReply == 0)
}

// failed is what a Send returns whose link has failed with err. Whoever was first
// to notice may not have told the session yet.
func (c *Connection) failed(l *link, err error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.session.State == session.Closed || c.refuse {
		return c.closedErr()
	}
	return fmt.Errorf("%w: %w", ErrReset, &FaultError{Peer: l.remote, Op: "send", Err: err})
}

// room reports whether n bytes more may be queued or sent; a message of any size
// may where there is nothing else. c.mu is held.
func (c *Connection) room(n int64) bool {
	p := &c.policy
	messages, bytes := c.queue.messages+c.sent.n+c.replay.n, c.queue.bytes+c.kept
	if messages == 0 {
		return true
	}
	return (p.QueueMessages < 0 || messages < p.QueueMessages) && (p.QueueBytes < 0 || bytes+n <= p.QueueBytes)
}

// wakeSenders lets all that wait for room look again, in order. c.mu is held.
func (c *Connection) wakeSenders() {
	for {
		w, ok := c.waiting.pop()
		if !ok {
			return
		}
		w.ch <- struct{}{}
	}
}

// wakeSender lets the one that has waited longest look again. c.mu is held.
func (c *Connection) wakeSender() {
	if w, ok := c.waiting.pop(); ok {
		w.ch <- struct{}{}
	}
}

// forgetWaiter takes w out of the queue of those that wait, or passes its wake
// on to the next.
func (c *Connection) forgetWaiter(w *sendWaiter) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for range c.waiting.n {
		x, _ := c.waiting.pop()
		if x != w {
			c.waiting.push(x)
		}
	}
	select {
	case <-w.ch:
		c.wakeSender()
	default:
	}
	c.m.sendWaiters.Put(w)
}

// sum computes the checksum of the payload.
func (e *entry) sum() {
	e.crc, e.summed = crcOf(e.m.Data), true
}

func crcOf(l *buffer.List) uint32 {
	crc := msgr2.CRCSeed
	for i := range l.Segments() {
		crc = msgr2.CRC(crc, l.At(i).Bytes())
	}
	return crc
}

// fits says whether the transport takes a message as large as m.
func (c *Connection) fits(l *link, m *Message) error {
	var data int64
	if m.Data != nil {
		data = m.Data.Len()
	}
	return l.t.fits(headOverhead+len(m.Front)+len(m.Middle), data)
}

// headOverhead is the most that the head of a message has beside front and middle,
// bytes.
const headOverhead = msgr2.PreambleLen + msgr2.HeaderLen + 4 + msgr2.EpilogueLen + extensionMax

// try sends e in the caller if that does not block; its transport is to be rung
// when c.mu, which is held, has been unlocked.
func (c *Connection) try(l *link, e *entry) (bool, error) {
	if i := c.m.inject; i != nil {
		if err := i.failureOf(e.size); err != nil || i.queues() {
			return false, err
		}
	}
	before, seq, numbered := c.session, e.seq, l.numbered
	begun := c.m.lat.now()
	f := c.frame(c.scratch[:0], l, e)
	c.scratch = f.head
	ok, err := l.t.try(f)
	if ok {
		if begun != 0 && e.kind == entryMessage {
			c.m.lat.send.Observe(c.m.lat.now() - begun)
		}
	}
	switch {
	case !ok:
		if e.m != nil && f.data != nil {
			e.untake(f.data)
		}
		f.over()
		c.session, e.seq, l.numbered = before, seq, numbered
	case c.keeps(e):
		c.keep(e)
	}
	return ok, err
}

// keeps reports whether e is kept until it has been acknowledged. c.mu is held.
func (c *Connection) keeps(e *entry) bool {
	return e.kind == entryMessage && !e.bound && c.lossless()
}

// frame appends the encoding of e to dst, numbered as the session's next. Its
// data is a reference of the frame's own. c.mu is held.
func (c *Connection) frame(dst []byte, l *link, e *entry) outFrame {
	switch e.kind {
	case entryKeepalive:
		dst = msgr2.AppendControl(dst, &msgr2.Keepalive2{Sent: msgr2.TimestampOf(e.since)})
		return outFrame{head: dst, split: len(dst)}
	case entryKeepaliveAck:
		dst = msgr2.AppendControl(dst, &msgr2.Keepalive2Ack{Sent: msgr2.TimestampOf(e.since)})
		return outFrame{head: dst, split: len(dst)}
	case entryAck:
		c.ackQueued, c.unacked, c.unackedB = false, 0, 0
		c.session.AckSent = c.session.InSeq
		c.ackFrame.Seq = c.session.InSeq
		dst = msgr2.AppendControl(dst, &c.ackFrame)
		return outFrame{head: dst, split: len(dst)}
	}
	m := e.m
	e.sealed = l.shield != nil
	h := msgr2.Header{
		TID: m.TID, Type: m.Type, Priority: m.Priority, Version: m.Version, CompatVersion: m.CompatVersion,
		Flags: msgr2.FlagComplete | msgr2.FlagNoCRC,
	}
	if h.Seq = e.seq; e.seq != 0 {
		h.AckSeq = c.session.Resend()
		c.m.n.replayed.Add(1)
	} else {
		h.Seq, h.AckSeq = c.session.Send()
		e.seq = h.Seq
	}
	c.unacked, c.unackedB = 0, 0
	front := m.Front
	gap := uint64(0)
	if h.Seq > l.numbered {
		gap, l.numbered = h.Seq-l.numbered-1, h.Seq
	}
	if l.own != 0 {
		h.Flags |= e.flags
		if l.own&featureGaps == 0 {
			gap = 0
		}
		if gap > 0 || e.extended(&m.Trace) {
			c.front = append(c.front[:0], front...)
			c.front = e.appendExtension(c.front, &m.Trace, time.Now())
			if gap > 0 {
				c.front = appendGap(c.front, gap)
			}
			h.Reserved = uint16(len(c.front) - len(front))
			front = c.front
		}
	}
	var f outFrame
	n := 0
	if m.Data != nil && m.Data.Len() > 0 {
		n = int(m.Data.Len())
		if m.done != nil { // to be called when the memory is no more in use: with the last reference
			f.sent = m.Retain().Release
		}
		if c.keeps(e) {
			f.data = e.m.Data.Share()
		} else {
			f.data = e.take()
		}
	}
	var p msgr2.Preamble
	var ep msgr2.Epilogue
	f.head, p, ep = msgr2.AppendMessageHead(dst, &h, front, m.Middle, n)
	f.split = len(f.head)
	if n > 0 && !e.summed && l.sumsData() {
		e.crc, e.summed = crcOf(f.data), true
	}
	f.head = msgr2.AppendMessageTail(f.head, &p, ep, e.crc)
	return f
}

// take returns a reference to the payload for the transport: the message's own
// when nobody else has the message, so that nothing is counted twice.
func (e *entry) take() *buffer.List {
	if refsIn(e.m.counts.Load()) == 1 {
		l := e.m.Data
		e.m.Data = nil
		return l
	}
	return e.m.Data.Share()
}

// untake gives back what take returned, when the transport did not take it.
func (e *entry) untake(l *buffer.List) {
	if e.m.Data == nil {
		e.m.Data = l
	} else {
		l.Release()
	}
}

// wrote counts e, which has been sent, and drops its reference where nobody
// keeps it.
func (c *Connection) wrote(e *entry, drop, replayed bool) {
	if e.kind != entryMessage {
		return
	}
	c.m.n.sent.Add(1)
	c.m.n.bytesSent.Add(uint64(e.size))
	if e.sealed {
		c.m.n.bytesSealed.Add(uint64(e.size))
	}
	if e.begun != 0 && !replayed {
		c.m.lat.sendQueue.Observe(c.m.lat.now() - e.begun)
	}
	if drop {
		e.m.sent()
	}
}
