package buffer

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"
)

// waiter is a Get or GetList in progress: what it wants and what it has got.
// It first gets its owner's quota, then memory. A waiter for one slot holds no
// memory while it waits; of those for several, only the one that came first
// gathers, so that two of them never wait for each other.
type waiter struct {
	owner   Owner
	bytes   int64 // of memory and quota
	large   int   // slots of the largest class it wants
	rest    uint8 // class of one more slot, or noClass
	charged bool  // it has spent quota

	unlessFull bool // waits only as long as the arena may grow

	have int       // slots it has, each with count 1: the large ones first
	slot claimed   // the last one
	got  []claimed // all of them, where it wants more than one

	ticket uint64
	done   chan struct{} // closed when served or failed
	err    error
	next   *waiter
}

// claimed is a slot that a waiter has. Its meta is the waiter's already, so that
// nobody takes it for its former owner's.
type claimed struct {
	slot   uint32
	former Owner // whose bytes are in it
}

// want is how many slots w wants in all.
func (w *waiter) want() int {
	if w.rest == noClass {
		return w.large
	}
	return w.large + 1
}

// class is that of the slot which w wants next.
func (a *Arena) class(w *waiter) uint8 {
	if w.have < w.large {
		return a.largest()
	}
	return w.rest
}

// wants reports whether w still wants a slot of class cl.
func (a *Arena) wants(w *waiter, cl uint8) bool {
	return w != nil && (w.have < w.large && cl == a.largest() || w.have < w.want() && cl == w.rest)
}

// queue is a list of waiters, first come first.
type queue struct{ first, last *waiter }

func (q *queue) push(w *waiter) {
	if q.last == nil {
		q.first = w
	} else {
		q.last.next = w
	}
	q.last = w
}

// remove takes w out, and reports whether it was there.
func (q *queue) remove(w *waiter) bool {
	var prev *waiter
	for e := q.first; e != nil; prev, e = e, e.next {
		if e != w {
			continue
		}
		if prev == nil {
			q.first = w.next
		} else {
			prev.next = w.next
		}
		if q.last == w {
			q.last = prev
		}
		w.next = nil
		return true
	}
	return false
}

// line is the queue in which w waits for memory: one for Control, which has
// memory of its own; one per class for who wants one slot; one for who wants
// several.
func (a *Arena) line(w *waiter) *queue {
	switch {
	case w.owner == Control:
		return &a.lines[len(a.sizes)+1]
	case w.want() > 1:
		return &a.lines[len(a.sizes)]
	}
	return &a.lines[a.class(w)]
}

// tryAcquire gets for w what it wants, at once or not at all. Its errors are
// those of Get, errNoMemory and errNoQuota. It allocates nothing.
func (a *Arena) tryAcquire(w *waiter) error {
	a.owner(w.owner) // panics before a lock is taken
	id := -1
	if k := a.cores.pin(); k != nil {
		id = k.id
		a.cores.unpin(k)
	}
	var extra [maxCached / 2]uint32
	n := 0
	a.mu.Lock()
	err := a.grab(w, id)
	if err == nil && a.waiting == 0 && w.want() == 1 {
		for n < min(len(extra), a.cores.limit[w.rest]/2) {
			s, ok := a.alloc(w.rest, poolGeneral, false)
			if !ok {
				s, ok = a.alloc(w.rest, poolElastic, false)
			}
			if !ok {
				break
			}
			a.slots[s].claim(inChunk, 0)
			extra[n] = s
			n++
		}
	}
	a.mu.Unlock()
	if n > 0 {
		a.cache(w.rest, extra[:n])
	}
	return err
}

// cache puts slots with count 0 into a cache.
func (a *Arena) cache(cl uint8, slots []uint32) {
	n := 0
	if k := a.cores.pin(); k != nil {
		for n < len(slots) && k.push(cl, slots[n], a.cores.limit[cl]) {
			n++
		}
		a.cores.unpin(k)
	}
	if n < len(slots) || a.gate.Load() != 0 {
		a.mu.Lock()
		a.uncache(slots[n:])
		a.settle()
		a.mu.Unlock()
	}
}

