package buffer

import (
	"context"
	"errors"
	"fmt"
	"unsafe"
)

// Get returns a reference to a buffer of n bytes, 1 to the largest class. It
// waits, first come first served, until the memory is free and o's quota
// allows it, or ctx ends: then it returns a *FullError, which matches ctx's
// error, and has taken nothing, unless it was served at the same time.
// The contents are undefined (see Config.Scrub). Errors: ErrTooLarge (use
// GetList), ErrQuota (n can never fit o's quota), ErrInvalid, ErrClosed, and
// with Config.FailWhenFull ErrExhausted (*FullError) and ErrQuota. An uncontended call
// allocates nothing.
func (a *Arena) Get(ctx context.Context, n int, o Owner) (RDMABuffer, error) {
	cl, ok := a.classFor(n)
	if !ok {
		return RDMABuffer{}, a.sizeError(int64(n))
	}
	if b := a.getCached(n, cl, o); b.a != nil {
		return b, nil
	}
	return a.getSlow(ctx, n, cl, o)
}

func (a *Arena) getSlow(ctx context.Context, n int, cl uint8, o Owner) (RDMABuffer, error) {
	w := waiter{owner: o, bytes: int64(a.sizes[cl]), rest: cl}
	if err := a.tryAcquire(&w); err != nil {
		if !a.mayWait(&w, err) {
			return RDMABuffer{}, a.explain(&w, err)
		}
		q := &waiter{owner: o, bytes: w.bytes, rest: cl, unlessFull: w.unlessFull}
		if err := a.acquire(ctx, q); err != nil {
			return RDMABuffer{}, a.explainWait(ctx, q, err)
		}
		w = *q
	}
	return a.take(w.slot, n, &w), nil
}

// TryGet is Get that returns false where Get would wait or fail. It never
// blocks: pollers may call it.
func (a *Arena) TryGet(n int, o Owner) (RDMABuffer, bool) {
	cl, ok := a.classFor(n)
	if !ok {
		return RDMABuffer{}, false
	}
	if b := a.getCached(n, cl, o); b.a != nil {
		return b, true
	}
	w := waiter{owner: o, bytes: int64(a.sizes[cl]), rest: cl}
	if err := a.tryAcquire(&w); err != nil {
		a.countMissed(w.bytes, err)
		return RDMABuffer{}, false
	}
	return a.take(w.slot, n, &w), true
}

// GetList returns a list of n bytes, 1 and more: buffers of the largest class
// and one of the class that holds the rest. It takes all of them or none, and
// waits as Get does. ErrTooLarge means that the arena can never give so much.
func (a *Arena) GetList(ctx context.Context, n int64, o Owner) (*List, error) {
	w, err := a.listWaiter(n, o)
	if err != nil {
		return nil, err
	}
	l := newList()
	w.got = l.scratch[:0]
	if err := a.tryAcquire(&w); err != nil {
		if !a.mayWait(&w, err) {
			l.Release()
			return nil, a.explain(&w, err)
		}
		q := &waiter{owner: o, bytes: w.bytes, large: w.large, rest: w.rest, unlessFull: w.unlessFull}
		if err := a.acquire(ctx, q); err != nil {
			l.Release()
			return nil, a.explainWait(ctx, q, err)
		}
		w = *q
	}
	a.fill(l, &w, n)
	return l, nil
}

// TryGetList is GetList that returns false where GetList would wait or fail.
// It never blocks.
func (a *Arena) TryGetList(n int64, o Owner) (*List, bool) {
	w, err := a.listWaiter(n, o)
	if err != nil {
		return nil, false
	}
	l := newList()
	w.got = l.scratch[:0]
	if err := a.tryAcquire(&w); err != nil {
		a.countMissed(w.bytes, err)
		l.Release()
		return nil, false
	}
	a.fill(l, &w, n)
	return l, true
}

