package buffer

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"time"
	"unsafe"

	"github.com/argonaut-rdma/argonaut/verbs"
)

// Memory is a handle to memory that the caller owns: of mmap (anonymous, shared,
// memfd, hugetlbfs; regular files for reading), or pinned memory of the Go heap.
// It is registered by Register, again and again, and the RegCache keeps the
// registration in between.
//
// The rule: the memory stays mapped, at the size and with the pages it has,
// until Close has returned nil. A device goes on using the pages that it has
// pinned, so whoever unmaps, remaps, truncates, punches or discards
// (MADV_DONTNEED) before that has a device write to pages that nobody sees, or a
// fault. Check finds that; in builds with the tag invariants Register, List and
// Close look, too, and panic.
//
// Its methods are safe for concurrent use.
type Memory struct {
	c    *RegCache
	mem  []byte
	pin  *runtime.Pinner // AddPinned
	was  []mapping       // when it was added
	wake chan struct{}   // poked when something of it is given back

	// Under RegCache.mu.
	closed  bool
	entries []*entry
}

// entry is the registration of a Memory with some access rights.
type entry struct {
	m     *Memory
	acc   verbs.Access
	slots []uint32 // one per piece
	state entryState
	ready chan struct{} // closed when state is no longer entryNew
	err   error         // why it is entryGone
	uses  int           // Registrations that are not closed
	gen   uint64        // counts registrations of the cache
	took  time.Duration
	prev  *entry // in the list of those without uses: towards the oldest
	next  *entry
}

type entryState uint8

const (
	entryNew     entryState = iota // being registered
	entryLive                      //
	entryLeaving                   // being deregistered; or that failed
	entryGone                      //
)

// Add makes a handle for mem, which is of mmap; nothing is registered yet. The
// start and the length need not be aligned: the pages of both ends are
// registered, but the keys are for mem's bytes only. Memory that is registered
// twice, by two handles, is so on the device, too. Errors: ErrInvalid,
// *MappingError (it is not mapped, or is of the Go heap: see AddPinned),
// ErrClosed.
func (c *RegCache) Add(mem []byte) (*Memory, error) {
	if len(mem) == 0 {
		return nil, fmt.Errorf("%w: no memory", ErrInvalid)
	}
	addr := uint64(uintptr(unsafe.Pointer(unsafe.SliceData(mem))))
	if ofGoHeap(addr) {
		return nil, &MappingError{
			Addr: addr, Length: uint64(len(mem)), Reason: "it is of the Go heap, which moves and is returned to the system as the runtime likes",
			Remedy: "use buffers of an Arena, or AddPinned",
		}
	}
	return c.add(mem, nil)
}

// AddPinned is Add for memory of the Go heap, which it keeps from being moved or
// collected until Close has returned nil (runtime.Pinner). This is the exception
// for memory that can not come from an Arena: it is of small pages, shares pages
// with other objects, which a device that pins then pins too, and makes the
// garbage collector's work harder. mem must hold no pointers.
func (c *RegCache) AddPinned(mem []byte) (*Memory, error) {
	if len(mem) == 0 {
		return nil, fmt.Errorf("%w: no memory", ErrInvalid)
	}
	pin := new(runtime.Pinner)
	pin.Pin(unsafe.SliceData(mem))
	m, err := c.add(mem, pin)
	if err != nil {
		pin.Unpin()
	}
	return m, err
}

func (c *RegCache) add(mem []byte, pin *runtime.Pinner) (*Memory, error) {
	m := &Memory{c: c, mem: mem, pin: pin, wake: make(chan struct{}, 1)}
	if was, ok := mappings(m.addr(), m.size()); ok && pin == nil {
		if err := checkRights(was, m.addr(), m.size(), false); err != nil {
			return nil, err
		}
		m.was = was
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, errCacheClosed
	}
	c.memories[m] = struct{}{}
	return m, nil
}

func (m *Memory) addr() uint64 { return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(m.mem)))) }
func (m *Memory) size() uint64 { return uint64(len(m.mem)) }

// Check says whether the memory is still what it was when it was added: mapped,
// of the same file, not truncated, and on devices that pin, not discarded. It
// looks at every page. The error is a *MappingError. On systems other than Linux
// it knows nothing and returns nil.
func (m *Memory) Check() error {
	if m.was == nil {
		return nil // pinned, or not known
	}
	now, ok := mappings(m.addr(), m.size())
	if !ok {
		return nil
	}
	if err := checkRights(now, m.addr(), m.size(), false); err != nil {
		return err
	}
	for i := range now {
		same := func(o mapping) bool { return o.lo < now[i].hi && now[i].lo < o.hi && !o.sameAs(&now[i]) }
		if slices.ContainsFunc(m.was, same) {
			return &MappingError{
				Addr: max(now[i].lo, m.addr()), Length: min(now[i].hi, m.addr()+m.size()) - max(now[i].lo, m.addr()), Path: now[i].path,
				Reason: "something else is mapped there now", Remedy: "close its Memory before unmapping it",
			}
		}
	}
	pinned := false
	m.c.mu.Lock()
	for _, e := range m.entries {
		pinned = pinned || e.state == entryLive && m.c.pins
	}
	m.c.mu.Unlock()
	return checkPages(m.addr(), m.size(), pinned)
}

