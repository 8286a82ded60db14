package buffer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/argonaut-rdma/argonaut/verbs"
)

// RegCacheConfig is what a RegCache is made of.
type RegCacheConfig struct {
	// PDs are where memory is registered. Each outlives the cache, unless Detach
	// comes first. With none, memory is for streams only.
	PDs []*verbs.PD
	// MaxIdle is how many registrations the cache keeps that nobody uses, and
	// MaxIdleBytes how many bytes in them; the ones not used for longest go
	// first. Default 64 and 1 GiB; negative: none.
	MaxIdle      int
	MaxIdleBytes int64
	// MaxPieces is how many pieces of memory can be registered at a time, per
	// PD. Default 4096.
	MaxPieces int
	// Progress and Logger are as in Config.
	Progress func(Progress)
	Logger   *slog.Logger
}

// maxPiece is the most that one piece of memory has: what an RDMABuffer can name.
const maxPiece = 1 << 30

// registrars is how many register at a time, at most.
const registrars = 1 << 20

// RegCache registers memory that the caller owns, and keeps registrations for
// the next use: a registration costs thousands of times what it saves. Memory is
// known by its handle (Memory) only, never by its address: what is mapped at an
// address changes without anybody being told. Its methods are safe for
// concurrent use.
type RegCache struct {
	a     *Arena // without memory of its own: each slot is a piece of the caller's
	piece uint64 // bytes, of all but the last piece of a Memory
	pins  bool
	cfg   RegCacheConfig

	// leave is held while a registration is given up, before mu; pds while memory
	// is registered (one of it) and while a PD is detached (all), before leave.
	// Both are held over calls of the device, so they are waited for with a
	// context.
	leave, pds *semaphore.Weighted

	mu        sync.Mutex
	closed    bool
	memories  map[*Memory]struct{}
	free      []uint32 // slots
	of        []*entry // by slot
	oldest    *entry   // of those without uses
	newest    *entry
	idle      int
	idleBytes int64
	bytes     int64
	lastGen   uint64
	hits      uint64
	misses    uint64
	evicted   uint64
}

var (
	errCacheClosed  = fmt.Errorf("buffer: the RegCache is closed: %w", ErrClosed)
	errMemoryClosed = fmt.Errorf("buffer: the Memory is closed or closing: %w", ErrClosed)
)

