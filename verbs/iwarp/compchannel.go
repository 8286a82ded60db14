package iwarp

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/argonaut-rdma/argonaut/verbs/driver"
)

// compChannel hands armed CQs that have completed something to one waiter.
type compChannel struct {
	dev    *Device
	cqs    atomic.Int64
	upcall func(driver.CQ) bool // may be nil; set before there are CQs

	wake chan struct{} // one token: look again
	done chan struct{} // closed by Close

	mu      sync.Mutex
	pending []*cq
	woken   bool
	closed  bool
}

var (
	_ driver.CompChannel = (*compChannel)(nil)
	_ driver.Upcaller    = (*compChannel)(nil)
)

// CreateCompChannel makes a completion channel.
func (d *Device) CreateCompChannel() (driver.CompChannel, error) {
	d.nChannel.Add(1)
	return &compChannel{dev: d, wake: make(chan struct{}, 1), done: make(chan struct{})}, nil
}

// SetUpcall lends f the goroutine of a receiver: whoever else completes
// something is in the middle of a post.
func (ch *compChannel) SetUpcall(f func(driver.CQ) bool) bool {
	ch.upcall = f
	return true
}

// deliver offers an event to the upcall first.
func (ch *compChannel) deliver(c *cq) {
	if ch.upcall == nil || !ch.upcall(c) {
		ch.announce(c)
	}
}

func (ch *compChannel) announce(c *cq) {
	ch.mu.Lock()
	if !slices.Contains(ch.pending, c) {
		ch.pending = append(ch.pending, c)
	}
	ch.mu.Unlock()
	ch.signal()
}

func (ch *compChannel) signal() {
	select {
	case ch.wake <- struct{}{}:
	default:
	}
}

func (ch *compChannel) forget(c *cq) {
	ch.mu.Lock()
	ch.pending = slices.DeleteFunc(ch.pending, func(x *cq) bool { return x == c })
	ch.mu.Unlock()
}

// next takes what there is to return. ok is false when there is nothing yet.
func (ch *compChannel) next() (c *cq, ok bool) {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	if len(ch.pending) > 0 {
		c = ch.pending[0]
		ch.pending = slices.Delete(ch.pending, 0, 1) // in place: few CQs share a channel
		return c, true
	}
	if ch.woken {
		ch.woken = false
		return nil, true
	}
	return nil, false
}

func (ch *compChannel) Wait(ctx context.Context) (driver.CQ, error) {
	for {
		select {
		case <-ch.done:
			return nil, driver.ErrClosed
		default:
		}
		if c, ok := ch.next(); ok {
			if c == nil {
				return nil, nil
			}
			return c, nil
		}
		select {
		case <-ch.wake:
		case <-ch.done:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

func (ch *compChannel) Wake() {
	ch.mu.Lock()
	ch.woken = true
	ch.mu.Unlock()
	ch.signal()
}

// Close ends Wait. It is refused while CQs are on the channel.
func (ch *compChannel) Close() error {
	if n := ch.cqs.Load(); n != 0 {
		return fmt.Errorf("iwarp: completion channel has %d CQs: %w", n, driver.ErrInvalid)
	}
	ch.mu.Lock()
	defer ch.mu.Unlock()
	if !ch.closed {
		ch.closed = true
		close(ch.done)
		ch.dev.nChannel.Add(-1)
	}
	return nil
}
