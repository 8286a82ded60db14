package buffer

import (
	"context"
	"fmt"
	"math/bits"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"
)

// Arena is registered memory, cut into reference-counted buffers. Its methods
// are safe for concurrent use.
type Arena struct {
	cfg Config // with defaults filled in

	// A slot is known by the number of its first unit: the size of the
	// smallest class.
	unitBits   uint8 // log2 of bytes per unit
	chunkShift uint8 // log2 of units per chunk
	rgnShift   uint8 // log2 of units per region
	sizes      []int // of the classes
	classOf    [32]uint8
	chunkSize  int64
	scrub      bool
	slots      []slot
	regions    []region
	backing    string  // of the first region
	tracer     *tracer // nil: no tracing
	cores      cores

	gate   atomic.Int64  // not 0: somebody waits, or the arena closes
	now    atomic.Uint32 // seconds since start
	start  time.Time
	owners atomic.Pointer[[]*owner]
	copied atomic.Uint64
	grants atomic.Int64

	attachMu    sync.Mutex // serialises Attach, Detach and Close
	attachments atomic.Pointer[[]*attachment]
	detaching   []*attachment // under attachMu
	closed      bool          // Close has succeeded. Under attachMu
	quarantined atomic.Int64  // bytes that Close kept mapped

	mu        sync.Mutex
	chunks    []chunk // but for class, see chunk
	pools     [pools]pool
	lines     [maxClasses + 2]queue // see line
	heads     [maxClasses + 2]*waiter
	victim    uint32 // chunk + 1 that drains, or 0
	freed     uint32 // chunk that a slot came back to last
	tickets   uint64
	waiting   int
	waited    uint64
	exhausted uint64
	total     int64 // bytes, without retired slots
	out       int64 // bytes of slots that are not in their chunks
	retired   int64 // bytes
	closing   bool
	idle      chan struct{} // closed when out is 0 and the arena closes
	stopClock chan struct{}
	clockDone chan struct{}
}

// New maps the memory of an arena that no PD is attached to. Without a device
// it serves streams. Errors: ErrInvalid, ErrNotSupported, *LimitError, the
// system's.
func New(cfg Config) (*Arena, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	largest := cfg.Classes[len(cfg.Classes)-1]
	a := &Arena{
		cfg:       cfg,
		unitBits:  uint8(bits.TrailingZeros(uint(cfg.Classes[0]))),
		sizes:     cfg.Classes,
		chunkSize: int64(largest),
		scrub:     cfg.Scrub,
		total:     cfg.Budget,
		start:     time.Now(),
		idle:      make(chan struct{}),
		stopClock: make(chan struct{}),
		clockDone: make(chan struct{}),
	}
	a.chunkShift = uint8(bits.TrailingZeros(uint(largest))) - a.unitBits
	a.rgnShift = uint8(bits.TrailingZeros64(uint64(cfg.RegionSize))) - a.unitBits
	for cl := len(cfg.Classes) - 1; cl >= 0; cl-- {
		for b := range bits.Len(uint(cfg.Classes[cl]-1)) + 1 {
			a.classOf[b] = uint8(cl)
		}
	}
	a.slots = make([]slot, cfg.Budget>>a.unitBits)
	a.cores.init(cfg.Classes, cfg.Budget/int64(16*numCores()))
	a.owners.Store(&[]*owner{
		{name: "anonymous", leases: make([]lease, len(a.cores.all))},
		{name: "control", leases: make([]lease, len(a.cores.all))},
	})
	a.attachments.Store(&[]*attachment{})
	if cfg.Trace {
		a.tracer = newTracer()
	}
	a.chunks = make([]chunk, cfg.Budget/a.chunkSize)
	reserve := uint32(cfg.Reserve / a.chunkSize)
	for i := uint32(len(a.chunks)); i > 0; i-- {
		c := &a.chunks[i-1]
		c.class = noClass
		if i-1 < reserve {
			c.pool = poolReserve
		}
		a.pools[c.pool].free.add(a.chunks, i-1)
	}
	if a.regions, err = mapRegions(cfg); err != nil {
		return nil, err
	}
	a.backing = a.regions[0].backing
	if invariants {
		for i := range a.regions {
			poison(a.regions[i].mem)
		}
	}
	// The clock is the arena's; Close ends it.
	go a.clock()
	return a, nil
}

// clock keeps now, from New to Close.
func (a *Arena) clock() {
	defer close(a.clockDone)
	t := time.NewTicker(time.Second)
	defer t.Stop()
	for {
		select {
		case <-t.C:
			a.now.Store(uint32(time.Since(a.start) / time.Second))
		case <-a.stopClock:
			return
		}
	}
}

// Classes returns the size classes in bytes, ascending.
func (a *Arena) Classes() []int { return append([]int(nil), a.sizes...) }

func (a *Arena) largest() uint8 { return uint8(len(a.sizes) - 1) }

