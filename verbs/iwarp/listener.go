package iwarp

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/argonaut-rdma/argonaut/verbs/driver"
)

// listener reads MPA requests and queues the valid ones. Its goroutines are the accept loop and one per handshake; all
// are ended by Close, which waits for them.
type listener struct {
	dev   *Device
	nl    net.Listener
	slots chan struct{} // a token per handshake or queued request
	queue chan *connRequest
	done  chan struct{} // closed by Close
	wg    sync.WaitGroup

	mu         sync.Mutex
	closed     bool
	shakes     map[net.Conn]struct{} // handshakes under way
	logged     time.Time             // when a refusal was logged last
	suppressed int                   // refusals since that are not in the log
}

// refusalPause is the least time between two refusals that are logged: strangers decide how many there are.
const refusalPause = time.Second

var _ driver.Listener = (*listener)(nil)

// Listen accepts connection requests on addr, "host:port".
func (d *Device) Listen(ctx context.Context, addr string) (driver.Listener, error) {
	if _, _, err := net.SplitHostPort(addr); err != nil { // package net takes "" for any
		return nil, fmt.Errorf("iwarp: listen on %q: %w: %w", addr, driver.ErrInvalid, err)
	}
	nl, err := d.cfg.Listen(ctx, addr)
	if err != nil {
		return nil, fmt.Errorf("iwarp: listen %s: %w", addr, err)
	}
	l := &listener{dev: d, nl: nl, slots: make(chan struct{}, d.cfg.Backlog), queue: make(chan *connRequest, d.cfg.Backlog),
		done: make(chan struct{}), shakes: make(map[net.Conn]struct{})}
	d.nListener.Add(1)
	l.wg.Go(l.acceptLoop)
	return l, nil
}

func (l *listener) Addr() string { return l.nl.Addr().String() }

// acceptLoop waits for a slot before it accepts, so that what is too much waits in the network.
func (l *listener) acceptLoop() {
	for {
		select {
		case l.slots <- struct{}{}:
		case <-l.done:
			return
		}
		c, err := l.nl.Accept()
		if err != nil {
			<-l.slots
			if l.isClosed() || errors.Is(err, net.ErrClosed) {
				return
			}
			l.dev.log.Warn("iwarp: accept", slog.Any("error", err))
			t := time.NewTimer(50 * time.Millisecond) // descriptors may be short; do not spin
			select {
			case <-t.C:
			case <-l.done:
				t.Stop()
				return
			}
			continue
		}
		l.mu.Lock()
		if l.closed {
			l.mu.Unlock()
			_ = c.Close()
			return
		}
		l.shakes[c] = struct{}{}
		l.wg.Go(func() { l.shake(c) })
		l.mu.Unlock()
	}
}

func (l *listener) isClosed() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.closed
}

// shake reads one request. A peer that is silent, or speaks something else, costs a slot until the deadline.
func (l *listener) shake(c net.Conn) {
	_ = c.SetDeadline(time.Now().Add(l.dev.cfg.HandshakeTimeout))
	peer, err := l.dev.readHello(c, false)
	if err == nil {
		err = c.SetDeadline(time.Time{})
	}
	l.mu.Lock()
	delete(l.shakes, c)
	if err == nil && !l.closed {
		r := &connRequest{dev: l.dev, l: l, c: c, peer: peer, answer: make(chan struct{}, 1)}
		r.answer <- struct{}{}
		l.dev.nRequest.Add(1)
		l.queue <- r // has room: there are as many places as slots
		l.mu.Unlock()
		return
	}
	l.mu.Unlock()
	if err != nil {
		l.refused(c, err)
	}
	_ = c.Close()
	<-l.slots
}

// refused counts a peer that is none, and says why.
func (l *listener) refused(c net.Conn, err error) {
	l.dev.stats.HandshakeFailures.Add(1)
	l.mu.Lock()
	now := time.Now()
	if l.closed || now.Sub(l.logged) < refusalPause {
		l.suppressed++
		l.mu.Unlock()
		return
	}
	suppressed := l.suppressed
	l.logged, l.suppressed = now, 0
	l.mu.Unlock()
	l.dev.log.Info("iwarp: refused a connection", slog.String("remote", c.RemoteAddr().String()), slog.Any("error", err),
		slog.Int("suppressed", suppressed))
}

// Accept waits for the next valid request.
func (l *listener) Accept(ctx context.Context) (driver.ConnRequest, error) {
	select {
	case <-l.done:
		return nil, driver.ErrClosed
	default:
	}
	select {
	case r := <-l.queue:
		<-l.slots
		return r, nil
	case <-l.done:
		return nil, driver.ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Close ends the handshakes under way and rejects the requests that nobody has accepted.
func (l *listener) Close() error {
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return nil
	}
	l.closed = true
	for c := range l.shakes {
		_ = c.Close()
	}
	close(l.done)
	l.mu.Unlock()
	err := l.nl.Close()
	l.wg.Wait()
	for {
		select {
		case r := <-l.queue:
			_ = r.Reject(nil)
			continue
		default:
		}
		break
	}
	l.dev.nListener.Add(-1)
	if err != nil {
		return fmt.Errorf("iwarp: close listener: %w", err)
	}
	return nil
}
