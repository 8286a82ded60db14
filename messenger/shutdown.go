package messenger

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/argonaut-rdma/argonaut/messenger/internal/session"
)

// grace is how long goroutines and handlers get to end by themselves when a
// shutdown's context has ended: everything that they could wait for is closed.
const grace = time.Second

// Shutdown ends the messenger. It stops listening, refuses new sends and calls,
// and takes no new messages but replies; lets the handlers under way finish, and
// calls that are being served be answered; flushes what is queued, until the
// peers of lossless sessions have acknowledged it; closes every connection
// (HandleReset is not called); shuts the transports down, and waits for all
// goroutines. What is received meanwhile is dropped and not acknowledged. A
// lossless session whose peer's address refuses connections, or who would have
// to connect to us, is not waited for.
// When ctx ends, the rest is done without waiting for peers or handlers, whose
// contexts end: no handler begins any more, and what was received and waits for
// one is dropped, also of sessions that have ended. That takes a few multiples of
// conn.Config.DrainTimeout and a few seconds at most, but for destructors that
// conn.Endpoint.Shutdown waits for in spite of ctx. The error names the step that did
// not end in time, and connections whose queue pairs a device, or a handler of
// FastDispatch, holds up (conn.ErrNotDestroyed): they are taken down later.
// Waiting Sends and Calls end with ErrClosed. From within a handler of m, which
// it would wait for, it does nothing and returns ErrInvalid: start a goroutine.
// A second call waits for the first, which ends without waiting as soon as the
// context of either does; its error is about what has not ended.
func (m *Messenger) Shutdown(ctx context.Context) error {
	if m.inHandler() {
		return fmt.Errorf("%w: Shutdown waits for handlers, and was called from one: call it from a goroutine of its own", ErrInvalid)
	}
	if ctx.Err() != nil {
		m.discarding.Store(true)
	}
	m.mu.Lock()
	if d := m.shutting; d != nil {
		m.mu.Unlock()
		select {
		case <-m.shut: // long ago
			return m.endpointsEnd(ctx)
		default:
		}
		defer d.with(ctx)()
		<-m.shut
		return m.unfinished
	}
	end := newDeadline()
	m.shutting = end
	m.closing.Store(true)
	listening := m.listening
	connections := []*Connection{m.loop}
	for c := range m.connections {
		connections = append(connections, c)
	}
	m.mu.Unlock()
	defer close(m.shut)
	defer end.with(ctx)()
	ctx = end
	var errs []error
	step := func(name string, err error) {
		if err != nil {
			errs = append(errs, fmt.Errorf("messenger: shutdown: %s: %w", name, err))
			m.log.Warn("shutdown", "step", name, "err", err)
			return
		}
		m.log.Info("shutdown", "step", name)
	}

	for _, l := range listening {
		if l.ln != nil { // the endpoints see to theirs
			l.ln.Close()
		}
	}
	for _, c := range connections {
		c.refuseSends()
	}
	step("stopped listening, refuse new sends", nil)

	err := m.finishHandlers(ctx, connections)
	if err != nil {
		m.discarding.Store(true)
	}
	step("handlers under way", err)
	for _, c := range connections {
		c.mu.Lock()
		c.mute = true
		c.mu.Unlock()
	}

	// The peers of lossless sessions would keep what they have sent for a
	// session that does not come back.
	for _, c := range connections {
		c.acknowledge()
	}
	err = nil
	for _, c := range connections {
		if e := c.flush(ctx); e != nil {
			err = errors.Join(err, fmt.Errorf("%v: %w", c.peerName(), e))
		}
	}
	step("flushed send queues", err)

	step("closed connections", m.goodbye(ctx))
	for _, c := range connections {
		if !c.loop {
			c.MarkDown()
			continue
		}
		c.mu.Lock()
		c.down = true
		c.close(ErrClosed)
	}
	for _, l := range m.allLinks() {
		l.drop()
	}

	before := len(errs)
	for scheme, ep := range m.endpoints {
		step("transport "+scheme, ep.Shutdown(ctx))
	}
	close(m.stop)
	// Once they have ended nothing is dispatched any more.
	step("goroutines", m.wait(ctx))
	step("handlers", m.ex.close(ctx))
	m.unfinished = errors.Join(errs[before:]...)
	m.forgetHeld()
	return errors.Join(errs...)
}

// endpointsEnd shuts down what a Shutdown before could not: nil if that is nothing.
func (m *Messenger) endpointsEnd(ctx context.Context) error {
	var errs []error
	for _, ep := range m.endpoints {
		errs = append(errs, ep.Shutdown(ctx))
	}
	return errors.Join(errs...)
}

// Close is Shutdown without waiting for peers or queues, and makes a Shutdown
// under way one: from when it is called no handler begins. It returns when all has
// ended. Errors: ErrInvalid as Shutdown, that handlers or goroutines have not ended a
// second after their contexts, and what the transports could not release.
func (m *Messenger) Close() error {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	err := m.Shutdown(ctx)
	if errors.Is(err, context.Canceled) {
		return m.unfinished
	}
	return err
}

func (m *Messenger) allLinks() []*link {
	m.mu.Lock()
	defer m.mu.Unlock()
	all := make([]*link, 0, len(m.links))
	for l := range m.links {
		all = append(all, l)
	}
	return all
}

// goodbye tells the peers, and waits until they have closed or ctx ends.
func (m *Messenger) goodbye(ctx context.Context) error {
	var wg sync.WaitGroup
	links := m.allLinks()
	for _, l := range links {
		t := l.transport()
		if t == nil {
			continue
		}
		l.mu.Lock()
		open := l.isOpen
		l.mu.Unlock()
		if !open {
			continue
		}
		wg.Add(1)
		go func() { // ends with the peer's close, or with ctx
			defer wg.Done()
			t.goodbye(ctx)
			select {
			case <-l.gone:
			case <-ctx.Done():
			}
		}()
	}
	wg.Wait()
	return ctx.Err()
}

// refuseSends makes new sends fail with ErrClosed.
func (c *Connection) refuseSends() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.refuse = true
	c.wakeSenders()
}

// finishHandlers waits until no handler runs or is due, and every call that is
// being served has been released, or ctx ends.
func (m *Messenger) finishHandlers(ctx context.Context, connections []*Connection) error {
	defer m.servedCall() // Drain and Shutdown may both wait
	for {
		if busy := m.ex.wait(ctx.Done()); busy > 0 {
			return fmt.Errorf("%d handlers still running: %w", busy, ctx.Err())
		}
		serving := 0
		for _, c := range connections {
			c.mu.Lock()
			if c.session.State != session.Closed {
				serving += len(c.serving)
			}
			c.mu.Unlock()
		}
		if serving == 0 {
			return nil
		}
		select {
		case <-m.servedOne:
		case <-ctx.Done():
			return fmt.Errorf("%d calls not answered: %w", serving, ctx.Err())
		}
	}
}

// wait waits for all goroutines of ours, which have been told to end.
func (m *Messenger) wait(ctx context.Context) error {
	done := make(chan struct{})
	go func() { // ends with the last of them
		m.wg.Wait()
		close(done)
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
	}
	// Everything has been closed: what is left only has to notice.
	select {
	case <-done:
		return nil
	case <-time.After(grace):
		return fmt.Errorf("goroutines still running: %w", ctx.Err())
	}
}
