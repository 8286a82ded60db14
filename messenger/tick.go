package messenger

import (
	"fmt"
	"time"

	"github.com/argonaut-rdma/argonaut/messenger/internal/session"
)

// tickInterval is how often deadlines of links are looked at, at most.
const tickInterval = time.Second

// clock is the time since the messenger was made, in nanoseconds and never 0: a
// clock that nobody sets.
func (m *Messenger) clock() int64 { return max(1, int64(time.Since(m.started))) }

// at is the time that clock has said.
func (m *Messenger) at(clock int64) time.Time { return m.started.Add(time.Duration(clock)) }

// tick ends links whose peers do not keep their deadlines, and sends
// keepalives. It is one goroutine per messenger, which ends with m.stop.
func (m *Messenger) tick() {
	defer m.wg.Done()
	every := min(tickInterval, m.cfg.ConnectTimeout/4)
	for _, d := range []time.Duration{m.cfg.IdleTimeout, m.cfg.SessionTimeout, m.cfg.KeepaliveInterval, m.cfg.KeepaliveTimeout} {
		if d > 0 {
			every = min(every, d/4)
		}
	}
	t := time.NewTicker(max(every, time.Millisecond))
	defer t.Stop()
	var links []*link
	for {
		select {
		case <-m.stop:
			return
		case now := <-t.C:
			links = links[:0]
			m.mu.Lock()
			for l := range m.links {
				links = append(links, l)
			}
			m.mu.Unlock()
			for _, l := range links {
				l.tick(now)
			}
			clear(links)
			m.expire(now)
			m.settle()
			m.ticked.Store(int64(now.Sub(m.started)))
		}
	}
}

// stalled reports whether both sides wait for each other for too long: the peer
// does not take what we send, and we do not read, because what it has sent waits
// for that. A peer that only does not read says that it lives, and one that we
// only hold back may have said so.
func (l *link) stalled(now time.Time) bool {
	since, limit := l.sending.Load(), l.m.cfg.KeepaliveTimeout
	return limit > 0 && since != 0 && l.holding.Load() && now.Sub(l.m.at(since)) > limit
}

// lookForProgress counts as signs of life what comes in within a long frame, and
// that it is we who do not listen.
func (l *link) lookForProgress() {
	l.mu.Lock()
	t := l.t
	l.mu.Unlock()
	if t == nil {
		return
	}
	moved, parked := t.progress()
	if parked || moved != l.moved {
		l.touch(parked)
	}
	l.moved = moved
}

// lookForUse counts as use what has been sent: what was received has been counted
// when it was.
func (l *link) lookForUse() {
	c := l.owner.Load()
	if c == nil {
		return
	}
	c.mu.Lock()
	sent, ours := c.session.OutSeq, c.link == l
	c.mu.Unlock()
	if ours && sent != l.sent {
		l.sent = sent
		l.lastUsed.Store(l.m.clock())
	}
}

func (l *link) tick(now time.Time) {
	cfg := &l.m.cfg
	if l.stalled(now) {
		l.fail("send", fmt.Errorf("%w: the peer has not taken a frame for %v, and sends", ErrTimeout, cfg.KeepaliveTimeout))
		return
	}
	l.lookForProgress()
	l.lookForUse()
	l.mu.Lock()
	t := session.Times{
		Made: l.since, Received: l.m.at(l.lastReceived.Load()), Used: l.m.at(l.lastUsed.Load()),
		Ready: l.isOpen, Holding: l.holding.Load(),
	}
	l.mu.Unlock()
	if l.asked != 0 {
		t.Asked = l.m.at(l.asked)
	}
	limits := session.Limits{
		Idle: max(0, cfg.IdleTimeout), Keepalive: max(0, cfg.KeepaliveInterval), Silence: max(0, cfg.KeepaliveTimeout),
	}
	if l.incoming {
		// A stream bounds its own handshake, to the byte; dialing is bounded by
		// the dialer.
		limits.Ready = cfg.ConnectTimeout + cfg.ConnectTimeout/4
	}
	switch limits.At(now, t) {
	case session.TooSlow:
		l.fail("handshake", fmt.Errorf("%w: no end of the handshake after %v", ErrTimeout, cfg.ConnectTimeout))
	case session.Idle:
		l.fail("idle", fmt.Errorf("%w: nothing but keepalives for %v", ErrTimeout, cfg.IdleTimeout))
	case session.Silent:
		l.fail("keepalive", fmt.Errorf("%w: no sign of life for %v", ErrTimeout, cfg.KeepaliveTimeout))
	case session.Ask:
		l.asked = int64(now.Sub(l.m.started))
		if c := l.owner.Load(); c != nil {
			c.sendControl(entry{kind: entryKeepalive, since: now})
		}
	}
	if c := l.owner.Load(); c != nil && t.Ready && now.Sub(t.Used) > restAfter {
		c.rest(l)
	}
	if t.Holding {
		l.touch(true) // it is we who do not listen
	}
}
