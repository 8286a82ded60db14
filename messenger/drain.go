package messenger

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/argonaut-rdma/argonaut/messenger/internal/session"
)

// Drain readies the messenger for the restart of its process. It takes no new
// sessions (their peers learn ErrDraining and may go to another node), answers
// new calls of peers of this project with ErrDraining (not those of the
// Loopback), and waits until the calls that are being served have been answered,
// no handler runs, and what is queued has been sent, and acknowledged where the
// session is lossless, also to peers that are away. Sessions that
// exist go on, and may reconnect; messages that are no calls are dispatched as
// ever; sending is up to the caller. When ctx ends before, the error says what is
// left, and the messenger goes on draining. Shutdown, or Resume, which has a
// Drain that waits return ErrResumed, comes next. Draining once more waits once
// more.
func (m *Messenger) Drain(ctx context.Context) error {
	m.mu.Lock()
	m.draining.Store(true)
	if m.drains == nil {
		m.drains = newDeadline()
	}
	wait := m.drains.and(ctx)
	connections := []*Connection{m.loop}
	for c := range m.connections {
		connections = append(connections, c)
	}
	m.mu.Unlock()
	defer wait.end(context.Canceled)
	ctx = wait
	var errs []error
	if err := m.finishHandlers(ctx, connections); err != nil {
		errs = append(errs, err)
	}
	for _, c := range connections {
		if err := c.flush(ctx); err != nil {
			errs = append(errs, fmt.Errorf("%v: queue not sent: %w", c.peerName(), err))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("messenger: drain: %w", err)
	}
	return nil
}

// Resume ends what Drain has begun: new sessions and calls are taken again. A
// Drain that still waits returns ErrResumed.
func (m *Messenger) Resume() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.draining.Store(false)
	if m.drains != nil {
		m.drains.end(ErrResumed)
		m.drains = nil
	}
}

// Health is what a probe asks.
type Health struct {
	// Live: the messenger works. false is a reason to restart the process.
	Live bool
	// Ready: it takes new sessions and calls. false is a reason to send peers
	// elsewhere: before Bind, while draining or shutting down, when the devices of
	// all that was bound are lost, or not Live.
	Ready bool
	// Problems says why not, and what else an operator should know, such as
	// peers that can not be reached, and messages that handlers do not release.
	Problems []string
}

// stuckAfter is for how long nothing moves that always should.
const stuckAfter = 30 * time.Second

// Health returns the messenger's. It does not block for long: it locks one
// connection at a time.
func (m *Messenger) Health() Health {
	h := Health{Live: true, Ready: true}
	unready := func(format string, a ...any) {
		h.Ready = false
		h.Problems = append(h.Problems, fmt.Sprintf(format, a...))
	}
	now := time.Now()
	m.mu.Lock()
	bound := len(m.bound) > 0
	all := make([]*Connection, 0, len(m.connections))
	for c := range m.connections {
		all = append(all, c)
	}
	bounds := map[string]*throttle{"Config.DispatchBytes": m.dispatchB}
	for k, tt := range m.perType {
		bounds[fmt.Sprintf("Policy.MaxMessages (%d) of %v", k.messages, k.t)] = tt.messages
		bounds[fmt.Sprintf("Policy.MaxBytes (%d) of %v", k.bytes, k.t)] = tt.bytes
	}
	m.mu.Unlock()
	switch {
	case m.closing.Load():
		unready("shutting down")
	case m.draining.Load():
		unready("draining")
	case !bound:
		unready("not bound")
	}
	h.Problems = append(h.Problems, m.lostDevices()...)
	if since := now.Sub(m.started) - time.Duration(m.ticked.Load()); since > stuckAfter && !m.closing.Load() {
		h.Live = false
		unready("the ticker has not run for %v", since.Round(time.Second))
	}
	if waits := m.ex.stuck(now); waits > stuckAfter {
		h.Live = false
		unready("no handler has returned for %v, and messages wait for one of Config.Workers", waits.Round(time.Second))
	}
	for name, t := range bounds {
		if _, waits, taken := t.waits(now); waits > stuckAfter {
			h.Problems = append(h.Problems, fmt.Sprintf("%s is used up by messages that are not released (%d of it), and peers wait for %v: "+
				"a handler that keeps messages, or forgets to release them?", name, taken, waits.Round(time.Second)))
		}
	}
	for _, c := range all {
		c.mu.Lock()
		gone := now.Sub(c.parted)
		if c.link == nil && c.session.State == session.Connecting && gone > stuckAfter {
			h.Problems = append(h.Problems, fmt.Sprintf("%v can not be reached for %v: %v", c.peer, gone.Round(time.Second), c.err))
		}
		c.mu.Unlock()
	}
	return h
}
