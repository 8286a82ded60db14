package conn

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"time"

	"github.com/argonaut-rdma/argonaut/conn/internal/wire"
	"github.com/argonaut-rdma/argonaut/verbs"
)

// Listen accepts connections on addr, "host:port" with port 0 for any, until
// Shutdown or Close, or until the device is lost, which Lost tells. It may be called more than once. ctx bounds the call.
func (e *Endpoint) Listen(ctx context.Context, addr string) error {
	_, err := e.ListenOn(ctx, addr)
	return err
}

// ListenOn is Listen that returns the address, with the port that was bound.
func (e *Endpoint) ListenOn(ctx context.Context, addr string) (net.Addr, error) {
	l, err := e.dev.Listen(ctx, addr)
	if err != nil {
		return nil, err
	}
	e.mu.Lock()
	if e.closing {
		e.mu.Unlock()
		return nil, errors.Join(ErrClosed, l.Close())
	}
	e.listeners = append(e.listeners, l)
	e.wg.Add(1)
	e.mu.Unlock()
	go e.serve(l)
	return netAddr(l.Addr()), nil
}

// Unlisten stops listening on addr, one of Addrs: who dials it from then on is
// refused. Connections, and requests that are being answered, live on. Errors:
// ErrInvalid (nobody listens there), the device's, and then it may be called again.
func (e *Endpoint) Unlisten(addr net.Addr) error {
	there := func(l *verbs.Listener) bool { return l.Addr() == addr.String() }
	e.mu.Lock()
	i := slices.IndexFunc(e.listeners, there)
	if i < 0 {
		e.mu.Unlock()
		return fmt.Errorf("%w: nobody listens on %v", verbs.ErrInvalid, addr)
	}
	l := e.listeners[i]
	e.mu.Unlock()
	if err := l.Close(); err != nil {
		return err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.listeners = slices.DeleteFunc(slices.Clone(e.listeners), func(o *verbs.Listener) bool { return o == l })
	return nil
}

// serve accepts connection requests; Shutdown or Unlisten ends it.
func (e *Endpoint) serve(l *verbs.Listener) {
	defer e.wg.Done()
	for {
		r, err := l.Accept(e.life)
		if err != nil {
			if e.life.Err() == nil && !errors.Is(err, ErrClosed) {
				e.log.Error("listener ended", "addr", l.Addr(), "err", err)
				if err := l.Close(); err != nil { // who dials is to be refused at once; Shutdown closes it again
					e.log.Error("closing a listener", "addr", l.Addr(), "err", err)
				}
			}
			return
		}
		e.wg.Add(1)
		go e.answer(r)
	}
}

// answer decides on a connection request. Its goroutine ends within
// HandshakeTimeout, or when OnAccept returns.
func (e *Endpoint) answer(r *verbs.ConnRequest) {
	defer e.wg.Done()
	h, err := wire.ParseHello(r.PrivateData())
	if err == nil && h.Credits < h.Most {
		err = errors.New("a dialer gives all credits at once")
	}
	if err != nil {
		reason := wire.ReasonMalformed
		var v *wire.VersionError
		if errors.As(err, &v) {
			reason = wire.ReasonVersion
		}
		e.refuse(r, reason, err)
		return
	}
	ctx, cancel := context.WithTimeout(e.life, e.cfg.HandshakeTimeout)
	defer cancel()
	c, err := e.join(r.RemoteAddr(), false, cancel)
	if err != nil {
		reason := wire.ReasonBusy
		if errors.Is(err, ErrClosed) {
			reason = wire.ReasonClosing
		}
		e.refuse(r, reason, err)
		return
	}
	local := netAddr(r.LocalAddr())
	c.local.Store(&local)
	if n := e.cfg.Credits - e.cfg.StagedCredits; n > 0 {
		c.staged.Store(true)
		c.used.Store(int32(n))
	}
	// The endpoint may have been shut down since join: then the poller looks at
	// c already. An end that comes from now on is told once c.setUp is closed.
	c.mu.Lock()
	c.agree(h)
	c.handed = true
	c.mu.Unlock()
	if e.cfg.OnAccept != nil && !e.cfg.OnAccept(c) {
		e.refuse(r, wire.ReasonDenied, errors.New("OnAccept refused"))
		c.mu.Lock()
		c.handed = false
		c.mu.Unlock()
		c.fail(ErrClosed)
		close(c.setUp)
		return
	}
	err = c.accepting(ctx, r, h)
	close(c.setUp)
	if err != nil {
		c.fail(c.fault(FaultPath, err))
		return
	}
	e.stats.accepted.Add(1)
	c.note(slog.LevelDebug, "connection accepted", "qpn", c.qp.QPN())
	// The first packet may have been faster than this goroutine.
	c.mu.Lock()
	c.ready = true
	c.open = c.spoken
	c.pump()
	c.mu.Unlock()
}

// accepting makes the queue pair for a valid request and accepts it.
func (c *Conn) accepting(ctx context.Context, r *verbs.ConnRequest, h wire.Hello) error {
	e := c.e
	if err := c.connect(ctx); err != nil {
		e.refuse(r, wire.ReasonBusy, err)
		return err
	}
	ours := e.hello(h.Epoch)
	if n := e.cfg.StagedCredits; n < e.cfg.Credits {
		ours.Credits, ours.Most = uint16(n), ours.Credits
	}
	p, asked := e.param(ours), r.Param()
	// The peer has said what it can answer and what it will ask.
	if asked.IRD > 0 {
		p.ORD = min(p.ORD, asked.IRD)
	}
	// From Accept on the first packet may come.
	c.first = time.AfterFunc(e.cfg.HandshakeTimeout, func() { c.fail(c.fault(FaultPeer, errFirstTimeout)) })
	return r.Accept(ctx, c.qp, p)
}

func (e *Endpoint) refuse(r *verbs.ConnRequest, reason wire.Reason, why error) {
	var b [wire.RefusalLen]byte
	wire.PutRefusal(&b, reason)
	e.stats.refused.Add(1)
	e.log.Info("connection refused", "remote", r.RemoteAddr(), "reason", reason, "err", why)
	if err := r.Reject(b[:]); err != nil {
		e.log.Info("refusing a connection", "remote", r.RemoteAddr(), "err", err)
	}
}