// NewRegCache makes a cache for the PDs of cfg. Errors: ErrInvalid.
func NewRegCache(cfg RegCacheConfig) (*RegCache, error) {
	def := func(v *int, d int) {
		if *v == 0 {
			*v = d
		}
		*v = max(*v, 0)
	}
	def(&cfg.MaxIdle, 64)
	def(&cfg.MaxPieces, 4096)
	if cfg.MaxIdleBytes == 0 {
		cfg.MaxIdleBytes = 1 << 30
	}
	if cfg.MaxPieces == 0 || cfg.MaxPieces > 1<<24 {
		return nil, fmt.Errorf("%w: RegCacheConfig.MaxPieces: give from 1 to %d", ErrInvalid, 1<<24)
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	c := &RegCache{cfg: cfg, piece: maxPiece, memories: map[*Memory]struct{}{}, of: make([]*entry, cfg.MaxPieces),
		leave: semaphore.NewWeighted(1), pds: semaphore.NewWeighted(registrars)}
	a := &Arena{
		cfg: Config{Progress: cfg.Progress, Logger: cfg.Logger}, sizes: []int{0}, foreign: c,
		slots: make([]slot, cfg.MaxPieces), regions: make([]region, cfg.MaxPieces), chunks: make([]chunk, cfg.MaxPieces),
		start: time.Now(), attachSem: make(chan struct{}, 1), idle: make(chan struct{}),
	}
	a.owners.Store(&[]*owner{{name: "memory of the caller"}, {name: "control"}})
	var ats []*attachment
	for _, pd := range cfg.PDs {
		caps := pd.Device().Caps()
		if caps.MaxMRSize != 0 && caps.MaxMRSize < c.piece {
			c.piece = caps.MaxMRSize
		}
		c.pins = c.pins || caps.Pins
		at := &attachment{pd: pd, keys: keysOf(caps, false), regs: make([]registration, cfg.MaxPieces)}
		if at.keys == KeyWindow {
			at.acc = verbs.AccessMWBind
		}
		ats = append(ats, at)
	}
	if c.piece > Page {
		c.piece &^= Page - 1
	}
	a.attachments.Store(&ats)
	for i := range a.chunks {
		a.chunks[i] = chunk{class: noClass, pool: poolForeign}
		a.slots[i].state.Store(1<<countBits | inChunk)
		c.free = append(c.free, uint32(cfg.MaxPieces-1-i))
	}
	c.a = a
	return c, nil
}

// list and unlist keep the entries without uses in the order in which they came.
// Under RegCache.mu.
func (c *RegCache) list(e *entry) {
	e.prev, e.next = c.newest, nil
	if c.newest != nil {
		c.newest.next = e
	} else {
		c.oldest = e
	}
	c.newest = e
	c.idle++
	c.idleBytes += int64(len(e.m.mem))
}

func (c *RegCache) unlist(e *entry) {
	if e.prev != nil {
		e.prev.next = e.next
	} else {
		c.oldest = e.next
	}
	if e.next != nil {
		e.next.prev = e.prev
	} else {
		c.newest = e.prev
	}
	e.prev, e.next = nil, nil
	c.idle--
	c.idleBytes -= int64(len(e.m.mem))
}

// trim gives up the oldest registrations that are not in use beyond what the
// cache may keep.
func (c *RegCache) trim() {
	c.mu.Lock()
	over := c.idle > c.cfg.MaxIdle || c.idleBytes > max(c.cfg.MaxIdleBytes, 0)
	c.mu.Unlock()
	if over {
		c.evict(context.Background(), c.cfg.MaxIdle)
	}
}

// evict gives up registrations that are not in use, the oldest first, until
// keep are left, or all if keep is negative; it returns how many.
func (c *RegCache) evict(ctx context.Context, keep int) (n int) {
	c.mu.Lock()
	e := c.oldest
	for e != nil && (c.idle > keep || c.idleBytes > max(c.cfg.MaxIdleBytes, 0)) {
		next := e.next
		if len(c.take(e)) > 0 { // a list or posted work has it
			e = next
			continue
		}
		c.evicted++
		c.mu.Unlock()
		if err := c.giveUp(ctx, e); err != nil {
			c.cfg.Logger.Warn("a registration could not be given up", "err", err)
		} else {
			n++
		}
		c.mu.Lock()
		e = c.oldest // the list has changed meanwhile
	}
	c.mu.Unlock()
	return n
}

// take makes a live entry that nothing uses a leaving one, or says what uses it.
// Under RegCache.mu.
func (c *RegCache) take(e *entry) (holders []Holder) {
	if e.uses > 0 {
		holders = append(holders, Holder{Owner: "Registration", Addr: e.m.addr(), Len: e.m.size(), Refs: e.uses})
	}
	for _, s := range e.slots {
		st := &c.a.slots[s]
		for e.uses > 0 || !st.claim(1, 0) {
			n := count(st.state.Load())
			if n == 1 && e.uses == 0 {
				continue // the last reference has just come back
			}
			if n == 1 {
				break
			}
			n-- // the entry's own
			h := Holder{
				Owner: "list, grant or posted work", Age: time.Since(c.a.start) - time.Duration(bornAt(st.meta.Load()))*time.Second,
				Addr: c.a.regions[s].addr(), Len: uint64(len(c.a.regions[s].mem)), Refs: int(n), Posted: int(st.posted.Load()),
			}
			if ats := *c.a.attachments.Load(); len(ats) > 0 {
				if mr := ats[0].regs[s].mr.Load(); mr != nil {
					h.LKey = mr.LKey()
				}
			}
			holders = append(holders, h)
			break
		}
	}
	if len(holders) > 0 || e.uses > 0 {
		for _, s := range e.slots {
			c.a.slots[s].claim(0, 1)
		}
		return holders
	}
	c.unlist(e)
	e.state, e.ready = entryLeaving, make(chan struct{})
	return nil
}

// tryGiveUp gives e up, or says what uses it, or what failed.
func (c *RegCache) tryGiveUp(ctx context.Context, e *entry) (holders []Holder, err error) {
	c.mu.Lock()
	switch e.state {
	case entryNew:
		ready := e.ready
		c.mu.Unlock()
		select {
		case <-ready:
			return nil, nil // come again
		case <-ctx.Done():
			return []Holder{{Owner: "Register", Addr: e.m.addr(), Len: e.m.size()}}, nil
		}
	case entryGone:
		c.mu.Unlock()
		return nil, nil
	case entryLive:
		holders = c.take(e)
	}
	c.mu.Unlock()
	if holders != nil {
		return holders, nil
	}
	return nil, c.giveUp(ctx, e)
}

// giveUp deregisters e, which is leaving, everywhere. On error it goes on
// leaving, and is called again.
func (c *RegCache) giveUp(ctx context.Context, e *entry) error {
	if err := c.leave.Acquire(ctx, 1); err != nil { // so that each deregistration is looked at once
		return fmt.Errorf("buffer: another deregistration is still running: %w", err)
	}
	defer c.leave.Release(1)
	c.mu.Lock()
	if e.state != entryLeaving {
		c.mu.Unlock()
		return nil
	}
	slots := e.slots
	c.mu.Unlock()
	ats := *c.a.attachments.Load()
	var jobs []*job
	var results []RegionResult
	device := ""
	for _, s := range slots {
		for _, at := range slices.Concat(ats, c.a.detaching) {
			if reg := &at.regs[s]; reg.registered() {
				mr := reg.mr.Load()
				device = at.pd.Device().Name()
				jobs = append(jobs, reg.job)
				results = append(results, RegionResult{Region: int(s), Addr: mr.Addr(), Length: mr.Length(), LKey: mr.LKey()})
			}
		}
	}
	var errs []error
	if len(jobs) > 0 {
		errs = batch(ctx, deregistering, inDevice, jobs)
	}
	for n, err := range errs {
		results[n].Err, results[n].Took = err, jobs[n].took
	}
	if errors.Join(errs...) != nil {
		return &BatchError{Op: "deregister", Device: device, Results: results}
	}
	for _, s := range slots {
		for _, at := range slices.Concat(ats, c.a.detaching) {
			at.regs[s].clear()
		}
		r := &c.a.regions[s]
		r.mem, r.base = nil, nil
		st := &c.a.slots[s]
		g := gen(st.state.Load()) + 1
		st.state.Store(g<<countBits | inChunk)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := len(slots) - 1; i >= 0; i-- {
		if s := slots[i]; gen(c.a.slots[s].state.Load()) >= maxGen { // not used again
			c.of[s] = nil
			e.slots = append(e.slots[:i:i], e.slots[i+1:]...)
		}
	}
	c.bytes -= int64(len(e.m.mem))
	e.state = entryGone
	c.forget(e)
	close(e.ready)
	return nil
}

// released is called when but one reference to a slot is left.
func (c *RegCache) released(s uint32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e := c.of[s]; e != nil && e.m.closed {
		e.m.poke()
	}
}

// Detach deregisters all that the cache has on pd, and registers nothing there
// any more, so that pd can be closed; memory and lists of it stay as they are
// elsewhere. No posted work may name the memory on pd and no grant be live
// there: otherwise the error matches verbs.ErrBusy and everything stays. What
// the device fails to deregister is in the *BatchError; call Detach again for it.
// Detaching what is not attached returns nil.
func (c *RegCache) Detach(ctx context.Context, pd *verbs.PD) error {
	if err := c.pds.Acquire(ctx, registrars); err != nil {
		return fmt.Errorf("buffer: a registration or another Detach is still running: %w", err)
	}
	defer c.pds.Release(registrars)
	if err := c.leave.Acquire(ctx, 1); err != nil {
		return fmt.Errorf("buffer: a deregistration is still running: %w", err)
	}
	defer c.leave.Release(1)
	return c.a.detach(ctx, pd)
}

// Writable reports whether b's memory may be written: false for memory of the
// caller that is registered without AccessLocalWrite, and may be mapped read-only.
func (b RDMABuffer) Writable() bool {
	c := b.a.foreign
	if c == nil {
		return true
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.of[b.num()]
	return e != nil && e.acc&verbs.AccessLocalWrite != 0
}

// RegCacheStats are the counters and gauges of a RegCache.
type RegCacheStats struct {
	Memories   int   // handles that are not closed
	Bytes      int64 // registered
	Idle       int   // registrations that nobody uses
	IdleBytes  int64
	FreePieces int
	Hits       uint64 // Registers that found it registered
	Misses     uint64
	Evicted    uint64
}

// Stats returns the counters and gauges.
func (c *RegCache) Stats() RegCacheStats {
	c.mu.Lock()
	defer c.mu.Unlock()
	return RegCacheStats{len(c.memories), c.bytes, c.idle, c.idleBytes, len(c.free), c.hits, c.misses, c.evicted}
}

// Close closes every Memory and the cache: see Memory.Close. On error call it
// again; what it could not deregister has to stay mapped.
func (c *RegCache) Close(ctx context.Context) error {
	c.mu.Lock()
	c.closed = true
	var ms []*Memory
	for m := range c.memories {
		ms = append(ms, m)
	}
	c.mu.Unlock()
	var errs []error
	for _, m := range ms {
		if err := m.Close(ctx); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
