package messenger

import (
	"log/slog"

	"github.com/argonaut-rdma/argonaut/messenger/internal/session"
)

// What a lossless session has sent it keeps, numbered, until the peer has
// acknowledged it. When the transport fails it goes back in front of the queue,
// with its numbers, so that the peer sees what it has received already.

// lossless reports whether messages are kept. c.mu is held.
func (c *Connection) lossless() bool { return !c.session.Policy.Lossy }

// keep notes an entry that has been sent. c.mu is held.
func (c *Connection) keep(e *entry) {
	c.sent.push(*e)
	c.kept += e.size
}

// unkeep forgets an entry of sent or replay, and returns its message, which is
// to be released without the lock. c.mu is held.
func (c *Connection) unkeep(e *entry) *Message {
	c.kept -= e.size
	return e.m
}

// pending reports whether something waits to be sent, or to be sent again, or
// somebody for the connection: also for the reply to a call, which the peer may
// not be able to bring. c.mu is held.
func (c *Connection) pending() bool {
	return c.replay.n > 0 || c.queue.messages > 0 || c.wanted > 0 || len(c.calls) > 0
}

// requeue puts what was sent and not acknowledged in front of the queue, and
// drops what only makes sense on the transport that has failed: control frames,
// and the messenger's own bulk frames, which it returns for their release. c.mu
// is held.
func (c *Connection) requeue() (stale []*Message) {
	for c.replay.n > 0 { // was not sent again yet: behind what was
		e, _ := c.replay.pop()
		c.sent.push(e)
	}
	c.sent, c.replay = c.replay, c.sent
	for {
		if _, ok := c.queue.control.pop(); !ok {
			break
		}
	}
	c.ackQueued = false
	if stale = c.queue.dropBound(); len(stale) > 0 {
		c.wakeSenders() // there is room
	}
	return stale
}

// ackBatch is how many acknowledged messages are released at a time.
const ackBatch = 16

// acked takes out of those that are kept a batch of what the peer has received.
// c.mu is held.
func (c *Connection) acked(batch *[ackBatch]*Message) (n int) {
	for _, r := range [...]*ring[entry]{&c.sent, &c.replay} {
		for n < ackBatch && r.n > 0 && r.peek().seq <= c.session.Acked {
			e, _ := r.pop()
			if e.flags&flagCall != 0 {
				if k := c.calls[e.m.TID]; k != nil {
					k.had = true
				}
			}
			if e.begun != 0 {
				c.m.lat.sendAck.Observe(c.m.lat.now() - e.begun)
			}
			batch[n] = c.unkeep(&e)
			n++
		}
	}
	for i := 0; i < n && c.waiting.n > 0 && c.room(0); i++ {
		c.wakeSender()
	}
	return n
}

// releaseAcked releases a batch, and what else the peer has received.
func (c *Connection) releaseAcked(batch *[ackBatch]*Message, n int) {
	for n > 0 {
		for _, m := range batch[:n] {
			m.sent()
		}
		full := n == ackBatch
		c.mu.Lock()
		if n = 0; full {
			n = c.acked(batch)
		}
		if n < ackBatch && len(c.flushed) > 0 && c.isFlushed() {
			c.wakeFlushed()
		}
		c.mu.Unlock()
	}
}

// acknowledged notes that the peer has received all up to seq, by an ACK on l.
func (c *Connection) acknowledged(l *link, seq uint64) {
	var batch [ackBatch]*Message
	c.mu.Lock()
	if c.link != l {
		c.mu.Unlock()
		return
	}
	c.session.Acknowledged(seq)
	n := c.acked(&batch)
	c.mu.Unlock()
	c.releaseAcked(&batch, n)
}

// giveUp counts a message that will not be delivered, if it is a user's. c.mu is
// held.
func (c *Connection) giveUp(m *Message) {
	if m.Type < ReservedTypes {
		c.givenUp++
		c.m.n.givenUp.Add(1)
	}
}

// dropAll empties the queue and what is kept, and returns it for its release.
// c.mu is held.
func (c *Connection) dropAll() (dropped []*Message) {
	defer func() {
		for _, m := range dropped {
			c.giveUp(m)
		}
	}()
	for _, r := range [...]*ring[entry]{&c.sent, &c.replay} {
		for r.n > 0 {
			e, _ := r.pop()
			dropped = append(dropped, c.unkeep(&e))
		}
	}
	for {
		e, ok := c.queue.pop()
		if !ok {
			return dropped
		}
		if e.m != nil {
			dropped = append(dropped, e.m)
		}
	}
}

func releaseAll(ms []*Message) {
	for _, m := range ms {
		m.sent()
	}
}

// forgotten drops what belonged to a session that the peer has lost. It is
// called with c.mu locked, and unlocks it.
func (c *Connection) forgotten() {
	dropped := c.dropAll()
	calls := c.calls
	c.calls = nil
	for _, m := range c.serving {
		m.stop()
	}
	c.resets++
	c.wakeSenders()
	c.wakeFlushed()
	c.mu.Unlock()
	c.m.n.remoteResets.Add(1)
	c.note(slog.LevelInfo, "the peer has lost the session")
	releaseAll(dropped)
	for _, k := range calls {
		k.ch <- answer{}
	}
	// What the old transport has received goes first.
	c.recvMu.Lock()
	c.recvMu.Unlock() //nolint:staticcheck // an empty section: a barrier
	c.strand.push(event{kind: eventRemoteReset})
}

// renewed is called when the peer has agreed on a session that is new: one that
// has acknowledged anything in an earlier one has lost that. What it was asked
// there it will not answer: the calls, which the caller ends, are returned. What
// it has asked nobody waits for. What waits to be sent stays. c.mu is held.
func (c *Connection) renewed() (orphans []*call) {
	for tid, k := range c.calls {
		if k.had {
			delete(c.calls, tid)
			orphans = append(orphans, k)
		}
	}
	for _, m := range c.serving {
		m.stop()
	}
	return orphans
}

// endCalls ends calls that were taken out of Connection.calls, with ErrReset.
func endCalls(ks []*call) {
	for _, k := range ks {
		k.ch <- answer{}
	}
}

// rules is the part of a policy that sessions know.
func (p Policy) rules() session.Policy {
	return session.Policy{
		Lossy: p.Lossy, Server: p.Server, Standby: p.Standby, ResetCheck: p.ResetCheck, RegisterLossy: p.RegisterLossyClients,
	}
}
