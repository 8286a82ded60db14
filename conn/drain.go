package conn

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/argonaut-rdma/argonaut/verbs"
)

// Shutdown ends the endpoint gracefully: it stops listening and dialing, refuses
// new sends, flushes send queues, says goodbye to the peers and waits until they have
// closed, then drains and destroys everything down to the protection domain, in
// that order. When ctx ends, the rest is done at once, without waiting for
// peers: a multiple of Config.DrainTimeout at most. It blocks until no callback
// runs any more and all goroutines have ended, and then says what could not be
// released; call it again to try once more. It must not be called from a
// callback.
//
// A device that does not return from the destructor of a listener, completion
// queue, channel, shared receive queue or protection domain is waited for in
// spite of ctx: for verbs.Config.CloseTimeout (5 s), for one such object after
// the other. The error then matches *verbs.StuckError.
//
// An error that names connections (ErrNotDestroyed) means that the device has not
// let go of their queue pairs, or that a callback does not return: siw, for one,
// lets go only when the handshake of a connection that was being made has timed
// out, after 10 s. A goroutine of the endpoint then does
// the rest as soon as the last of them is gone, and ends with that; until then
// OnFault may still be called. A further call waits for the same.
func (e *Endpoint) Shutdown(ctx context.Context) error {
	e.shutMu.Lock()
	defer e.shutMu.Unlock()
	e.stopFinisher()
	if e.closed {
		return nil
	}

	e.mu.Lock()
	e.closing = true
	conns := make([]*Conn, 0, len(e.conns))
	for c := range e.conns {
		conns = append(conns, c)
	}
	e.mu.Unlock()

	errs := e.stopListening()
	e.log.Info("shutdown: flush, say goodbye, drain", "connections", len(conns))
	var wg sync.WaitGroup
	for _, c := range conns {
		wg.Go(func() { c.goodbye(ctx) })
	}
	wg.Wait()
	e.cancel() // handshakes that are still under way
	if err := e.awaitConns(ctx); err != nil {
		e.finishLater()
		return errors.Join(append(errs, err)...)
	}
	return e.finish(ctx, errs)
}

// stopListening closes the listeners, again if need be.
func (e *Endpoint) stopListening() (errs []error) {
	e.mu.Lock()
	listeners := e.listeners
	e.mu.Unlock()
	e.log.Info("shutdown: stop listening", "listeners", len(listeners))
	for _, l := range listeners {
		if err := l.Close(); err != nil {
			errs = append(errs, err)
		}
	}
	return errs
}

// finish is the rest of Shutdown, when no connection is left. errs is what has gone
// wrong before. With shutMu, or as the finisher.
func (e *Endpoint) finish(ctx context.Context, errs []error) error {
	e.wg.Wait()

	e.log.Info("shutdown: stop pollers", "pollers", len(e.pollers))
	e.stopSuppliers()
	e.supplying.Wait()
	for _, p := range e.pollers {
		p.stop()
	}
	e.log.Info("shutdown: destroy queues, detach the arena", "lanes", len(e.lanes))
	errs = append(errs, e.destroy(ctx)...)
	if err := errors.Join(errs...); err != nil {
		return err
	}
	e.closed = true
	e.log.Info("shutdown: done")
	return nil
}

// finisher is a goroutine that finishes what Shutdown has left. While there is one,
// Endpoint.closed is its own.
type finisher struct {
	stop chan struct{} // closed when Shutdown is called again
	done chan struct{} // closed when it has ended
}

// finishLater starts the finisher: it waits until the last connection is gone, and
// ends when it has finished, or when Shutdown is called again. With shutMu.
func (e *Endpoint) finishLater() {
	f := &finisher{stop: make(chan struct{}), done: make(chan struct{})}
	e.finisher = f
	idle := e.whenIdle()
	go func() {
		defer close(f.done)
		select {
		case <-idle:
		case <-f.stop:
			return
		}
		if err := e.finish(context.Background(), e.stopListening()); err != nil {
			e.log.Error("shutdown: not all was released: call it again", "err", err)
		}
	}()
}

// stopFinisher ends the finisher, if there is one, and waits for that. With shutMu.
func (e *Endpoint) stopFinisher() {
	if f := e.finisher; f != nil {
		e.finisher = nil
		close(f.stop)
		<-f.done
	}
}

