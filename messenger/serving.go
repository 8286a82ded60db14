package messenger

import (
	"context"

	"github.com/argonaut-rdma/argonaut/messenger/internal/session"
)

// A call of a peer is served from when it is received until its last Release,
// whoever dispatches it: that is what Drain and Shutdown wait for. Its context is
// made when somebody asks for it: one that is answered at once needs none.

// Context is the context of a received call: it ends with the deadline that the
// caller set, with its cancelling, with the connection, when the session begins
// anew with a peer that has lost it, and with m's last Release. It is what
// Dispatch is given; a FastDispatch that keeps a call asks for it here. Of a
// received message that is no call it is the connection's, of any other
// context.Background. The caller has a reference to m.
func (m *Message) Context() context.Context {
	c := m.Conn
	switch {
	case c == nil:
		return context.Background()
	case !m.serving:
		return c.ctx
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if m.ctx == nil {
		if m.deadline.IsZero() {
			m.ctx, m.cancel = context.WithCancel(context.Background())
		} else {
			m.ctx, m.cancel = context.WithDeadline(context.Background(), m.deadline)
		}
		if m.stopped.Load() || c.session.State == session.Closed {
			m.cancel()
		}
	}
	return m.ctx
}

// stop ends the context of m, a call that nobody waits for any more. The lock of
// its connection is held.
func (m *Message) stop() {
	m.stopped.Store(true)
	if m.cancel != nil {
		m.cancel()
	}
}

// serve notes that m, if it is a call, is to be answered. It is called before m is
// dispatched. c.mu is held.
func (c *Connection) serve(m *Message) {
	if m.flags&flagCall == 0 {
		return
	}
	m.serving, m.callTID = true, m.TID
	if c.serving == nil {
		c.serving = map[uint64]*Message{}
	}
	if old := c.serving[m.TID]; old != nil {
		old.stop() // a peer that works does not call twice by one number: nothing else would end it
	}
	c.serving[m.TID] = m
}

// served ends what serve began.
func (c *Connection) served(m *Message) {
	c.mu.Lock()
	if c.serving[m.callTID] == m {
		delete(c.serving, m.callTID)
	}
	c.mu.Unlock()
	c.m.servedCall()
	if m.cancel != nil {
		m.cancel()
	}
	m.serving, m.callTID, m.ctx, m.cancel = false, 0, nil, nil
	m.stopped.Store(false)
}

// servedCall has finishHandlers, if somebody is there, look again.
func (m *Messenger) servedCall() {
	select {
	case m.servedOne <- struct{}{}:
	default:
	}
}

// abandon forgets the call tid, whose handler has panicked: a message that was
// leaked would hold up Shutdown.
func (c *Connection) abandon(tid uint64) {
	c.mu.Lock()
	if m := c.serving[tid]; m != nil {
		m.stop()
		delete(c.serving, tid)
	}
	c.mu.Unlock()
	c.m.servedCall()
}

// cancelServing ends the context of a call that its caller has given up.
func (c *Connection) cancelServing(tid uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if m := c.serving[tid]; m != nil {
		m.stop()
	}
}
