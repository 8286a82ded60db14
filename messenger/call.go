package messenger

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/argonaut-rdma/argonaut/messenger/internal/session"
)

// call is a request that waits for its reply. Whoever takes it out of
// Connection.calls sends exactly one value.
type call struct {
	ch chan answer
	// had: the peer has acknowledged the request, which is not kept any more: one
	// that has lost the session will not answer it. Connection.mu guards it.
	had bool
}

// answer is the reply to a call, or why there is none; neither where the session
// or the connection has ended.
type answer struct {
	m   *Message
	err error
}

func newCall() any { return &call{ch: make(chan answer, 1)} }

// Call sends m with a new TID and waits for the message that replies to it,
// whose reference it returns. ctx's deadline travels with m and ends the
// handler's context at the peer, as cancelling does (peers of this project; a
// Ceph daemon answers by TID alone). It takes m: on an error the reference is
// still the caller's, but m may have been sent: release it, and make another one to
// try again. What still waits to be sent when ctx ends is not sent. It waits through reconnects of a
// lossless session. Errors as Send, ctx's with whether the message has been sent, the
// connection's state and its last error; ErrReset when the session or the connection
// ends before the reply; and a *RemoteError (ErrRemote) as soon as the peer, of
// this project, knows that there will be none: nobody handles the message, its
// handler has panicked, refused it, or released it without an answer, or the
// peer is draining.
func (c *Connection) Call(ctx context.Context, m *Message) (*Message, error) {
	pool := &c.m.callPool
	k := pool.Get().(*call)
	begun := c.m.lat.now()
	c.mu.Lock()
	if c.session.State == session.Closed || c.refuse || c.mute {
		err := c.closedErr()
		c.mu.Unlock()
		pool.Put(k)
		return nil, err
	}
	c.lastTID++
	tid := c.lastTID
	k.had = false
	if c.calls == nil {
		c.calls = map[uint64]*call{}
	}
	c.calls[tid] = k
	c.mu.Unlock()

	m.TID = tid
	p := purpose{flags: flagCall}
	p.deadline, _ = ctx.Deadline()
	m.Retain() // the queue's; the caller's own is kept until the reply
	_, err := c.enqueue(ctx, m, p)
	if err != nil {
		m.Release()
		if !c.forgetCall(tid) {
			<-k.ch // the connection's end
		}
		pool.Put(k)
		if ctx.Err() != nil && errors.Is(err, ctx.Err()) {
			err = c.gaveUpCall(ctx.Err(), "the message has not been sent, the queue is full")
		}
		return nil, err
	}
	var r answer
	select {
	case r = <-k.ch:
	case <-ctx.Done():
		if c.forgetCall(tid) {
			pool.Put(k)
			if c.withdraw(m) {
				return nil, c.gaveUpCall(ctx.Err(), "the message has not been sent")
			}
			err := c.gaveUpCall(ctx.Err(), "the message has been sent")
			c.sendOwn(typeCancel, tid)
			return nil, err
		}
		r = <-k.ch
	}
	pool.Put(k)
	if r.err != nil {
		return nil, r.err
	}
	if r.m == nil {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.session.State != session.Closed {
			return nil, fmt.Errorf("call: %w: the peer has lost the session", ErrReset)
		}
		return nil, fmt.Errorf("call: %w", c.closedErr())
	}
	if begun != 0 {
		c.m.lat.call.Observe(c.m.lat.now() - begun)
	}
	m.Release()
	return r.m, nil
}

// withdraw takes the call m, which its caller has given up, out of the queue. false:
// it has been sent.
func (c *Connection) withdraw(m *Message) bool {
	c.mu.Lock()
	dropped := c.queue.drop(func(e *entry) bool { return e.m == m && e.seq == 0 && e.flags&flagCall != 0 })
	if len(dropped) > 0 {
		c.dropped()
	}
	c.mu.Unlock()
	releaseAll(dropped)
	return len(dropped) > 0
}

// dropped wakes who waits for the queue, of which something has been taken out that
// is not sent. c.mu is held.
func (c *Connection) dropped() {
	c.wakeSenders() // there is room
	if c.isFlushed() {
		c.wakeFlushed()
	}
}

// gaveUpCall is the error of a call that has ended with its context's err: how far it
// has come, and how the connection is.
func (c *Connection) gaveUpCall(err error, how string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err == nil {
		return fmt.Errorf("call: %w: %s; the connection is %v", err, how, c.state())
	}
	return fmt.Errorf("call: %w: %s; the connection is %v, its last error: %w", err, how, c.state(), c.err)
}

// forgetCall takes a call out. false: its value has been sent, or will be at
// once.
func (c *Connection) forgetCall(tid uint64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, ok := c.calls[tid]
	delete(c.calls, tid)
	return ok
}

func (c *Connection) isCall(tid uint64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, ok := c.calls[tid]
	return ok
}

// replied gives m to the call that it answers. false: there is none, it has been
// given up.
func (c *Connection) replied(m *Message) bool {
	c.mu.Lock()
	k, ok := c.calls[m.TID]
	delete(c.calls, m.TID)
	c.mu.Unlock()
	if ok {
		k.ch <- answer{m: m}
	}
	return ok
}

// Message types of our own. They are exchanged with peers that offered
// featureArgonaut, and never dispatched.
const (
	typeCancel = ReservedTypes + iota // the call with this tid has been given up
	typePull                          // see PROTOCOL.md
	typePulled
	typePush
	typePushed
	typeRefused // the call with this tid will not be answered
)

// sendOwn queues a message of our own without front, if the peer knows it.
func (c *Connection) sendOwn(t uint16, tid uint64) {
	m := NewMessage(t)
	m.TID = tid
	if err := c.queueOwn(nil, m); err != nil {
		m.Release()
	}
}

// queueOwn queues a message of our own: it takes m, does not block, and is not
// bounded by the queue's limits. What makes sense on one transport only, as each
// numbers its pulls and pushes, names it: l, nil for none.
func (c *Connection) queueOwn(l *link, m *Message) error {
	if c.loop {
		if m.Type == typeCancel {
			c.cancelServing(m.TID)
		}
		m.Release()
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.session.State == session.Closed,
		c.link == nil && (m.Type != typeRefused && m.Type != typeCancel || !c.lossless()): // they go with the session, as the call did
		return c.closedErr()
	case l != nil && c.link != l:
		return errReplaced
	case c.link != nil && c.link.own == 0:
		return ErrNotSupported
	}
	m.Priority = PriorityHigh
	c.queue.push(entry{kind: entryMessage, m: m, size: m.size(), bound: l != nil, since: time.Now()})
	c.leaveStandby()
	c.kick()
	return nil
}
