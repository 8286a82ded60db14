package verbs

import (
	"fmt"
	"runtime"
	"strings"
	"time"
)

// Kind is the type of a verbs object.
type Kind uint8

// The kinds of objects that Resources lists.
const (
	KindPD Kind = iota
	KindMR
	KindScopedMR // a key of MR.Scope
	KindMW
	KindCompChannel
	KindCQ
	KindSRQ
	KindQP
	KindListener
	KindConnRequest

	kindDevice
)

var kindNames = [...]string{
	"PD", "MR", "scoped MR", "MW", "comp channel", "CQ", "SRQ", "QP", "listener", "connection request", "device",
}

func (k Kind) String() string {
	if int(k) < len(kindNames) {
		return kindNames[k]
	}
	return fmt.Sprint(uint8(k))
}

// Resource describes a live object.
type Resource struct {
	Kind         Kind
	ID           uint64 // unique in the device, in order of creation
	LKey, RKey   uint32 // MR, MW
	Addr, Length uint64 // MR
	QPN          uint32 // QP; for a window or scoped key the QP it is bound to
	Posted       int    // QP, SRQ: requests posted or not yet polled; MR: their SGEs that name it
	Age          time.Duration
	Stack        string // where it was made, when tracing was on; not in errors
}

func (r Resource) String() string {
	s := fmt.Sprintf("%v #%d", r.Kind, r.ID)
	switch r.Kind {
	case KindMR, KindScopedMR:
		s += fmt.Sprintf(" (lkey 0x%x, rkey 0x%x, addr 0x%x, %d bytes)", r.LKey, r.RKey, r.Addr, r.Length)
	case KindMW:
		s += fmt.Sprintf(" (rkey 0x%x)", r.RKey)
	case KindQP:
		s += fmt.Sprintf(" (QPN %d)", r.QPN)
	}
	return s
}

// phase is how far the life of an object is.
type phase uint8

const (
	phaseNew     phase = iota // not yet made: nothing refers to it
	phaseLive                 //
	phaseClosing              // its destructor is running; no new children
	phaseGone
)

// object is the part of every verbs object that its parents and Resources see.
// All fields but the first three are guarded by dev.mu.
type object struct {
	dev  *Device
	kind Kind
	self interface{ describe(*Resource) }

	id       uint64
	born     time.Time
	stack    []uintptr
	phase    phase
	children int        // live or closing objects that have this one as a parent
	parents  [4]*object // a window's change as it is bound; nil is none
	prev     *object    // list of the device's objects, in order of creation
	next     *object
	run      *closeRun // the destructor that is running
}

// closeRun is one run of a destructor of the device.
type closeRun struct {
	since time.Time
	done  chan struct{} // closed when it has returned
	err   error         // valid once done is closed
}

// reserve makes o a child of its parents before the device is asked to make it,
// so that none of them can be closed meanwhile. It ends with link or abandon.
func (o *object) reserve(d *Device, kind Kind, self interface{ describe(*Resource) }, parents ...*object) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.isLost() {
		return ErrDeviceLost
	}
	for _, p := range parents {
		if p != nil && p.phase != phaseLive {
			return fmt.Errorf("%v: %w", p.kind, ErrClosed)
		}
	}
	o.dev, o.kind, o.self = d, kind, self
	o.phase, o.parents = phaseNew, [4]*object{}
	for i, p := range parents {
		if p != nil {
			o.parents[i] = p
			p.children++
		}
	}
	return nil
}

// abandon undoes reserve.
func (o *object) abandon() {
	d := o.dev
	d.mu.Lock()
	o.unparentLocked()
	d.mu.Unlock()
}

// link makes o visible. dev.mu is held.
func (o *object) linkLocked() {
	d := o.dev
	d.lastID++
	o.id, o.born, o.phase = d.lastID, time.Now(), phaseLive
	o.stack = nil
	if d.trace.Load() {
		var pcs [32]uintptr
		o.stack = append(o.stack, pcs[:runtime.Callers(2, pcs[:])]...)
	}
	o.prev = d.newest
	if o.prev != nil {
		o.prev.next = o
	} else {
		d.oldest = o
	}
	d.newest = o
	d.liveObjects[o.kind]++
}

// unlinkLocked ends o. dev.mu is held.
func (o *object) unlinkLocked() {
	d := o.dev
	if o.prev != nil {
		o.prev.next = o.next
	} else {
		d.oldest = o.next
	}
	if o.next != nil {
		o.next.prev = o.prev
	} else {
		d.newest = o.prev
	}
	o.prev, o.next = nil, nil
	o.phase = phaseGone
	d.liveObjects[o.kind]--
	o.unparentLocked()
}

