package messenger

import (
	"sync/atomic"
	"time"

	"github.com/argonaut-rdma/argonaut/conn"
	"github.com/argonaut-rdma/argonaut/messenger/internal/msgr2"
)

// pacing is what happens to a received frame of a handshake on RDMA before it is
// handled: pauses, and Inject.Step, which may take its time. Neither may hold up
// the poller, so the connection is parked meanwhile, as for a throttle.
type pacing struct {
	frame string
	over  atomic.Bool
	err   error // what Step has returned; set before over
}

// pace reports whether the frame of the handshake that has come is to be handled
// now. Else it is asked again. It runs on the poller.
func (l *link) pace(c *conn.Conn, head []byte) bool {
	if l == nil || l.hs == nil || l.m.inject == nil {
		return true
	}
	if p := l.rdma.paced; p != nil {
		return p.over.Load()
	}
	i := l.m.inject
	d := i.pausing()
	if d == 0 && i.Step == nil {
		return true
	}
	name, ok := l.hs.nameOf(head)
	if !ok { // said where it is decoded
		return true
	}
	m := l.m
	m.mu.Lock()
	if m.closing.Load() { // Shutdown waits for goroutines from then on
		m.mu.Unlock()
		return true
	}
	m.wg.Add(1)
	m.mu.Unlock()
	p, s := &pacing{frame: name}, l.stepOf(name, false)
	l.rdma.paced = p
	go func() { // ends when Step has returned
		defer m.wg.Done()
		t := time.NewTimer(d)
		defer t.Stop()
		select {
		case <-t.C:
		case <-l.gone:
			return
		}
		if i.Step != nil {
			p.err = i.Step(s)
		}
		p.over.Store(true)
		c.Resume()
	}()
	return false
}

// nameOf is the name of the step of a frame that has come and is not yet handled.
// false: it is malformed.
func (h *handshake) nameOf(raw []byte) (string, bool) {
	if h.at == hsBanner {
		return stepBanner, true
	}
	if h.shield != nil {
		var err error
		if raw, err = h.shield.rx.Peek(nil, raw, 0); err != nil {
			return "", false
		}
	}
	var p msgr2.Preamble
	if p.Decode(raw, msgr2.Limits{}) != nil {
		return "", false
	}
	return p.Tag.String(), true
}
