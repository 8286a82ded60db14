package messenger

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/argonaut-rdma/argonaut/messenger/internal/msgr2"
)

// errRefused marks that nobody listens at the peer's address.
type errRefused struct{ err error }

func (e errRefused) Error() string { return e.err.Error() }
func (e errRefused) Unwrap() error { return e.err }

// ConnectTo returns the connection to the peer of type t at addrs: one that
// exists, or a new one. It does not block; messages may be sent at once and wait
// for the connection to be ready. The addresses are tried in order, as far as
// their transports exist here. Errors: ErrClosed, ErrInvalid, ErrNotSupported (a
// lossless policy).
func (m *Messenger) ConnectTo(t EntityType, addrs AddrVec) (*Connection, error) {
	p := m.policyFor(t, false)
	if !p.Lossy {
		return nil, fmt.Errorf("%w: lossless sessions are not built yet", ErrNotSupported)
	}
	var usable AddrVec
	for _, a := range addrs {
		if _, err := ParseAddr(a.URL); err != nil {
			return nil, err
		}
		if a.Scheme() == SchemeTCP || m.endpoints[a.Scheme()] != nil {
			usable = append(usable, a)
		}
	}
	if len(usable) == 0 {
		return nil, fmt.Errorf("%w: no transport for any of %v", ErrInvalid, addrs)
	}
	var key strings.Builder
	fmt.Fprintf(&key, "to %v %v", t, usable)

	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closing.Load() {
		return nil, ErrClosed
	}
	if c := m.outgoing[key.String()]; c != nil {
		return c, nil
	}
	c := m.newConnection(t, p)
	c.key, c.dial = key.String(), usable
	m.outgoing[c.key] = c
	m.connections[c] = struct{}{}
	m.wg.Add(1)
	go m.connect(c) // ends with the connection, on RDMA once it is open
	return c, nil
}

// connect tries the addresses of c until it is open or closed, and reads its
// stream.
func (m *Messenger) connect(c *Connection) {
	defer m.wg.Done()
	pause := m.cfg.BackoffMin
	for {
		for _, a := range c.dial {
			err := m.connectOnce(c, a)
			if err == nil || c.ctx.Err() != nil {
				return
			}
			m.log.Debug("connecting failed", "peer", a.URL, "err", err)
			c.attemptFailed(err)
			if errors.As(err, new(errRefused)) {
				c.strand.push(event{kind: eventRefused})
			}
			if permanent(err) {
				c.mu.Lock()
				if c.state == StateClosed {
					c.mu.Unlock()
					return
				}
				c.close(err)
				m.n.faults.Add(1)
				c.strand.push(event{kind: eventReset})
				return
			}
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-c.ctx.Done():
			timer.Stop()
			return
		}
		pause = min(2*pause, m.cfg.BackoffMax)
	}
}

// permanent reports whether trying again would fail the same way: what is there
// does not want us, or is not what we want.
func permanent(err error) bool {
	return errors.Is(err, ErrFeatures) || errors.Is(err, ErrAuth) ||
		(errors.Is(err, ErrProtocol) && !errors.Is(err, msgr2.ErrChecksum))
}

// connectOnce makes one attempt. On a stream nil means that the connection was
// open and has ended.
func (m *Messenger) connectOnce(c *Connection, a EntityAddr) error {
	l := m.newLink(a.Scheme(), a.HostPort(), false)
	if !m.admitLink(l) {
		return ErrClosed
	}
	stop := context.AfterFunc(c.ctx, func() { l.drop() })
	defer stop()
	var err error
	if ep := m.endpoints[a.Scheme()]; ep != nil {
		err = m.dialRDMA(c.ctx, c, l, ep, a)
	} else {
		err = m.dialStream(c, l, a)
	}
	if err != nil {
		refused := errors.As(err, new(errRefused))
		l.fail("connect", frameError(err))
		if err = l.failure(); refused {
			err = errRefused{err}
		}
		return err
	}
	return nil
}

func (m *Messenger) dialStream(c *Connection, l *link, a EntityAddr) error {
	dial, cancelDial := context.WithTimeout(c.ctx, m.cfg.ConnectTimeout)
	defer cancelDial()
	nc, err := m.cfg.DialStream(dial, a.HostPort())
	if err != nil {
		if isRefused(err) {
			return errRefused{err}
		}
		return err
	}
	t := l.newStream(nc)
	ctx, cancel := context.WithCancel(context.Background())
	if !l.attach(t, cancel) {
		return l.failure()
	}
	l.owner.Store(c)
	// The address is a name perhaps; the peer knows itself by number.
	target := seenAddr(nc.RemoteAddr())
	target.Nonce = a.Nonce
	seen := seenAddr(nc.RemoteAddr())
	if err := l.handshakeStream(t, l.params(c, seen, target)); err != nil {
		return err
	}
	l.readStream(ctx, t)
	return nil
}
