package buffer

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// growth is what an arena needs that begins smaller than its budget. A goroutine
// of its own, the keeper, adds and gives up regions, so that nobody who gets or
// releases a buffer ever maps, touches or registers memory.
type growth struct {
	keeperDone chan struct{} // closed when the keeper has ended, or there is none
	stopKeeper context.CancelFunc
	wake       chan struct{} // pokes the keeper

	// Under Arena.mu.
	freeChunks int   // chunks that are free, but for those of the reserve
	missed     int64 // bytes of the largest TryGet that found no memory since the arena grew
	failed     error // why it can not grow for now
	failures   uint64
	grown      uint64
	shrunk     uint64
	slowest    time.Duration // growth by one region
}

// retryGrowth is how long the arena does not try to grow after it failed to.
const retryGrowth = time.Second

// startKeeper starts the keeper, if the arena can grow. Close ends it.
func (a *Arena) startKeeper() {
	a.keeperDone = make(chan struct{})
	if a.cfg.Initial == a.cfg.Budget {
		a.stopKeeper = func() {}
		close(a.keeperDone)
		return
	}
	a.wake = make(chan struct{}, 1)
	var ctx context.Context
	ctx, a.stopKeeper = context.WithCancel(context.Background())
	go a.keep(ctx)
}

// carve and uncarve count the chunks in use. Under Arena.mu.
func (a *Arena) carve(chunk uint32) {
	if a.chunks[chunk].pool != poolReserve {
		a.freeChunks--
		a.wantMemory()
	}
	r := &a.regions[chunk>>(a.rgnShift-a.chunkShift)]
	r.carved++
	r.idle = time.Time{}
}

func (a *Arena) uncarve(chunk uint32) {
	if a.chunks[chunk].pool != poolReserve {
		a.freeChunks++
	}
	a.regions[chunk>>(a.rgnShift-a.chunkShift)].carved--
}

// wantMemory wakes the keeper if the arena should grow. Under Arena.mu.
func (a *Arena) wantMemory() {
	if a.wake != nil && a.shouldGrow() {
		select {
		case a.wake <- struct{}{}:
		default:
		}
	}
}

// shouldGrow reports whether there is too little memory and may be more. Under
// Arena.mu.
func (a *Arena) shouldGrow() bool {
	if a.closing || a.failed != nil || a.nextRegion() < 0 {
		return false
	}
	if free := int64(a.freeChunks) * a.chunkSize; free < a.cfg.LowWater || free < a.missed {
		return true
	}
	for i := range a.lines {
		if a.lines[i].first != nil {
			return true
		}
	}
	return false
}

// canGrow reports whether there may be more memory without anybody releasing.
func (a *Arena) canGrow() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.wake != nil && a.failed == nil && a.nextRegion() >= 0
}

// nextRegion is a region that can be added, or -1. Under Arena.mu.
func (a *Arena) nextRegion() int {
	next := -1
	for i := range a.regions {
		switch a.regions[i].state {
		case regionLeaving: // it may be registered still
			return i
		case regionNone:
			if next < 0 {
				next = i
			}
		}
	}
	return next
}

// keep is the keeper.
func (a *Arena) keep(ctx context.Context) {
	defer close(a.keeperDone)
	// Idle regions are looked at a few times in ShrinkAfter.
	t := time.NewTicker(min(max(a.cfg.ShrinkAfter/4, 10*time.Millisecond), retryGrowth))
	defer t.Stop()
	var retry time.Time
	for {
		select {
		case <-a.wake:
		case <-t.C:
		case <-ctx.Done():
			return
		}
		if a.lockAttach(ctx) != nil {
			return
		}
		if now := time.Now(); now.After(retry) {
			a.mu.Lock()
			a.failed = nil
			a.mu.Unlock()
		}
		for {
			a.mu.Lock()
			grow, i := a.shouldGrow(), a.nextRegion()
			a.mu.Unlock()
			if !grow {
				break
			}
			begin := time.Now()
			err := a.addRegion(ctx, i)
			if ctx.Err() != nil {
				break
			}
			a.hasGrown(i, time.Since(begin), err)
			if err != nil {
				retry = time.Now().Add(retryGrowth)
			}
		}
		a.failFull()
		if a.cfg.ShrinkAfter > 0 && ctx.Err() == nil {
			a.shrink(ctx)
		}
		a.unlockAttach()
	}
}

