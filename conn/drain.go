package conn

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"
)

// Shutdown ends the endpoint gracefully: it stops listening, refuses new sends,
// flushes send queues, says goodbye to the peers and waits until they have
// closed, then drains and destroys everything down to the protection domain, in
// that order. When ctx ends, the rest is done at once, without waiting for
// peers: a multiple of Config.DrainTimeout at most. It blocks until no callback
// runs any more and all goroutines have ended, and then says what could not be
// released; call it again to try once more. It must not be called from a
// callback.
func (e *Endpoint) Shutdown(ctx context.Context) error {
	e.shutMu.Lock()
	defer e.shutMu.Unlock()
	if e.closed {
		return nil
	}
	var errs []error

	e.mu.Lock()
	e.closing = true
	listeners := e.listeners
	conns := make([]*Conn, 0, len(e.conns))
	for c := range e.conns {
		conns = append(conns, c)
	}
	e.mu.Unlock()

	e.log.Info("shutdown: stop listening", "listeners", len(listeners))
	for _, l := range listeners {
		if err := l.Close(); err != nil {
			errs = append(errs, err)
		}
	}
	e.log.Info("shutdown: flush, say goodbye, drain", "connections", len(conns))
	var wg sync.WaitGroup
	for _, c := range conns {
		wg.Go(func() { c.goodbye(ctx) })
	}
	wg.Wait()
	e.cancel() // handshakes that are still under way
	if err := e.awaitConns(ctx); err != nil {
		return errors.Join(append(errs, err)...)
	}
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

// Close is Shutdown without waiting for peers. A further Close returns nil.
func (e *Endpoint) Close() error {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return e.Shutdown(ctx)
}

// goodbye is Conn.Shutdown that waits for a stuck device no longer than
// awaitConns does.
func (c *Conn) goodbye(ctx context.Context) {
	if ctx.Err() == nil {
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

// awaitConns waits until every connection is gone, for as long as devices that
// work take.
func (e *Endpoint) awaitConns(ctx context.Context) error {
	e.mu.Lock()
	idle := make(chan struct{})
	if len(e.conns) == 0 {
		close(idle)
	} else {
		e.idle = idle
		for c := range e.conns { // those that came meanwhile, too
			c.abort()
		}
	}
	e.mu.Unlock()
	select {
	case <-idle:
		return nil
	case <-ctx.Done():
	}
	t := time.NewTimer(4 * e.cfg.DrainTimeout)
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
		errs = append(errs, fmt.Errorf("connection to %s: its queue pair is not destroyed", c.remote))
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
		for _, wc := range l.leftover() {
			l.rq.take(wc).Release()
		}
		note(l.cq.Close())
	}
	for _, p := range e.pollers {
		note(p.ch.Close())
	}
	for _, l := range e.lanes {
		if l.srq == nil {
			continue
		}
		orphans, err := l.srq.Close()
		e.stats.orphans.Add(uint64(len(orphans)))
		note(err)
		if err == nil {
			l.rq.releaseAll()
		}
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

// leftover polls what connections that are gone have left in the queue: the
// receives of an SRQ.
func (l *lane) leftover() (recvs []uint64) {
	for {
		n, _ := l.cq.Poll(l.p.wcs[:])
		if n == 0 {
			return recvs
		}
		for _, wc := range l.p.wcs[:n] {
			if wc.WRID&wrKind == wrRecv && l.rq != nil {
				recvs = append(recvs, wc.WRID)
			}
		}
	}
}