// listWaiter says what a list of n bytes wants.
func (a *Arena) listWaiter(n int64, o Owner) (waiter, error) {
	if n <= 0 {
		return waiter{}, a.sizeError(n)
	}
	most := a.cfg.Budget
	if o != Control {
		most -= a.cfg.Reserve
	}
	if n > most {
		return waiter{}, fmt.Errorf("%w: %d bytes, the arena has %d for all: raise Config.Budget", ErrTooLarge, n, most)
	}
	w := waiter{owner: o, large: int(n / a.chunkSize), rest: noClass}
	w.bytes = int64(w.large) * a.chunkSize
	if rest := n % a.chunkSize; rest > 0 {
		w.rest, _ = a.classFor(int(rest))
		w.bytes += int64(a.sizes[w.rest])
	}
	if w.want() == 1 && w.large == 1 { // one slot is always rest
		w.large, w.rest = 0, a.largest()
	}
	return w, nil
}

// fill makes l the n bytes of the slots that w has got.
func (a *Arena) fill(l *List, w *waiter, n int64) {
	if w.want() == 1 {
		l.Append(a.take(w.slot, int(n), w))
		return
	}
	for _, s := range w.got {
		m := min(n, a.chunkSize)
		l.Append(a.take(s, int(m), w))
		n -= m
	}
	l.scratch = w.got[:0]
}

// mayWait reports whether Get waits after tryAcquire failed with err.
func (a *Arena) mayWait(w *waiter, err error) bool {
	switch {
	case errors.Is(err, errNoMemory):
		w.unlessFull = a.cfg.FailWhenFull
		return !a.cfg.FailWhenFull || a.canGrow()
	case errors.Is(err, errNoQuota):
		return !a.cfg.FailWhenFull
	}
	return false
}

// explain adds the numbers and the remedy to an error of tryAcquire.
func (a *Arena) explain(w *waiter, err error) error {
	o := a.owner(w.owner)
	switch {
	case errors.Is(err, errNoMemory):
		err = a.waitEnded(w, ErrExhausted)
	case errors.Is(err, errNoQuota):
		err = fmt.Errorf("%w: owner %q may hold %d bytes and wants %d more: raise it with Arena.Owner, or release sooner",
			ErrQuota, o.name, o.quota.Load(), w.bytes)
	default:
		return err
	}
	a.countExhausted()
	return err
}

// explainWait adds the arena's state to ctx's error.
func (a *Arena) explainWait(ctx context.Context, w *waiter, err error) error {
	if ctxErr := ctx.Err(); ctxErr != nil && err == ctxErr { //nolint:errorlint // acquire returns it as it is
		return a.waitEnded(w, err)
	}
	return err
}

func (a *Arena) countExhausted() {
	a.mu.Lock()
	a.exhausted++
	a.mu.Unlock()
}

// countMissed counts a TryGet of n bytes that failed with err, and lets the arena
// grow by so much if it was for want of memory.
func (a *Arena) countMissed(n int64, err error) {
	a.mu.Lock()
	a.exhausted++
	if errors.Is(err, errNoMemory) {
		a.missed = max(a.missed, n)
		a.wantMemory()
	}
	a.mu.Unlock()
}