// addRegion maps and registers region i and puts its chunks to use. Under
// attachSem.
func (a *Arena) addRegion(ctx context.Context, i int) error {
	ats := *a.attachments.Load()
	// A region that could not be given up is still registered here and there.
	r := &a.regions[i]
	if r.state == regionNone {
		a.mu.Lock()
		have := a.total
		a.mu.Unlock()
		var m region
		if err := a.cfg.mapMemory(ctx, &m, a.cfg.regionBytes(i), have); err != nil {
			return err
		}
		a.mu.Lock()
		r.base, r.mem, r.backing, r.unmap = m.base, m.mem, m.backing, m.unmap
		r.state = regionLeaving // until it is whole
		a.mu.Unlock()
		touch := a.cfg.Prefault
		for _, at := range ats {
			touch = touch || at.pd.Device().Caps().Pins
		}
		if touch {
			if err := a.touch(ctx, []int{i}); err != nil {
				return errors.Join(err, a.free(r))
			}
		}
		if invariants {
			poison(r.mem)
		}
	}
	var todo []*attachment
	for _, at := range ats {
		if !at.regs[i].registered() {
			todo = append(todo, at)
		}
	}
	if err := a.register(ctx, "grow", todo, []int{i}, 0); err != nil {
		return errors.Join(err, a.leave(ctx, i))
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	r.state = regionLive
	a.open(i)
	a.serve()
	return nil
}

// open makes the chunks of region i free. Under Arena.mu.
func (a *Arena) open(i int) {
	r := &a.regions[i]
	r.carved, r.idle = 0, time.Time{}
	r.kept.Store(false)
	first, n := a.chunksOf(i)
	for c := first + n; c > first; c-- {
		pool := a.chunks[c-1].pool
		a.pools[pool].free.add(a.chunks, c-1)
		if pool != poolReserve {
			a.freeChunks++
		}
	}
	a.total += int64(n) * a.chunkSize
}

// chunksOf are the chunks of region i.
func (a *Arena) chunksOf(i int) (first, n uint32) {
	per := uint32(1) << (a.rgnShift - a.chunkShift)
	first = uint32(i) * per
	return first, min(per, uint32(len(a.chunks))-first)
}

// hasGrown settles an attempt to add region i.
func (a *Arena) hasGrown(i int, took time.Duration, err error) {
	a.mu.Lock()
	if err != nil || int64(a.freeChunks)*a.chunkSize >= a.missed || a.nextRegion() < 0 {
		a.missed = 0
	}
	if err == nil {
		a.grown++
		a.slowest = max(a.slowest, took)
	} else {
		a.failures++
		a.failed = fmt.Errorf("buffer: the arena can not grow: %w", err)
	}
	total := a.total
	a.mu.Unlock()
	if err == nil {
		a.cfg.Logger.Info("arena grew", "region", i, "bytes", a.cfg.regionBytes(i), "total", total, "took", took)
	} else {
		a.cfg.Logger.Error("arena can not grow", "region", i, "bytes", a.cfg.regionBytes(i), "total", total, "err", err)
	}
}

// failFull ends the waits of those who do not wait for others to release, once
// the arena can not grow.
func (a *Arena) failFull() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.failed == nil && a.nextRegion() >= 0 {
		return
	}
	for i := range a.lines {
		for w := a.lines[i].first; w != nil; {
			next := w.next
			if w.unlessFull {
				a.lines[i].remove(w)
				a.exhausted++
				a.finish(w, a.full(w, ErrExhausted))
			}
			w = next
		}
	}
	a.serve()
}