func (o *object) unparentLocked() {
	for i := range o.parents {
		o.setParentLocked(i, nil)
	}
}

// setParentLocked changes one parent; dev.mu is held. A region whose last child
// goes may be waited for.
func (o *object) setParentLocked(i int, p *object) {
	if old := o.parents[i]; old != nil {
		old.children--
		if m, ok := old.self.(*MR); ok && old.children == 0 {
			m.poke()
		}
	}
	o.parents[i] = p
	if p != nil {
		p.children++
	}
}

// describeLocked is the Resource of o without its stack; dev.mu is held.
func (o *object) describeLocked(now time.Time) Resource {
	r := Resource{Kind: o.kind, ID: o.id, Age: now.Sub(o.born)}
	o.self.describe(&r)
	return r
}

// childrenLocked lists the live children of o; dev.mu is held. It is only asked
// for errors, so children are found by walking all objects.
func (o *object) childrenLocked() []Resource {
	var rs []Resource
	now := time.Now()
	for c := o.dev.oldest; c != nil; c = c.next {
		for _, p := range c.parents {
			if p == o {
				rs = append(rs, c.describeLocked(now))
				break
			}
		}
	}
	return rs
}

// shut runs the destructor of o unless it has children, and waits for it until
// the device's deadline. check, with dev.mu held, may refuse. gone, with dev.mu
// held, is called once o is gone. Of an object that is gone it returns nil.
func (o *object) shut(op, what string, check func() error, destroy func() error, gone func()) error {
	run, err := o.beginShut(what, check, destroy, gone)
	if err != nil {
		return o.dev.opError(op, 0, err)
	}
	if run == nil {
		return nil
	}
	return o.await(run, op, what)
}

// beginShut starts the destructor on a goroutine of its own, which ends when
// destroy returns, or finds the one that is running; nil if o is gone.
func (o *object) beginShut(what string, check func() error, destroy func() error, gone func()) (*closeRun, error) {
	d := o.dev
	d.mu.Lock()
	defer d.mu.Unlock()
	switch o.phase {
	case phaseNew, phaseGone:
		return nil, nil
	case phaseLive:
		if check != nil {
			if err := check(); err != nil {
				return nil, err
			}
		}
		if o.children > 0 {
			return nil, &BusyError{What: what, Children: o.childrenLocked()}
		}
		o.phase = phaseClosing
		o.run = &closeRun{since: time.Now(), done: make(chan struct{})}
		go o.destroy(o.run, destroy, gone)
	}
	return o.run, nil
}

func (o *object) destroy(run *closeRun, destroy func() error, gone func()) {
	err := destroy()
	d := o.dev
	d.mu.Lock()
	if err == nil || isLost(err) {
		o.unlinkLocked()
		if gone != nil {
			gone()
		}
	} else {
		o.phase = phaseLive
	}
	run.err = err
	d.mu.Unlock()
	close(run.done)
}

func (o *object) await(run *closeRun, op, what string) error {
	d := o.dev
	var late <-chan time.Time
	if d.closeTimeout > 0 {
		t := time.NewTimer(d.closeTimeout)
		defer t.Stop()
		late = t.C
	}
	select {
	case <-run.done:
	case <-late:
		d.stuck.Add(1)
		d.log.Warn("verbs: destructor is stuck", "device", d.caps.Name, "call", op+" "+what, "since", run.since)
		go func() { // ends with the destructor
			<-run.done
			d.stuck.Add(-1)
			d.log.Warn("verbs: stuck destructor returned", "device", d.caps.Name, "call", op+" "+what, "err", run.err)
		}()
		return d.opError(op, 0, &StuckError{Call: op + " " + what, Since: time.Since(run.since)})
	}
	if run.err != nil {
		return d.opError(op, 0, run.err)
	}
	return nil
}

// formatStack is one line per frame, innermost first.
func formatStack(pcs []uintptr) string {
	if len(pcs) == 0 {
		return ""
	}
	var b strings.Builder
	frames := runtime.CallersFrames(pcs)
	for {
		f, more := frames.Next()
		fmt.Fprintf(&b, "%s\n\t%s:%d\n", f.Function, f.File, f.Line)
		if !more {
			return b.String()
		}
	}
}
