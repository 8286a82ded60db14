package verbs

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/argonaut-rdma/argonaut/verbs/driver"
)

// Event is an asynchronous event. The object that it is about is set; all nil
// means the device, or Port where that is not 0.
type Event struct {
	Type  EventType
	QP    *QP
	CQ    *CQ
	SRQ   *SRQ
	Port  int
	Count int // how many of this kind on this object it stands for, at least 1
}

// eventQueue is the device's event goroutine and the events that nobody has
// read yet. The goroutine is owned by the Device and ends with Close; it depends
// on no reader and on no poller.
type eventQueue struct {
	cancel context.CancelFunc
	done   chan struct{} // closed when the goroutine has ended

	mu        sync.Mutex
	pending   []*Event
	index     map[Event]*Event // by the event with Count 0
	wake      chan struct{}    // closed when pending or ended changes, if somebody waits
	ended     bool
	read      uint64
	coalesced uint64
	dropped   uint64
}

// An event read that fails is tried again a few times, with a pause that is no
// synchronisation; then the device counts as lost.
const (
	eventRetries = 8
	eventPause   = 10 * time.Millisecond
)

func (q *eventQueue) start(d *Device) {
	var ctx context.Context
	ctx, q.cancel = context.WithCancel(context.Background())
	q.done = make(chan struct{})
	q.index = map[Event]*Event{}
	go func() {
		defer close(q.done)
		for failed := 0; ; {
			e, err := d.drv.NextEvent(ctx)
			switch {
			case err == nil:
				failed = 0
				d.handle(e)
				continue
			case ctx.Err() != nil || errors.Is(err, ErrClosed) && d.closing():
				return
			}
			d.log.Error("verbs: reading events failed", "device", d.caps.Name, "err", err)
			if failed++; failed > eventRetries || isLost(err) || errors.Is(err, ErrClosed) {
				d.handle(driver.Event{Type: EventDeviceFatal})
				return
			}
			select {
			case <-time.After(eventPause):
			case <-ctx.Done():
				return
			}
		}
	}()
}

// closing reports whether Close has got as far as the driver. A driver that then
// refuses to close has ended its events all the same only if it is broken.
func (d *Device) closing() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.obj.phase != phaseLive
}

// handle is run by the event goroutine for each event of the driver.
func (d *Device) handle(de driver.Event) {
	e := Event{Type: de.Type, Port: de.Port}
	d.mu.Lock()
	e.QP, e.CQ, e.SRQ = d.byQP[de.QP], d.byCQ[de.CQ], d.bySRQ[de.SRQ]
	known := (de.QP == nil || e.QP != nil) && (de.CQ == nil || e.CQ != nil) && (de.SRQ == nil || e.SRQ != nil)
	var lost []*QP
	if e.Type == EventDeviceFatal && !d.isLost() {
		d.log.Error("verbs: device lost", "device", d.caps.Name)
		d.lose() // with mu: a QP that is linked from now on finds out by itself
		for _, q := range d.byQP {
			lost = append(lost, q)
		}
	}
	var onCQ []*QP
	if known && e.Type == EventCQErr && e.CQ != nil {
		e.CQ.overrun = true
		d.total.CQOverruns++
		for _, q := range d.byQP {
			if q.sendCQ == e.CQ || q.recvCQ == e.CQ {
				onCQ = append(onCQ, q)
			}
		}
	}
	d.mu.Unlock()

	q := &d.events
	q.mu.Lock()
	q.read++
	if !known {
		q.dropped++ // of an object that is gone
	}
	q.mu.Unlock()
	if !known {
		return
	}

	switch e.Type {
	case EventDeviceFatal:
		// All are told before the first is ended, which others may notice.
		for _, q := range lost {
			q.orphaned()
		}
		for _, q := range lost {
			q.gone()
		}
	case EventDisconnected:
		if e.QP != nil {
			e.QP.gone()
		}
	case EventQPFatal, EventQPReqErr, EventQPAccessErr:
		if e.QP != nil {
			e.QP.setKnownError()
		}
	case EventCQErr:
		// Completions were lost, so the ledgers of these QPs will never be
		// settled by polling: they are destroyed, and Close has their orphans.
		// The CQ's callback comes before the first is ended, which others may notice.
		d.deliver(e)
		for _, q := range onCQ {
			q.overrun(e.CQ)
		}
		return
	}
	d.deliver(e)
}

// deliver calls the object's callback and queues e for NextEvent.
func (d *Device) deliver(e Event) {
	e.Count = 1
	switch {
	case e.QP != nil && e.QP.onEvent != nil:
		e.QP.onEvent(e)
	case e.QP == nil && e.CQ != nil && e.CQ.onEvent != nil:
		e.CQ.onEvent(e)
	case e.SRQ != nil && e.SRQ.onEvent != nil:
		e.SRQ.onEvent(e)
	}

	// An object that was closed meanwhile has withdrawn its events already.
	d.mu.Lock()
	defer d.mu.Unlock()
	gone := e.QP != nil && e.QP.obj.phase == phaseGone ||
		e.CQ != nil && e.CQ.obj.phase == phaseGone ||
		e.SRQ != nil && e.SRQ.obj.phase == phaseGone
	q := &d.events
	q.mu.Lock()
	defer q.mu.Unlock()
	if gone {
		q.dropped++
		return
	}
	key := e
	key.Count = 0
	if p := q.index[key]; p != nil {
		p.Count++
		q.coalesced++
		return
	}
	p := &e
	q.index[key] = p
	q.pending = append(q.pending, p)
	q.wakeLocked()
}

func (q *eventQueue) wakeLocked() {
	if q.wake != nil {
		close(q.wake)
		q.wake = nil
	}
}

func (q *eventQueue) next(ctx context.Context) (Event, error) {
	for {
		q.mu.Lock()
		if len(q.pending) > 0 {
			e := *q.pending[0]
			q.pending = q.pending[1:]
			key := e
			key.Count = 0
			delete(q.index, key)
			q.mu.Unlock()
			return e, nil
		}
		if q.ended {
			q.mu.Unlock()
			return Event{}, ErrClosed
		}
		if q.wake == nil {
			q.wake = make(chan struct{})
		}
		wake := q.wake
		q.mu.Unlock()
		select {
		case <-wake:
		case <-ctx.Done():
			return Event{}, ctx.Err()
		}
	}
}

// withdraw forgets the unread events for which about is true.
func (q *eventQueue) withdraw(about func(*Event) bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	kept := q.pending[:0]
	for _, e := range q.pending {
		if !about(e) {
			kept = append(kept, e)
			continue
		}
		q.dropped += uint64(e.Count)
		key := *e
		key.Count = 0
		delete(q.index, key)
	}
	clear(q.pending[len(kept):])
	q.pending = kept
}

func (q *eventQueue) end() {
	q.mu.Lock()
	q.ended, q.pending, q.index = true, nil, map[Event]*Event{}
	q.wakeLocked()
	q.mu.Unlock()
}