// getCached gets a slot of class cl from the caches, and the quota for it from
// a lease. It returns the zero RDMABuffer if that is not to be. It and put are
// written out, without calls to what they share: a call costs a tenth of all
// that they do.
func (a *Arena) getCached(n int, cl uint8, id Owner) RDMABuffer {
	owners := *a.owners.Load()
	if a.gate.Load() != 0 || int(id) >= len(owners) {
		return RDMABuffer{}
	}
	var here byte
	sh := shardAt(uintptr(unsafe.Pointer(&here)))
	o := owners[id]
	limited := o.quota.Load() != 0
	if h := a.cores.hot(sh, cl).Load(); h != 0 {
		num := uint64(h - 1)
		x := &a.slots[num]
		if state := x.state.Load(); count(state) == 0 && (!limited || o.charge(sh, int64(a.sizes[cl]))) {
			if x.state.CompareAndSwap(state, state+1) {
				if c := &a.chunks[num>>(a.chunkShift&31)]; c.class != cl || c.pool == poolElastic && a.mayLeave(o, num) {
					a.giveBackStray(uint32(num), o, limited, int64(a.sizes[cl]))
					return RDMABuffer{}
				}
				if m := metaOf(id, limited, sh, a.now.Load()); m != x.meta.Load() || invariants || a.tracer.Load() != nil {
					return a.takeSlow(uint32(num), n, id, m, ownerOf(x.meta.Load()))
				}
				return RDMABuffer{a: a, gen: gen(state), slot: num, view: uint64(uint32(n))}
			}
			if limited { // somebody else has got it
				o.leases[sh&uint(len(o.leases)-1)].left.Add(int64(a.sizes[cl]))
			}
		}
	}
	return a.getStacked(n, cl, id, o, limited, sh)
}

// getStacked is getCached from the stack of the core.
func (a *Arena) getStacked(n int, cl uint8, id Owner, o *owner, limited bool, sh uint) RDMABuffer {
	var st *slot
	var num uint32
	if k := a.cores.pin(); k != nil {
		lease := uint(k.id)
		if !limited || o.charge(lease, int64(a.sizes[cl])) {
			for e := &k.stacks[cl]; e.n > 0; {
				e.n--
				num = e.cells[e.n&(maxCached-1)].Load() - 1
				x := &a.slots[num]
				// If it fails, somebody has claimed the slot, and has made another
				// entry if it is free again.
				if state := x.state.Load(); count(state) == 0 && x.state.CompareAndSwap(state, state+1) {
					st = x
					break
				}
			}
			if st == nil && limited {
				o.leases[lease].left.Add(int64(a.sizes[cl]))
			}
		}
		a.cores.unpin(k)
	}
	// Who waits for quota may have called the leases back just while this Get had
	// a charge, here or in getCached, that it has put back since.
	if limited && a.gate.Load() != 0 {
		a.putExcess(o, false)
	}
	if st == nil {
		return RDMABuffer{}
	}
	if c := &a.chunks[num>>(a.chunkShift&31)]; c.class != cl || c.pool == poolElastic && a.mayLeave(o, uint64(num)) {
		// An old entry, and the chunk was carved otherwise since.
		a.giveBackStray(num, o, limited, int64(a.sizes[cl]))
		return RDMABuffer{}
	}
	return a.takeSlow(num, n, id, metaOf(id, limited, sh, a.now.Load()), ownerOf(st.meta.Load()))
}

// mayLeave reports whether a slot is in a region that may be given up though o
// wants others.
func (a *Arena) mayLeave(o *owner, num uint64) bool {
	return o.lasting.Load() && !a.regions[num>>a.rgnShift].kept.Load()
}

// take makes the handle of a slot that w has got, for n bytes.
func (a *Arena) take(s claimed, n int, w *waiter) RDMABuffer {
	var here byte
	m := metaOf(w.owner, w.charged, shardAt(uintptr(unsafe.Pointer(&here))), a.now.Load())
	return a.takeSlow(s.slot, n, w.owner, m, s.former)
}

// takeSlow makes the handle of a slot with count 1, which is to have meta m. former
// is whose it was before.
func (a *Arena) takeSlow(s uint32, n int, o Owner, m uint64, former Owner) RDMABuffer {
	st := &a.slots[s]
	if st.meta.Load() != m {
		st.meta.Store(m) // before what takes long
	}
	if invariants {
		a.checkPoison(s, former)
	}
	if a.scrub && former != o {
		clear(a.slotMem(s))
	}
	if invariants {
		a.setCanary(s, n)
	}
	b := RDMABuffer{a: a, gen: gen(st.state.Load()), slot: uint64(s), view: uint64(uint32(n))}
	if t := a.tracer.Load(); t != nil {
		b.gen |= t.get(b, o, a.now.Load()) << tokenShift
	}
	return b
}
