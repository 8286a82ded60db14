package conn

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/argonaut-rdma/argonaut/conn/internal/wire"
	"github.com/argonaut-rdma/argonaut/verbs"
)

// Dial connects to the endpoint listening on addr, "host:port". It blocks until
// the peer has accepted, at most for HandshakeTimeout, and, when it fails, until
// what it has made is given back, for a moment at most: a device that takes long
// for that goes on behind it. Shutdown ends it. Errors: *RefusedError, ErrRefused,
// ErrProtocol (the peer is no endpoint of ours, or of no common version), ErrLimit
// (Config.RecvBuffers), ErrClosed, ctx's error.
func (e *Endpoint) Dial(ctx context.Context, addr string) (*Conn, error) {
	return e.DialUser(ctx, addr, nil)
}

// DialUser is Dial with Conn.SetUser(user) before the first callback can run.
func (e *Endpoint) DialUser(ctx context.Context, addr string, user any) (*Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, e.cfg.HandshakeTimeout)
	defer cancel()
	c, err := e.join(addr, true, cancel)
	if err != nil {
		return nil, err
	}
	if user != nil {
		c.SetUser(user)
	}
	err = c.dial(ctx, addr)
	close(c.setUp)
	if err == nil {
		err = c.handOut()
	}
	if err != nil {
		if closed := c.Err(); closed != nil {
			err = closed // cut by Shutdown or the peer: that is the reason
		}
		c.fail(err)
		t := time.NewTimer(min(closeGrace, e.cfg.DrainTimeout))
		defer t.Stop()
		select {
		case <-c.done:
		case <-t.C:
		}
		return nil, err
	}
	e.stats.dialed.Add(1)
	c.note(slog.LevelDebug, "connection made", "qpn", c.qp.QPN())
	c.mu.Lock()
	c.open = true
	c.pump() // the acceptor waits for our first frame
	c.mu.Unlock()
	return c, nil
}

func (c *Conn) dial(ctx context.Context, addr string) error {
	e := c.e
	if err := c.connect(ctx); err != nil {
		return err
	}
	epoch := newEpoch()
	reply, err := c.qp.Connect(ctx, addr, e.param(e.hello(epoch)))
	if err != nil {
		var rej *verbs.RejectError
		if errors.As(err, &rej) {
			if r, ok := wire.ParseRefusal(rej.PrivateData); ok {
				return &RefusedError{Remote: addr, Reason: r.String()}
			}
			if len(rej.PrivateData) == 0 { // it has given the request up, in the meantime or because it is closing
				return &RefusedError{Remote: addr, Reason: "no reason given"}
			}
		}
		return err
	}
	h, err := wire.ParseHello(reply.PrivateData)
	if err != nil {
		return errors.Join(ErrProtocol, err)
	}
	if h.Epoch != epoch {
		return c.protocol("epoch 0x%x in answer to 0x%x", h.Epoch, epoch)
	}
	c.mu.Lock()
	c.agree(h)
	c.mu.Unlock()
	local := netAddr(c.qp.LocalAddr())
	c.local.Store(&local)
	return nil
}