// uncache returns slots with count 0 to their chunks, except those that
// somebody has taken by another entry. Under Arena.mu.
func (a *Arena) uncache(slots []uint32) {
	for _, s := range slots {
		if a.slots[s].claim(0, inChunk) {
			a.freeSlot(s)
		}
	}
}

// settle is for who has made slots or quota free while somebody waits, or the
// arena closes: whatever the caches have is taken out and given away. Under
// Arena.mu.
func (a *Arena) settle() {
	if a.gate.Load() == 0 {
		return
	}
	a.sweep()
	a.serve()
	a.checkIdle()
}

// acquire gets for w what it wants, and waits for it as long as ctx lasts.
func (a *Arena) acquire(ctx context.Context, w *waiter) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	a.mu.Lock()
	if a.closing {
		a.mu.Unlock()
		return errArenaClosed
	}
	w.done = make(chan struct{})
	o := a.owner(w.owner)
	begin := time.Now()
	defer func() { a.getWait.Observe(time.Since(begin)) }()
	a.waited++
	a.waiting++
	// From here on who releases comes and serves. What was released before is
	// in the caches.
	a.gate.Add(1)
	if o.quota.Load() != 0 {
		o.queue.push(w)
	} else {
		a.enqueue(w)
	}
	a.settle()
	a.wantMemory()
	a.mu.Unlock()

	select {
	case <-w.done:
		return w.err
	case <-ctx.Done():
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	select {
	case <-w.done: // served just now
		return w.err
	default:
	}
	if !o.queue.remove(w) {
		a.line(w).remove(w)
	}
	a.finish(w, ctx.Err())
	a.serve()
	return w.err
}

// grab gets for w what it wants, all or nothing, unless somebody who came
// before waits for the same. Under Arena.mu.
func (a *Arena) grab(w *waiter, core int) error {
	if a.closing {
		return errArenaClosed
	}
	o := a.owner(w.owner)
	if q := o.quota.Load(); q != 0 {
		if w.bytes > q {
			return a.quotaError(o, w)
		}
		if o.queue.first != nil || !a.chargeLocked(o, w.bytes, core) {
			return errNoQuota
		}
		w.charged = true
	}
	general := !a.ahead(w)
	if a.gather(w, general) || a.sweep() && a.gather(w, general) {
		return nil
	}
	a.giveBack(w)
	return errNoMemory
}

func (a *Arena) quotaError(o *owner, w *waiter) error {
	return fmt.Errorf("%w: %d bytes can never fit the quota of %d bytes of owner %q: raise it with Arena.Owner",
		ErrQuota, w.bytes, o.quota.Load(), o.name)
}

// ahead reports whether somebody who came before w waits for the same slots.
func (a *Arena) ahead(w *waiter) bool {
	if a.waiting == 0 {
		return false
	}
	for i := range a.lines[:len(a.sizes)+2] {
		first := a.lines[i].first
		if first != nil && w.want() > 1 && first.want() > 1 {
			return true
		}
		for cl := range a.sizes {
			if a.wants(w, uint8(cl)) && a.wants(first, uint8(cl)) {
				return true
			}
		}
	}
	return false
}

// gather takes slots for w until it has all that it wants: general ones, if it
// may, and those of the reserve, if it is Control. Under Arena.mu.
func (a *Arena) gather(w *waiter, general bool) bool {
	for w.have < w.want() {
		cl := a.class(w)
		var s uint32
		ok := false
		if general {
			if s, ok = a.alloc(cl, poolGeneral, true); !ok {
				if s, ok = a.alloc(cl, poolElastic, true); ok && a.owner(w.owner).lasting.Load() {
					a.regions[s>>a.rgnShift].kept.Store(true)
				}
			}
		}
		if !ok && w.owner == Control {
			s, ok = a.alloc(cl, poolReserve, true)
		}
		if !ok {
			return false
		}
		st := &a.slots[s]
		w.slot = claimed{s, ownerOf(st.meta.Load())}
		st.meta.Store(metaOf(w.owner, w.charged, 0, a.now.Load()))
		st.claim(inChunk, 1)
		w.have++
		if w.want() > 1 {
			w.got = append(w.got, w.slot)
		}
	}
	return true
}

