package messenger

import (
	"cmp"
	"context"
	"fmt"

	"github.com/argonaut-rdma/argonaut/messenger/internal/session"
)

// wakeFlushed wakes who waits for the queue to be empty. c.mu is held.
func (c *Connection) wakeFlushed() {
	for _, ch := range c.flushed {
		close(ch)
	}
	c.flushed = nil
}

// isFlushed reports whether all has been handed to the transport, and, where the
// session is lossless, been acknowledged. c.mu is held.
func (c *Connection) isFlushed() bool {
	switch {
	case c.session.State == session.Closed, c.gaveUp:
		return true
	case c.m.closing.Load() && c.link == nil && !c.lossless():
		return true
	case c.m.closing.Load() && c.session.State == session.Standby && (c.session.Policy.Server || !c.session.Dialable):
		return true // the peer would have to come back: it is not let in
	}
	return !c.draining && !c.unsent() && c.sent.n == 0
}

// flush waits until isFlushed, or ctx ends, which may be because of the former.
func (c *Connection) flush(ctx context.Context) error {
	for {
		c.mu.Lock()
		if c.isFlushed() {
			c.mu.Unlock()
			return nil
		}
		ch := make(chan struct{})
		c.flushed = append(c.flushed, ch)
		c.mu.Unlock()
		select {
		case <-ch:
		case <-ctx.Done():
			c.mu.Lock()
			defer c.mu.Unlock()
			if c.isFlushed() {
				return nil
			}
			return ctx.Err()
		}
	}
}

// Shutdown ends the connection politely (Ceph: Connection::shutdown). New sends, replies and
// calls fail with ErrClosed, as do those that wait for room in the queue. What has
// been accepted before is flushed: sent, and where the session is lossless
// acknowledged by the peer, through reconnects; a lossy one waits until its peer,
// which is told, has closed: it has read all then. Meanwhile what the peer sends is dropped
// and not acknowledged, but for replies to calls under way. Then the connection ends
// as by MarkDown: HandleReset is not called, also where a fault has ended it
// meanwhile, received messages that wait for Dispatch are dropped, and calls that
// wait for their reply end with ErrClosed.
//
// When ctx ends, or nobody listens at the peer's address, it ends at once. The
// messages are the connection's in any case, and released. The error says how many
// messages were not delivered, as far as is known, and wraps why: ctx's error, or
// that of the transport. nil: none, which on a lossy session means that all were
// sent. Of a connection that has closed it is nil; on the loopback it does nothing.
//
// It may be called by several at once, who all wait, and from Dispatch; not from
// FastDispatch, as it blocks. ConnectTo gives this connection until it has ended.
func (c *Connection) Shutdown(ctx context.Context) error {
	if c.loop {
		return nil
	}
	c.mu.Lock()
	c.refuse, c.mute = true, true
	c.wakeSenders()
	before := c.givenUp
	c.mu.Unlock()
	c.acknowledge() // the peer would keep what it has sent
	err := c.flush(ctx)
	if err == nil {
		err = c.part(ctx)
	}
	why := c.Err()
	c.MarkDown()
	c.mu.Lock()
	lost, name := c.givenUp-before, c.peer
	c.mu.Unlock()
	if err == nil && lost == 0 {
		return nil
	}
	// What a session that goes on has given up could not be sent; the log says why.
	return fmt.Errorf("messenger: shutdown of the connection to %v: %d messages not delivered: %w",
		name, lost, cmp.Or(err, why, ErrTooLarge))
}

// part waits until the peer of a lossy session has read what was sent, and closed, or
// ctx ends.
func (c *Connection) part(ctx context.Context) error {
	c.mu.Lock()
	l, lossless := c.link, c.lossless()
	c.mu.Unlock()
	if l == nil || lossless {
		return nil
	}
	return l.goodbye(ctx)
}
