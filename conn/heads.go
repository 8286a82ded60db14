package conn

import (
	"cmp"
	"context"

	"github.com/argonaut-rdma/argonaut/buffer"
)

// Heads that no send slot has room for get a buffer of their own.

// getHead gets a buffer for a head of n bytes. It waits until ctx or the connection
// ends.
func (c *Conn) getHead(ctx context.Context, n int) (buffer.RDMABuffer, error) {
	if b, ok := c.e.arena.TryGet(n, c.e.sendOwner); ok {
		return b, nil
	}
	both, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(c.life, cancel)()
	b, err := c.e.arena.Get(both, n, c.e.sendOwner)
	if err != nil && ctx.Err() == nil && c.Err() != nil {
		err = c.Err()
	}
	return b, err
}

// awaitHead has OnWritable called when there is memory for a head of n bytes. It
// returns why, if nothing is accepted any more, or if there can be no memory.
func (c *Conn) awaitHead(n int) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	err := cmp.Or(c.over(), c.headErr)
	c.headErr = nil
	if err != nil {
		return err
	}
	c.writable = stallAny
	if c.headAsked == 0 || n < c.headAsked {
		c.headAsked = n
		c.e.supplying.Go(func() { c.memoryForHead(n) }) // the suppliers outlive c
	}
	return nil
}

// memoryForHead waits until there is memory for a head of n bytes, as long as the
// connection lives, and has the poller call OnWritable.
func (c *Conn) memoryForHead(n int) {
	b, err := c.e.arena.Get(c.life, n, c.e.sendOwner)
	if err == nil {
		b.Release()
	}
	c.mu.Lock()
	if c.headAsked == n {
		c.headAsked = 0
	}
	if err != nil && c.life.Err() == nil {
		c.headErr = err
	}
	c.mu.Unlock()
	c.kick(mailSettle)
}
