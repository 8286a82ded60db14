package messenger

import (
	"fmt"
	"log/slog"
	"time"

	"github.com/argonaut-rdma/argonaut/messenger/internal/session"
)

// expire ends lossless sessions that have had no transport for
// Config.SessionTimeout. It is the ticker's.
func (m *Messenger) expire(now time.Time) {
	limit := m.cfg.SessionTimeout
	if limit <= 0 || m.closing.Load() {
		return
	}
	m.mu.Lock()
	all := make([]*Connection, 0, len(m.connections))
	for c := range m.connections {
		all = append(all, c)
	}
	m.mu.Unlock()
	for _, c := range all {
		c.expire(now, limit)
	}
}

func (c *Connection) expire(now time.Time, limit time.Duration) {
	c.mu.Lock()
	// Open without a link: it has just been resumed, and is about to have one.
	if c.session.State == session.Closed || c.session.State == session.Open || c.link != nil || c.claim != nil || !c.lossless() || now.Sub(c.parted) < limit {
		c.mu.Unlock()
		return
	}
	err := fmt.Errorf("%w: no transport for %v", ErrTimeout, limit)
	if c.err != nil {
		err = fmt.Errorf("%w; at last: %w", err, c.err)
	}
	name := c.peer
	c.close(&FaultError{Peer: name.String(), Op: "session", Err: err})
	c.m.n.expired.Add(1)
	c.note(slog.LevelWarn, "a session has expired", "err", err)
	c.strand.push(event{kind: eventReset})
}
