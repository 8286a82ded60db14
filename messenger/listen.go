package messenger

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/argonaut-rdma/argonaut/messenger/internal/msgr2"
)

// Bind listens on addrs, each with port 0 for any port. It may be called more
// than once. When one address fails, the streams bound by this call are closed
// again; RDMA endpoints stop listening only with the messenger. ctx bounds the
// call. Errors: ErrInvalid (a scheme without transport), those of the network.
func (m *Messenger) Bind(ctx context.Context, addrs AddrVec) (err error) {
	var listeners []net.Listener
	var bound AddrVec
	defer func() {
		if err != nil {
			for _, ln := range listeners {
				ln.Close()
			}
		}
	}()
	for _, a := range addrs {
		if _, err := ParseAddr(a.URL); err != nil {
			return err
		}
		if a.Scheme() == SchemeTCP {
			ln, err := m.cfg.ListenStream(ctx, a.HostPort())
			if err != nil {
				return fmt.Errorf("messenger: listen on %s: %w", a.URL, err)
			}
			listeners = append(listeners, ln)
			bound = append(bound, hostAddr(SchemeTCP, ln.Addr(), m.cfg.Nonce))
			continue
		}
		ep := m.endpoints[a.Scheme()]
		if ep == nil {
			return fmt.Errorf("%w: no transport for %s", ErrInvalid, a.URL)
		}
		before := len(ep.Addrs())
		if err := ep.Listen(ctx, a.HostPort()); err != nil {
			return fmt.Errorf("messenger: listen on %s: %w", a.URL, err)
		}
		for _, got := range ep.Addrs()[before:] {
			bound = append(bound, hostAddr(a.Scheme(), got, m.cfg.Nonce))
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closing.Load() {
		return ErrClosed
	}
	m.bound = append(m.bound, bound...)
	m.wire = nil
	for _, a := range m.bound {
		m.wire = append(m.wire, a.toWire())
	}
	m.listeners = append(m.listeners, listeners...)
	for _, ln := range listeners {
		m.wg.Add(1)
		go m.accept(ln) // ends when the listener is closed
	}
	listeners = nil
	return nil
}

// acceptPause is how long accepting pauses after a failure that may pass, such
// as too many open files.
const acceptPause = 50 * time.Millisecond

func (m *Messenger) accept(ln net.Listener) {
	defer m.wg.Done()
	for {
		nc, err := ln.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			m.log.Error("accept failed", "addr", ln.Addr().String(), "err", err)
			select {
			case <-time.After(acceptPause):
			case <-m.stop:
				return
			}
			continue
		}
		l := m.newLink(SchemeTCP, nc.RemoteAddr().String(), true)
		if !m.admitLink(l) {
			nc.Close()
			continue
		}
		m.wg.Add(1)
		go m.serveStream(l, nc) // ends with the link
	}
}

// serveStream runs an incoming link: the handshake, then its reader.
func (m *Messenger) serveStream(l *link, nc net.Conn) {
	defer m.wg.Done()
	t := l.newStream(nc)
	ctx, cancel := context.WithCancel(context.Background())
	if !l.attach(t, cancel) {
		return
	}
	if err := l.handshakeStream(t, l.params(nil, seenAddr(nc.RemoteAddr()), msgr2.Addr{})); err != nil {
		l.fail("handshake", frameError(err))
		return
	}
	l.readStream(ctx, t)
}
