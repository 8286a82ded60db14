package messenger

import (
	"time"

	"github.com/argonaut-rdma/argonaut/messenger/internal/session"
)

// SendKeepalive asks the peer for a sign of life, and takes a connection out of
// standby. Where the connection is not open, one keepalive goes as soon as it is,
// however often it was asked for. It does not block; see LastKeepaliveAck.
func (c *Connection) SendKeepalive() {
	c.mu.Lock()
	c.leaveStandby()
	if c.link == nil && !c.loop {
		c.askOnOpen = c.session.State != session.Closed
		c.mu.Unlock()
		return
	}
	c.mu.Unlock()
	c.sendControl(entry{kind: entryKeepalive, since: time.Now()})
}

// LastKeepalive is when the last keepalive of the peer came, zero for never (Ceph:
// get_last_keepalive).
func (c *Connection) LastKeepalive() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.lastKeepalive()
}

// lastKeepalive is LastKeepalive. c.mu is held.
func (c *Connection) lastKeepalive() (t time.Time) {
	if c.askedAt != 0 {
		t = c.m.at(c.askedAt)
	}
	return t
}

// LastKeepaliveAck is when the last keepalive that was answered was sent, zero for
// none (Ceph: get_last_keepalive_ack).
func (c *Connection) LastKeepaliveAck() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.lastKeepaliveAck()
}

// lastKeepaliveAck is LastKeepaliveAck. c.mu is held.
func (c *Connection) lastKeepaliveAck() (t time.Time) {
	if c.ackedAt != 0 {
		t = time.Unix(0, c.ackedAt)
	}
	return t
}

func (c *Connection) keepaliveCame() {
	now := c.m.clock()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.askedAt = now
}

func (c *Connection) keepaliveAcked(stamp time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ackedAt = max(c.ackedAt, stamp.UnixNano())
}