// classFor is the smallest class that holds n bytes, 1 to the largest.
func (a *Arena) classFor(n int) (uint8, bool) {
	if uint64(n-1) >= uint64(a.chunkSize) {
		return 0, false
	}
	return a.classOf[bits.Len32(uint32(n-1))&31], true
}

func (a *Arena) sizeError(n int64) error {
	if n <= 0 {
		return fmt.Errorf("%w: a buffer of %d bytes", ErrInvalid, n)
	}
	return fmt.Errorf("%w: %d bytes, the largest class has %d: use GetList", ErrTooLarge, n, a.chunkSize)
}

// Get returns a reference to a buffer of n bytes, 1 to the largest class. It
// waits, first come first served, until the memory is free and o's quota
// allows it, or ctx ends: then it returns ctx's error and has taken nothing,
// unless it was served at the same time.
// The contents are undefined (see Config.Scrub). Errors: ErrTooLarge (use
// GetList), ErrQuota (n can never fit o's quota), ErrInvalid, ErrClosed, and
// with Config.FailWhenFull ErrExhausted and ErrQuota. An uncontended call
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
		q := &waiter{owner: o, bytes: w.bytes, rest: cl}
		if err := a.acquire(ctx, q); err != nil {
			return RDMABuffer{}, err
		}
		w = *q
	}
	return a.take(w.slot, n, o, w.charged), nil
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
	if a.tryAcquire(&w) != nil {
		a.countExhausted()
		return RDMABuffer{}, false
	}
	return a.take(w.slot, n, o, w.charged), true
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
		q := &waiter{owner: o, bytes: w.bytes, large: w.large, rest: w.rest}
		if err := a.acquire(ctx, q); err != nil {
			l.Release()
			return nil, err
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
	if a.tryAcquire(&w) != nil {
		a.countExhausted()
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
		l.Append(a.take(w.slot, int(n), w.owner, w.charged))
		return
	}
	for _, s := range w.got {
		m := min(n, a.chunkSize)
		l.Append(a.take(s, int(m), w.owner, w.charged))
		n -= m
	}
	l.scratch = w.got[:0]
}

// mayWait reports whether Get waits after tryAcquire failed with err.
func (a *Arena) mayWait(w *waiter, err error) bool {
	return (err == ErrExhausted || err == ErrQuota) && !a.cfg.FailWhenFull
}

// explain adds the numbers and the remedy to an error of tryAcquire.
func (a *Arena) explain(w *waiter, err error) error {
	switch err {
	case ErrExhausted:
		a.countExhausted()
		return fmt.Errorf("%w: %d bytes are not free of %d: raise Config.Budget, or release sooner", err, w.bytes, a.cfg.Budget)
	case ErrQuota:
		a.countExhausted()
		o := a.owner(w.owner)
		return fmt.Errorf("%w: owner %q may hold %d bytes and wants %d more: raise it with Arena.Owner, or release sooner",
			err, o.name, o.quota.Load(), w.bytes)
	}
	return err
}

func (a *Arena) countExhausted() {
	a.mu.Lock()
	a.exhausted++
	a.mu.Unlock()
}

// getCached gets a slot of class cl from the core's cache, and the quota for it
// from the core's lease. It returns the zero RDMABuffer if that is not to be.
// It and put are written out, without calls to what they share: a call costs a
// tenth of all that they do.
func (a *Arena) getCached(n int, cl uint8, id Owner) RDMABuffer {
	owners := *a.owners.Load()
	if a.gate.Load() != 0 || int(id) >= len(owners) {
		return RDMABuffer{}
	}
	pinned := canPin && !a.cores.portable
	var k *core
	if pinned {
		p := procPin()
		if p >= len(a.cores.all) {
			procUnpin()
			return RDMABuffer{}
		}
		k = &a.cores.all[p]
	} else {
		k = a.cores.lock()
	}
	o := owners[id]
	limited := o.quota.Load() != 0
	got := noSlot
	if !limited || o.charge(k, int64(a.sizes[cl])) {
		st := &k.stacks[cl]
		for st.n > 0 {
			st.n--
			if s := st.cells[st.n&(maxCached-1)].Load() - 1; a.slots[s].claim(0, 1) {
				got = s
				break
			}
		}
		if got == noSlot && limited {
			o.leases[k.id].left.Add(int64(a.sizes[cl]))
		}
	}
	if pinned {
		procUnpin()
	} else {
		k.mu.Unlock()
	}
	if got == noSlot {
		return RDMABuffer{}
	}
	if a.chunks[got>>a.chunkShift].class != cl {
		// An old entry, and the chunk was carved otherwise since.
		a.giveBackStray(got, o, limited, int64(a.sizes[cl]))
		return RDMABuffer{}
	}
	return a.take(got, n, id, limited)
}

