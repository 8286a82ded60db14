package messenger

import (
	"fmt"
	"time"
)

// tickInterval is how often deadlines of links are looked at, at most.
const tickInterval = time.Second

// tick ends links whose peers do not keep their deadlines, and sends
// keepalives. It is one goroutine per messenger, which ends with m.stop.
func (m *Messenger) tick() {
	defer m.wg.Done()
	every := min(tickInterval, m.cfg.ConnectTimeout/4)
	for _, d := range []time.Duration{m.cfg.IdleTimeout, m.cfg.KeepaliveInterval, m.cfg.KeepaliveTimeout} {
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
		}
	}
}

func (l *link) tick(now time.Time) {
	cfg := &l.m.cfg
	l.mu.Lock()
	open := l.isOpen
	l.mu.Unlock()
	if !open {
		// A stream bounds its own handshake, to the byte; dialing is bounded by
		// the dialer.
		if l.incoming && now.Sub(l.since) > cfg.ConnectTimeout+cfg.ConnectTimeout/4 {
			l.fail("handshake", fmt.Errorf("%w: no end of the handshake after %v", ErrTimeout, cfg.ConnectTimeout))
		}
		return
	}
	if l.holding.Load() {
		l.touch(true) // it is we who do not listen; but the peer shall hear of us
		l.keepalive(now)
		return
	}
	received := now.Sub(time.Unix(0, l.lastReceived.Load()))
	used := now.Sub(time.Unix(0, l.lastUsed.Load()))
	switch {
	case cfg.IdleTimeout > 0 && used > cfg.IdleTimeout:
		l.fail("idle", fmt.Errorf("%w: nothing but keepalives for %v", ErrTimeout, cfg.IdleTimeout))
	case cfg.KeepaliveInterval > 0 && cfg.KeepaliveTimeout > 0 && received > cfg.KeepaliveTimeout:
		l.fail("keepalive", fmt.Errorf("%w: no sign of life for %v", ErrTimeout, cfg.KeepaliveTimeout))
	case cfg.KeepaliveInterval > 0 && received >= cfg.KeepaliveInterval:
		l.keepalive(now)
	}
}

// keepalive asks the peer for a sign of life, once per interval.
func (l *link) keepalive(now time.Time) {
	every := l.m.cfg.KeepaliveInterval
	if every <= 0 || now.Sub(l.asked) < every {
		return
	}
	l.asked = now
	if c := l.owner.Load(); c != nil {
		c.SendKeepalive()
	}
}