// giveBack returns the slots and the quota that w has. Under Arena.mu.
func (a *Arena) giveBack(w *waiter) {
	a.giveBackSlots(w)
	if w.charged {
		w.charged = false
		a.owner(w.owner).refund(w.bytes)
	}
}

func (a *Arena) giveBackSlots(w *waiter) {
	if w.want() > 1 {
		for _, s := range w.got {
			a.unclaim(s)
		}
		w.got = w.got[:0]
	} else if w.have > 0 {
		a.unclaim(w.slot)
	}
	w.have = 0
}

// unclaim returns a slot that no handle was made of: the bytes in it are still
// its former owner's. Under Arena.mu.
func (a *Arena) unclaim(s claimed) {
	st := &a.slots[s.slot]
	st.claim(1, inChunk)
	st.meta.Store(metaOf(s.former, false, 0, 0))
	a.freeSlot(s.slot)
}

// enqueue makes w wait for memory. Under Arena.mu.
func (a *Arena) enqueue(w *waiter) {
	a.tickets++
	w.ticket = a.tickets
	a.line(w).push(w)
}

// finish ends w's wait; with an error, without anything. Under Arena.mu.
func (a *Arena) finish(w *waiter, err error) {
	if err != nil {
		a.giveBack(w)
	}
	w.err = err
	a.waiting--
	a.gate.Add(-1)
	close(w.done)
}

// serve gives what is free in the chunks to those who wait. Whoever adds quota
// or memory, or takes somebody out of a queue, calls it. Under Arena.mu.
func (a *Arena) serve() {
	if a.waiting > 0 {
		for _, o := range *a.owners.Load() {
			for w := o.queue.first; w != nil; w = o.queue.first {
				if q := o.quota.Load(); w.bytes > q { // it was lowered
					o.queue.remove(w)
					a.finish(w, a.quotaError(o, w))
					continue
				}
				if !a.chargeLocked(o, w.bytes, -1) {
					break
				}
				w.charged = true
				o.queue.remove(w)
				a.enqueue(w)
			}
		}
		for a.serveOne() {
		}
		clear(a.heads[:])
	}
	if a.waiting == 0 {
		a.undrain()
	}
}

// serveOne serves the first that can be, of those at the heads of the lines in
// the order in which they came, and reports whether to look again. Under
// Arena.mu.
func (a *Arena) serveOne() bool {
	heads := a.heads[:0]
	for i := range a.lines[:len(a.sizes)+2] {
		if w := a.lines[i].first; w != nil {
			heads = append(heads, w)
		}
	}
	if len(heads) == 0 {
		a.undrain()
		return false
	}
	slices.SortFunc(heads, func(x, y *waiter) int { return cmp.Compare(x.ticket, y.ticket) })
	if a.victim != 0 && a.wants(heads[0], a.chunks[a.victim-1].class) {
		a.undrain()
	}
	several := 0
	for _, w := range heads {
		if w.want() > 1 {
			several++
		}
		if several > 1 && w.want() > 1 {
			a.giveBackSlots(w) // it may have been the first before
		}
	}
	several = 0
	for _, w := range heads {
		if w.want() > 1 {
			several++
		}
		if a.gather(w, true) {
			a.line(w).remove(w)
			a.finish(w, nil)
			return true
		}
		if several > 1 && w.want() > 1 {
			a.giveBackSlots(w)
		}
	}
	return a.drain(a.class(heads[0]))
}

// sweep takes every free slot out of the caches, and reports whether there was
// one. Under Arena.mu.
func (a *Arena) sweep() bool {
	found := false
	for cl := range a.sizes {
		for i := range uint(a.cores.mask[cl]) + 1 {
			s := a.cores.hot(i, uint8(cl)).Load()
			if s != 0 && a.slots[s-1].claim(0, inChunk) {
				a.freeSlot(s - 1)
				found = true
			}
		}
	}
	for i := range a.cores.all {
		k := &a.cores.all[i]
		for cl := range a.sizes {
			for e := range a.cores.limit[cl] {
				s := k.stacks[cl].cells[e].Load()
				if s != 0 && a.slots[s-1].claim(0, inChunk) {
					a.freeSlot(s - 1)
					found = true
				}
			}
		}
	}
	return found
}