// giveBackStray returns a slot of another class than was asked for.
func (a *Arena) giveBackStray(s uint32, o *owner, charged bool, size int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if charged {
		o.refund(size)
	}
	a.slots[s].claim(1, inChunk)
	a.freeSlot(s)
	a.settle()
}

// take makes the handle of a slot that was got, with count 1, for n bytes.
func (a *Arena) take(s uint32, n int, o Owner, charged bool) RDMABuffer {
	st := &a.slots[s]
	if m := metaOf(o, charged, a.now.Load()); m != st.meta.Load() || invariants || a.tracer != nil {
		return a.takeSlow(s, n, o, m)
	}
	return RDMABuffer{a: a, gen: gen(st.state.Load()), slot: uint64(s), view: uint64(uint32(n))}
}

// takeSlow is take for a slot that had other meta, and in builds and modes that
// check more.
func (a *Arena) takeSlow(s uint32, n int, o Owner, m uint64) RDMABuffer {
	if invariants {
		a.checkPoison(s)
	}
	st := &a.slots[s]
	if a.scrub && ownerOf(st.meta.Load()) != o {
		clear(a.slotMem(s))
	}
	st.meta.Store(m)
	b := RDMABuffer{a: a, gen: gen(st.state.Load()), slot: uint64(s), view: uint64(uint32(n))}
	if a.tracer != nil {
		b.gen |= a.tracer.get(b, o, a.now.Load()) << tokenShift
	}
	return b
}

// put takes back a slot whose last reference has just gone. m is its meta and
// cl its class, read while it was referenced: it may be somebody else's now.
func (a *Arena) put(s uint32, m uint64, cl uint8) {
	var o *owner // whose quota it was
	if metaCharged(m) {
		o = a.owner(ownerOf(m))
	}
	if a.chunks[s>>a.chunkShift].pool != poolGeneral || a.gate.Load() != 0 || o != nil && o.over.Load() {
		a.putSlow(s, m, cl)
		return
	}
	pinned := canPin && !a.cores.portable
	var k *core
	if pinned {
		p := procPin()
		if p >= len(a.cores.all) {
			procUnpin()
			a.putSlow(s, m, cl)
			return
		}
		k = &a.cores.all[p]
	} else {
		k = a.cores.lock()
	}
	excess := false
	if o != nil {
		excess = o.credit(k, int64(a.sizes[cl]))
	}
	if !k.push(cl, s, a.cores.limit[cl]) {
		a.flush(k, s, cl, o, excess)
		return
	}
	if pinned {
		procUnpin()
	} else {
		k.mu.Unlock()
	}
	if excess || a.gate.Load() != 0 {
		a.putExcess(o, excess)
	}
}

// flush takes half of the full cache k, and slot s, back to their chunks. It
// unpins.
func (a *Arena) flush(k *core, s uint32, cl uint8, o *owner, excess bool) {
	var some [maxCached/2 + 1]uint32
	n := k.drop(cl, some[:(a.cores.limit[cl]+1)/2])
	a.cores.unpin(k)
	some[n] = s
	a.mu.Lock()
	defer a.mu.Unlock()
	a.uncache(some[:n+1])
	if excess {
		a.recall(o)
	}
	a.settle()
}

// putSlow takes a slot back to its chunk.
func (a *Arena) putSlow(s uint32, m uint64, cl uint8) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if metaCharged(m) {
		a.owner(ownerOf(m)).refund(int64(a.sizes[cl]))
	}
	a.uncache([]uint32{s})
	if a.gate.Load() != 0 {
		a.serve()
		a.checkIdle()
	}
}

// putExcess is what put has to do beyond the caches: a lease has grown too
// much, or somebody waits.
func (a *Arena) putExcess(o *owner, excess bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if excess {
		a.recall(o)
	}
	a.settle()
}

// retire takes a slot out of use for ever: it has no generation left.
func (a *Arena) retire(m uint64, cl uint8) {
	a.mu.Lock()
	defer a.mu.Unlock()
	size := int64(a.sizes[cl])
	if metaCharged(m) {
		a.owner(ownerOf(m)).refund(size)
	}
	a.out -= size
	a.total -= size
	a.retired += size
	a.settle()
}

// checkIdle tells Close that everything is back. Under Arena.mu.
func (a *Arena) checkIdle() {
	if a.closing && a.out == 0 {
		select {
		case <-a.idle:
		default:
			close(a.idle)
		}
	}
}

// slotMem is the memory of a slot, which is in use.
func (a *Arena) slotMem(s uint32) []byte {
	return unsafe.Slice((*byte)(a.addr(s)), a.sizes[a.chunks[s>>a.chunkShift].class])
}

// addr is where a slot is in memory.
func (a *Arena) addr(s uint32) unsafe.Pointer {
	return unsafe.Add(a.regions[s>>a.rgnShift].base, a.offset(s))
}

// offset is where a slot is in its region.
func (a *Arena) offset(s uint32) uint64 {
	return uint64(s&(1<<a.rgnShift-1)) << a.unitBits
}
