package messenger

import (
	"fmt"
	"time"

	"github.com/argonaut-rdma/argonaut/messenger/internal/session"
)

// State is where a Connection stands.
type State uint8

// The states of a Connection.
const (
	StateConnecting State = iota // dialing, in the handshake, or waiting to try again
	StateOpen
	StateStandby // lossless only: waiting for the peer, or for something to send
	StateClosed
)

func (s State) String() string {
	switch s {
	case StateConnecting:
		return "connecting"
	case StateOpen:
		return "open"
	case StateStandby:
		return "standby"
	case StateClosed:
		return "closed"
	}
	return fmt.Sprintf("state%d", uint8(s))
}

// State returns where the connection stands.
func (c *Connection) State() State {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.state()
}

// state is State. c.mu is held.
func (c *Connection) state() State {
	switch c.session.State {
	case session.Open:
		return StateOpen
	case session.Standby:
		return StateStandby
	case session.Closed:
		return StateClosed
	}
	return StateConnecting
}

// Stats returns the connection's counters and gauges.
func (c *Connection) Stats() ConnStats {
	s, t := c.stats()
	if t != nil {
		s.Grants = t.grants() // which may have to wait for one that calls us back
	}
	return s
}

// undispatched is how many received messages wait for Dispatch, and for how long
// the first of them has.
func (c *Connection) undispatched() (n int, oldest time.Duration) {
	n, since := c.strand.waiting()
	if since != 0 {
		oldest = time.Duration(c.m.clock() - since)
	}
	return n, oldest
}

// stats is Stats without the grants, and the transport that has them, or nil.
func (c *Connection) stats() (s ConnStats, t transport) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s = ConnStats{
		State: c.state(), QueuedMessages: c.queue.messages, QueuedBytes: c.queue.bytes,
		UnackedMessages: c.sent.n + c.replay.n, UnackedBytes: c.kept,
		OutSeq: c.session.OutSeq, InSeq: c.session.InSeq,
		Undelivered: c.givenUp, Reconnects: uint64(c.reconnects), RemoteResets: uint64(c.resets),
		LastKeepalive: c.lastKeepalive(), LastKeepaliveAck: c.lastKeepaliveAck(),
	}
	s.Undispatched, s.OldestUndispatched = c.undispatched()
	if t := c.queue.oldest(); !t.IsZero() {
		s.OldestQueued = time.Since(t)
	}
	if l := c.link; l != nil {
		s.Transport = l.scheme
		s.LastReceived = c.m.at(l.lastReceived.Load())
		t = l.transport()
	}
	return s, t
}