// whenIdle is closed when there is no connection.
func (e *Endpoint) whenIdle() <-chan struct{} {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.conns) == 0 {
		idle := make(chan struct{})
		close(idle)
		return idle
	}
	if e.idle == nil {
		e.idle = make(chan struct{})
	}
	return e.idle
}

// Close is Shutdown without waiting for peers. A further Close returns nil.
func (e *Endpoint) Close() error {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return e.Shutdown(ctx)
}

// goodbye is Conn.Shutdown that waits for a stuck device no longer than
// awaitConns does. Nothing is waited for where Dial has not returned the Conn.
func (c *Conn) goodbye(ctx context.Context) {
	if ctx.Err() == nil && !c.dialing() {
		c.startShutdown()
		select {
		case <-c.done:
			return
		case <-ctx.Done():
			c.note(slog.LevelWarn, "shutdown", "err", c.unfinished(ctx.Err()))
		}
	}
	c.abort()
}

// dialing reports whether c is a dialer's that nobody has got yet.
func (c *Conn) dialing() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.dialer && !c.handed
}

// cutTime is how long a connection that has been cut takes to be gone, at most, on
// devices that work.
func (e *Endpoint) cutTime() time.Duration { return 4 * e.cfg.DrainTimeout }

// stuck is the error about a connection that has taken longer than that.
func (c *Conn) stuck() error { return fmt.Errorf("connection to %s: %w", c.remote, ErrNotDestroyed) }

// awaitConns waits until every connection is gone, for as long as devices that
// work take.
func (e *Endpoint) awaitConns(ctx context.Context) error {
	idle := e.whenIdle()
	e.mu.Lock()
	for c := range e.conns { // those that came meanwhile, too
		c.abort()
	}
	e.mu.Unlock()
	select {
	case <-idle:
		return nil
	case <-ctx.Done():
	}
	t := time.NewTimer(e.cutTime())
	defer t.Stop()
	select {
	case <-idle:
		return nil
	case <-t.C:
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	var errs []error
	for c := range e.conns {
		errs = append(errs, c.stuck())
	}
	return errors.Join(errs...)
}

// destroy takes down what is left when no connection and no poller is. Each
// step can be done again.
func (e *Endpoint) destroy(ctx context.Context) (errs []error) {
	note := func(err error) {
		if err != nil {
			errs = append(errs, err)
		}
	}
	for _, l := range e.lanes {
		note(l.closeCQ())
	}
	for _, p := range e.pollers {
		note(p.ch.Close())
	}
	for _, l := range e.lanes {
		note(l.closeSRQ())
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 4*e.cfg.DrainTimeout)
	defer cancel()
	note(e.arena.Detach(ctx, e.pd))
	if x := e.cfg.Exposed; x != nil {
		note(x.Detach(ctx, e.pd))
	}
	e.mu.Lock()
	shared := e.shared
	e.mu.Unlock()
	for _, c := range shared {
		note(c.Detach(ctx, e.pd))
	}
	note(e.pd.Close())
	return errs
}

// closeCQ destroys the completion queue of a lane without connections, which no
// poller looks at. It can be called again.
func (l *lane) closeCQ() error {
	for _, wrid := range l.leftover() {
		l.rq.take(wrid).Release()
	}
	return l.cq.Close()
}

// closeSRQ destroys the shared receive queue, if there is one. It can be called
// again.
func (l *lane) closeSRQ() error {
	if l.srq == nil {
		return nil
	}
	orphans, err := l.srq.Close()
	l.p.e.stats.orphans.Add(uint64(len(orphans)))
	if err == nil {
		l.rq.releaseAll()
	}
	return err
}

// leftover polls what connections that are gone have left in the queue: the
// receives of an SRQ.
func (l *lane) leftover() (recvs []uint64) {
	var wcs [pollBatch]verbs.WC
	for {
		n, _ := l.cq.Poll(wcs[:])
		if n == 0 {
			return recvs
		}
		for _, wc := range wcs[:n] {
			if wc.WRID&wrKind == wrRecv && l.rq != nil {
				recvs = append(recvs, wc.WRID)
			}
		}
	}
}
