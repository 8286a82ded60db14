package messenger

import (
	"context"

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
	case c.link == nil && !c.lossless():
		return true
	case c.refuse && c.session.State == session.Standby && (c.session.Policy.Server || !c.session.Dialable):
		return true // the peer would have to come back: shutting down, it is not let in
	}
	return !c.draining && !c.unsent() && c.sent.n == 0
}

// flush waits until isFlushed, or ctx ends.
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
			return ctx.Err()
		}
	}
}