// mustCheck is Check in checked builds.
func (m *Memory) mustCheck() {
	if invariants {
		if err := m.Check(); err != nil {
			panic(err)
		}
	}
}

// Registration is one use of registered memory. It keeps the memory registered
// until Close, and so do the references of its lists and of posted work.
type Registration struct {
	e      *entry
	cached bool
	closed bool // under RegCache.mu
}

// Register registers the memory on every PD of the cache with the local rights
// acc: none (it can be sent, and be granted to the peer for reading), or
// AccessLocalWrite. If the cache has it so, nothing is registered. Memory larger
// than a device's MaxMRSize is registered in pieces. When a device has no room
// left, registrations that are not in use are given up for it. Remote access is
// given by RDMABuffer.Grant only. Errors: *MappingError, *BatchError (all has
// been rolled back, or what is left is given up by the next Register or Close),
// ErrInvalid, ErrClosed, ErrExhausted (RegCacheConfig.MaxPieces), ctx's.
func (m *Memory) Register(ctx context.Context, acc verbs.Access) (*Registration, error) {
	if acc&^verbs.AccessLocalWrite != 0 {
		return nil, fmt.Errorf("%w: access %v: memory is registered for local access; use RDMABuffer.Grant for the peer", ErrInvalid, acc)
	}
	m.mustCheck()
	c := m.c
	for {
		c.mu.Lock()
		if m.closed {
			c.mu.Unlock()
			return nil, errMemoryClosed
		}
		var e *entry
		for _, o := range m.entries {
			if o.acc == acc {
				e = o
			}
		}
		if e == nil {
			e = &entry{m: m, acc: acc, ready: make(chan struct{}), uses: 1}
			m.entries = append(m.entries, e)
			c.misses++
			c.mu.Unlock()
			return c.fill(ctx, e)
		}
		switch e.state {
		case entryLive:
			if e.uses == 0 {
				c.unlist(e)
			}
			e.uses++
			c.hits++
			c.mu.Unlock()
			return &Registration{e: e, cached: true}, nil
		case entryLeaving:
			c.mu.Unlock()
			// Somebody gives it up, or could not.
			if err := c.giveUp(ctx, e); err != nil {
				return nil, err
			}
		default:
			ready := e.ready
			c.mu.Unlock()
			select {
			case <-ready:
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}
	}
}

// fill registers e, which is new.
func (c *RegCache) fill(ctx context.Context, e *entry) (*Registration, error) {
	begin := time.Now()
	err := c.register(ctx, e)
	if err != nil && e.slots == nil && (errors.Is(err, verbs.ErrLimit) || errors.Is(err, verbs.ErrMemlock) || errors.Is(err, ErrExhausted)) && c.evict(ctx, -1) > 0 {
		err = c.register(ctx, e)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	e.took = time.Since(begin)
	ready := e.ready
	switch {
	case err == nil:
		e.state = entryLive
		c.lastGen++
		e.gen = c.lastGen
	case e.slots != nil: // some of it is still registered
		e.state, e.uses, e.ready = entryLeaving, 0, make(chan struct{})
	default:
		e.state, e.err = entryGone, err
		c.forget(e)
	}
	if e.state != entryGone {
		c.bytes += int64(len(e.m.mem))
	}
	close(ready)
	if err != nil {
		return nil, err
	}
	return &Registration{e: e}, nil
}

// forget takes an entry that is not registered out. Under RegCache.mu.
func (c *RegCache) forget(e *entry) {
	e.m.entries = slices.DeleteFunc(e.m.entries, func(o *entry) bool { return o == e })
	for _, s := range e.slots {
		c.of[s] = nil
		c.free = append(c.free, s)
	}
	e.slots = nil
	e.m.poke()
}

// register makes the pieces of e and registers them, or none. If that can not be
// rolled back, e keeps its slots.
func (c *RegCache) register(ctx context.Context, e *entry) error {
	m := e.m
	if m.was != nil {
		if err := checkRights(m.was, m.addr(), m.size(), e.acc&verbs.AccessLocalWrite != 0); err != nil {
			return err
		}
	}
	n := int((m.size() + c.piece - 1) / c.piece)
	c.mu.Lock()
	if n > len(c.free) {
		have := len(c.free)
		c.mu.Unlock()
		return fmt.Errorf("%w: %d pieces of memory are wanted, %d are left: raise RegCacheConfig.MaxPieces", ErrExhausted, n, have)
	}
	slots := slices.Clone(c.free[len(c.free)-n:])
	c.free = c.free[:len(c.free)-n]
	c.mu.Unlock()
	if err := c.pds.Acquire(ctx, 1); err != nil {
		c.mu.Lock()
		c.free = append(c.free, slots...)
		c.mu.Unlock()
		return fmt.Errorf("buffer: a Detach is still running: %w", err)
	}
	defer c.pds.Release(1)
	regions := make([]int, n)
	for i, s := range slots {
		lo := uint64(i) * c.piece
		part := m.mem[lo:min(lo+c.piece, m.size())]
		r := &c.a.regions[s]
		r.mem, r.base = part, unsafe.Pointer(unsafe.SliceData(part))
		regions[i] = int(s)
	}
	if err := c.a.register(ctx, "register", *c.a.attachments.Load(), regions, e.acc); err != nil {
		c.mu.Lock()
		if b, ok := errors.AsType[*BatchError](err); ok && !b.RolledBack {
			e.slots = slots
		} else {
			c.free = append(c.free, slots...)
		}
		c.mu.Unlock()
		if errors.Is(err, errFault) {
			err = &MappingError{
				Addr: m.addr(), Length: m.size(), Err: err,
				Reason: "the kernel refuses to pin it (EFAULT): it is not mapped any more, or it is of a file whose pages it does not pin for this access (since Linux 6.5 regular files for writing)",
				Remedy: "register it without AccessLocalWrite, or use a memfd, hugetlbfs or anonymous memory",
			}
		}
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	e.slots = slots
	for _, s := range slots {
		c.of[s] = e
		st := &c.a.slots[s]
		st.meta.Store(metaOf(Anonymous, false, 0, c.a.now.Load()))
		st.state.Store(gen(st.state.Load())<<countBits | 1) // the entry's own reference
	}
	return nil
}

// List returns a list over all of the memory, with references of its own; or
// over a part of it, see List.Split and Truncate.
func (r *Registration) List() *List {
	e := r.e
	e.m.mustCheck()
	c := e.m.c
	c.mu.Lock()
	defer c.mu.Unlock()
	if r.closed {
		panic("buffer: List of a Registration that is closed")
	}
	l := newList()
	for _, s := range e.slots {
		b := RDMABuffer{a: c.a, gen: gen(c.a.slots[s].state.Load()), slot: uint64(s), view: uint64(uint32(len(c.a.regions[s].mem)))}
		l.Append(b.Retain())
	}
	return l
}

// Generation numbers the registrations of a cache: it is another one when the
// memory has been registered anew.
func (r *Registration) Generation() uint64 { return r.e.gen }

// Cached reports whether the cache had it.
func (r *Registration) Cached() bool { return r.cached }

// Close ends the use. What is registered stays in the cache for the next one,
// until others need the room: then this call deregisters the oldest, which may
// take a while. A second Close does nothing.
func (r *Registration) Close() {
	e := r.e
	e.m.mustCheck()
	c := e.m.c
	c.mu.Lock()
	if r.closed {
		c.mu.Unlock()
		return
	}
	r.closed = true
	e.uses--
	if e.uses == 0 {
		c.list(e)
	}
	e.m.poke()
	c.mu.Unlock()
	c.trim()
}

func (m *Memory) poke() {
	select {
	case m.wake <- struct{}{}:
	default:
	}
}

// Close deregisters the memory everywhere, once no Registration of it is open
// and no list, grant or posted work names it; it waits for that until ctx ends.
// On error, a *LeakError that says who is in the way, the memory is still
// registered, in part at least, and has to stay mapped: call Close again. When
// it has returned nil, no device has anything to do with the memory. No more
// Registrations are given meanwhile.
func (m *Memory) Close(ctx context.Context) error {
	c := m.c
	c.mu.Lock()
	m.closed = true
	c.mu.Unlock()
	m.mustCheck()
	for {
		c.mu.Lock()
		entries := slices.Clone(m.entries)
		c.mu.Unlock()
		if len(entries) == 0 {
			break
		}
		var holders []Holder
		var failed []error
		for _, e := range entries {
			h, err := c.tryGiveUp(ctx, e)
			holders = append(holders, h...)
			if err != nil {
				failed = append(failed, err)
			}
		}
		switch {
		case len(failed) > 0:
			return &LeakError{What: "memory", Holders: holders, Regions: failed, Quarantined: int64(len(m.mem))}
		case len(holders) == 0:
			continue
		}
		select {
		case <-m.wake:
		case <-ctx.Done():
			return &LeakError{What: "memory", Holders: holders, Regions: []error{ctx.Err()}, Quarantined: int64(len(m.mem))}
		}
	}
	c.mu.Lock()
	_, mine := c.memories[m]
	delete(c.memories, m)
	c.mu.Unlock()
	if mine && m.pin != nil {
		m.pin.Unpin()
	}
	return nil
}
