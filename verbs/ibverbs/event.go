//go:build ibverbs && linux && cgo

package ibverbs

import (
	"context"
	"errors"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/argonaut-rdma/argonaut/verbs/driver"
	"github.com/argonaut-rdma/argonaut/verbs/ibverbs/internal/cverbs"
)

// eventQueue holds the events that NextEvent returns. It has no bound of its own:
// events are few, and package verbs reads them all.
type eventQueue struct {
	ready chan struct{} // has a token when q may be non-empty
	done  chan struct{} // closed by close

	mu     sync.Mutex
	q      []driver.Event
	closed bool
}

func (e *eventQueue) init() {
	e.ready = make(chan struct{}, 1)
	e.done = make(chan struct{})
}

func (e *eventQueue) push(ev driver.Event) {
	e.mu.Lock()
	e.q = append(e.q, ev)
	e.mu.Unlock()
	select {
	case e.ready <- struct{}{}:
	default:
	}
}

func (e *eventQueue) pop() (driver.Event, bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.q) == 0 {
		return driver.Event{}, false
	}
	ev := e.q[0]
	e.q = e.q[1:]
	return ev, true
}

func (e *eventQueue) next(ctx context.Context) (driver.Event, error) {
	for {
		if ev, ok := e.pop(); ok {
			return ev, nil
		}
		select {
		case <-e.ready:
		case <-e.done:
			return driver.Event{}, driver.ErrClosed
		case <-ctx.Done():
			return driver.Event{}, ctx.Err()
		}
	}
}

func (e *eventQueue) close() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.closed {
		e.closed = true
		close(e.done)
	}
}

// asyncLoop runs until Close, which closes the descriptor.
func (d *device) asyncLoop() {
	_ = d.asyFile.wait(func(uintptr) bool {
		for {
			e, err := d.ctx.GetAsyncEvent()
			if errors.Is(err, unix.EINTR) {
				continue
			}
			if errors.Is(err, unix.EAGAIN) {
				return false
			}
			if err != nil {
				d.log.Error("asynchronous events have ended", "device", d.caps.Name, "error", err)
				d.events.push(driver.Event{Type: driver.EventDeviceFatal})
				return true
			}
			ev, ok := d.event(e)
			e.Ack() // only now: until then the object can not be destroyed, and its address not be another's
			if ok {
				d.events.push(ev)
			}
		}
	})
}

// event translates an event. It reports false for an object that is being
// destroyed and for an event that the vocabulary does not have.
func (d *device) event(e cverbs.AsyncEvent) (driver.Event, bool) {
	if e.Type > int(driver.EventGIDChange) { // up to there the values are those of ibv_event_type
		return driver.Event{}, false
	}
	ev := driver.Event{Type: driver.EventType(e.Type), Port: e.Port}
	d.mu.Lock()
	defer d.mu.Unlock()
	if e.QP != (cverbs.QP{}) {
		q, ok := d.qps[e.QP]
		if !ok {
			return driver.Event{}, false
		}
		ev.QP = q
	}
	if e.CQ != (cverbs.CQ{}) {
		q, ok := d.cqs[e.CQ]
		if !ok {
			return driver.Event{}, false
		}
		ev.CQ = q
	}
	if e.SRQ != (cverbs.SRQ{}) {
		s, ok := d.srqs[e.SRQ]
		if !ok {
			return driver.Event{}, false
		}
		ev.SRQ = s
	}
	return ev, true
}
