package messenger

import (
	"errors"
	"log/slog"
)

// What is queued on a connection is sent by one goroutine, drain, which is there
// while there is something to send.

// sendControl sends or queues a control frame, when the connection is open.
func (c *Connection) sendControl(e entry) {
	if c.loop {
		if e.kind == entryKeepalive {
			c.keepaliveCame()
			c.keepaliveAcked(e.since)
		}
		return
	}
	c.mu.Lock()
	l := c.link
	if l == nil {
		c.mu.Unlock()
		return
	}
	if !c.draining && !c.unsent() {
		ok, err := c.try(l, &e)
		if ok || err != nil {
			c.mu.Unlock()
			if err != nil {
				c.broken(l, "send", err)
			} else {
				l.t.ring()
			}
			return
		}
	}
	if e.kind == entryAck || c.queue.control.n < maxControl { // a peer may ask faster than it reads
		c.queue.push(e)
		c.kick()
	}
	c.mu.Unlock()
}

// maxControl bounds the control frames that wait on one connection.
const maxControl = 64

// kick starts a drain if there is something to send and nobody sends. c.mu is
// held.
func (c *Connection) kick() {
	if c.link == nil || c.draining || !c.unsent() {
		return
	}
	c.draining = true
	c.m.wg.Add(1)
	go c.drainFn() // ends when the queue is empty or the link has ended
}

// unsent reports whether something is to be sent. c.mu is held.
func (c *Connection) unsent() bool { return c.replay.n > 0 || !c.queue.empty() }

// next takes out what is to be sent next: control frames, what is sent again,
// then the queue. c.mu is held.
func (c *Connection) next() (entry, bool) {
	if c.queue.control.n == 0 && c.replay.n > 0 {
		e, ok := c.replay.pop()
		c.kept -= e.size // until it is kept again
		return e, ok
	}
	return c.queue.pop()
}

// forgetSent takes the message with number seq out of those that are kept. c.mu
// is held.
func (c *Connection) forgetSent(seq uint64) (m *Message) {
	for _, r := range [...]*ring[entry]{&c.sent, &c.replay} {
		for range r.n {
			e, _ := r.pop()
			if e.seq == seq {
				m = c.unkeep(&e)
				continue
			}
			r.push(e)
		}
	}
	return m
}

// givesUp reports whether err, of sending a message, is the message's own, and the
// transport goes on without it.
func givesUp(err error) bool { return errors.Is(err, ErrTooLarge) || errors.Is(err, ErrUnreadable) }

// unsendable says that a message of flags, type and tid, which was queued, is
// dropped, to whoever waits for it. The message may be gone.
func (c *Connection) unsendable(l *link, flags uint8, typ uint16, tid uint64, err error) {
	c.note(slog.LevelError, "a queued message can not be sent and was dropped", "err", err)
	c.m.n.dropped.Add(1)
	switch {
	case flags&flagCall != 0:
		c.failCall(tid, err)
	case flags&flagReply != 0 && l.own&featureRefusals != 0:
		reason := ReasonTooLarge
		if errors.Is(err, ErrUnreadable) {
			reason = ReasonUnanswered
		}
		c.refuseCall(tid, reason, 0, "")
	case typ == typePull || typ == typePush:
		if b := l.t.frames(); b != nil {
			b.fail(tid, err)
		}
	case typ == typePulled:
		r := NewMessage(typePulled)
		r.TID = tid
		status := byte(pulledTooLarge)
		if errors.Is(err, ErrUnreadable) {
			status = pulledStale
		}
		r.Front = append(r.Front, status)
		if c.queueOwn(l, r) != nil {
			r.Release()
		}
	}
}

// drain sends what is queued, as long as there is something.
func (c *Connection) drain() {
	defer c.m.wg.Done()
	if lat := c.m.lat; lat != nil {
		begun := lat.now()
		defer func() { lat.send.Observe(lat.now() - begun) }()
	}
	var buf []byte
	c.mu.Lock()
	for {
		l := c.link
		e, ok := entry{}, false
		if l != nil {
			e, ok = c.next()
		}
		if !ok {
			if l != nil {
				// Flush outside of the lock, then look again.
				c.mu.Unlock()
				err := l.t.flush()
				c.mu.Lock()
				if err != nil {
					c.mu.Unlock()
					c.broken(l, "write", err)
					c.mu.Lock()
				} else if c.link == l && c.unsent() {
					continue
				}
			}
			c.draining = false
			if c.link != nil && c.unsent() {
				c.draining = true
				continue
			}
			c.scratch = buf[:0:cap(buf)]
			if c.isFlushed() {
				c.wakeFlushed()
			}
			c.mu.Unlock()
			return
		}
		if e.m != nil && c.waiting.n > 0 && c.room(0) {
			c.wakeSender()
		}
		if e.m != nil && !e.bound {
			if err := c.fits(l, e.m); err != nil { // it was queued before the peer was known
				c.giveUp(e.m)
				c.mu.Unlock()
				c.unsendable(l, e.flags, e.m.Type, e.m.TID, err)
				e.m.sent()
				c.mu.Lock()
				continue
			}
		}
		if buf == nil {
			buf, c.scratch = c.scratch[:0], nil
		}
		replayed, numbered, acked := e.seq != 0, l.numbered, c.session.AckSent
		f := c.frame(buf[:0], l, &e)
		buf = f.head
		kept := c.keeps(&e)
		var typ uint16
		var tid uint64
		if e.m != nil {
			typ, tid = e.m.Type, e.m.TID
		}
		if kept { // from here on e.m may be acknowledged, and gone
			c.keep(&e)
		}
		c.mu.Unlock()
		err := c.m.inject.beforeSend(e.size)
		if err == nil {
			c.m.inject.dump(l, f.head)
			err = l.t.send(f)
		}
		switch {
		case err == nil:
			c.wrote(&e, !kept, replayed)
			c.mu.Lock()
			continue
		case kept && f.data != nil:
			f.data.Release()
		case f.data != nil:
			e.untake(f.data)
		}
		f.over()
		if givesUp(err) {
			c.unsendable(l, e.flags, typ, tid, err)
		}
		if e.m != nil && !kept {
			c.mu.Lock()
			c.giveUp(e.m)
			c.mu.Unlock()
			e.m.sent()
		}
		if givesUp(err) {
			c.mu.Lock()
			l.numbered = numbered // the peer learns of the gap
			if c.link == l {
				c.session.AckSent = acked // what the frame acknowledged
			}
			var m *Message
			if kept {
				if m = c.forgetSent(e.seq); m != nil {
					c.giveUp(m)
				}
			}
			if c.waiting.n > 0 && c.room(0) {
				c.wakeSender()
			}
			c.mu.Unlock()
			c.acknowledge()
			if m != nil {
				m.sent()
			}
		} else {
			c.broken(l, "write", err)
		}
		c.mu.Lock()
	}
}

// broken ends a link on which a frame was lost: nothing may follow it there, as
// the peer would take what comes next and never the one that is missing. Whoever
// else is ending the link may not have told the session yet.
func (c *Connection) broken(l *link, op string, err error) {
	l.fail(op, err)
	c.lost(l, l.failure())
}
