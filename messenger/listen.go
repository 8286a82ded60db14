package messenger

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"time"

	"github.com/argonaut-rdma/argonaut/messenger/internal/msgr2"
)

// Bind listens on addrs, each with port 0 for any port. It may be called more
// than once. When one address fails, the streams bound by this call are closed
// again; RDMA endpoints stop listening only with the messenger. ctx bounds the
// call. Errors: ErrInvalid (a scheme without transport), those of the network.
func (m *Messenger) Bind(ctx context.Context, addrs AddrVec) error {
	return m.bind(ctx, addrs, nil)
}

// bind is Bind, with ports other than those of avoid.
func (m *Messenger) bind(ctx context.Context, addrs, avoid AddrVec) (err error) {
	var listeners []net.Listener
	var bound AddrVec
	var unwanted []net.Listener
	defer func() {
		for _, ln := range unwanted {
			ln.Close()
		}
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
			for {
				ln, err := m.cfg.ListenStream(ctx, a.HostPort())
				if err != nil {
					return fmt.Errorf("messenger: listen on %s: %w", a.URL, err)
				}
				listeners = append(listeners, ln)
				got := hostAddr(SchemeTCP, ln.Addr(), m.nonce.Load())
				if !avoid.has(got.URL) {
					bound = append(bound, got)
					break
				}
				unwanted = append(unwanted, ln) // held until another port is found
			}
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
			bound = append(bound, hostAddr(a.Scheme(), got, m.nonce.Load()))
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closing.Load() {
		return errShutDown
	}
	listeners = slices.DeleteFunc(listeners, func(ln net.Listener) bool { return slices.Contains(unwanted, ln) })
	m.asked = append(m.asked, addrs...)
	m.bound = append(m.bound, bound...)
	m.tell()
	m.listeners = append(m.listeners, listeners...)
	for _, ln := range listeners {
		m.wg.Add(1)
		go m.accept(ln) // ends when the listener is closed
	}
	listeners = nil
	return nil
}

// Rebind makes the messenger another incarnation of its entity, with a new nonce
// and other ports on the hosts that it was bound to: peers that know the old one
// do not take this one for it. Every connection is marked down. (RDMA endpoints
// go on listening on their old ports, too, and refuse who means the old
// incarnation.) After an error nothing is bound, and Bind may be called.
func (m *Messenger) Rebind(ctx context.Context) error {
	m.mu.Lock()
	if m.closing.Load() {
		m.mu.Unlock()
		return errShutDown
	}
	listeners, asked, avoid := m.listeners, m.asked, m.bound
	m.listeners, m.asked, m.bound = nil, nil, nil
	m.tell()
	nonce := m.nonce.Load()
	for m.nonce.Load() == nonce {
		m.nonce.Store(uint32(random64()) | 1)
	}
	m.mu.Unlock()
	for _, ln := range listeners {
		ln.Close()
	}
	m.MarkDownAll()
	anew := make(AddrVec, len(asked))
	for i, a := range asked {
		host, _, err := net.SplitHostPort(a.HostPort())
		if err != nil {
			return fmt.Errorf("%w: %w", ErrInvalid, err)
		}
		anew[i].URL = a.Scheme() + "://" + net.JoinHostPort(host, "0")
	}
	return m.bind(ctx, anew, avoid)
}

func (v AddrVec) has(url string) bool {
	return slices.ContainsFunc(v, func(a EntityAddr) bool { return a.URL == url })
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
