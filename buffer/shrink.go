package buffer

import (
	"context"
	"time"
)

// shrink gives up regions that have been free for long, the last ones first.
// Under attachSem.
func (a *Arena) shrink(ctx context.Context) {
	for i := len(a.regions) - 1; i >= 0 && ctx.Err() == nil; i-- {
		if !a.withdraw(i) {
			continue
		}
		if err := a.leave(ctx, i); err != nil {
			a.cfg.Logger.Warn("a region of the arena could not be given up: it is tried again", "region", i, "err", err)
			continue
		}
		a.mu.Lock()
		a.shrunk++
		total := a.total
		a.mu.Unlock()
		a.cfg.Logger.Info("arena shrank", "region", i, "total", total)
	}
}

// withdraw takes the chunks of region i out of use, if it is idle and has been
// for long; it reports whether the region is to be given up.
func (a *Arena) withdraw(i int) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	r := &a.regions[i]
	first, n := a.chunksOf(i)
	switch {
	case r.state == regionLeaving: // not done before
		return true
	case r.state != regionLive || a.chunks[first+n-1].pool != poolElastic || r.kept.Load() || a.closing || a.waiting > 0:
		return false
	}
	if r.carved > 0 && !a.anyReferenced(i) {
		a.sweep() // its slots are all in caches
	}
	now := time.Now()
	switch {
	case r.carved > 0:
		return false
	case r.idle.IsZero():
		r.idle = now
		return false
	case now.Sub(r.idle) < a.cfg.ShrinkAfter || int64(a.freeChunks-int(n))*a.chunkSize < a.cfg.LowWater:
		return false
	}
	for c := first; c < first+n; c++ {
		a.pools[poolElastic].free.remove(a.chunks, c)
	}
	a.freeChunks -= int(n)
	a.total -= int64(n) * a.chunkSize
	r.state = regionLeaving
	return true
}

// anyReferenced reports whether a slot of region i is held. Under Arena.mu.
func (a *Arena) anyReferenced(i int) bool {
	first, n := a.chunksOf(i)
	for c := first; c < first+n; c++ {
		if a.chunks[c].class == noClass {
			continue
		}
		for s := range a.slotsOf(c) {
			if referenced(a.slots[s].state.Load()) {
				return true
			}
		}
	}
	return false
}

// leave deregisters region i, which is leaving, everywhere, and unmaps it. On
// error the region goes on leaving: it is called again, or the region is added
// again. Under attachSem.
func (a *Arena) leave(ctx context.Context, i int) error {
	var ats []*attachment
	ats = append(append(ats, *a.attachments.Load()...), a.detaching...)
	var jobs []*job
	var results []RegionResult
	var size int64
	for _, at := range ats {
		if reg := &at.regs[i]; reg.registered() {
			jobs = append(jobs, reg.job)
			mr := reg.mr.Load()
			size += int64(mr.Length())
			results = append(results, RegionResult{Region: i, Addr: mr.Addr(), Length: mr.Length(), LKey: mr.LKey()})
		}
	}
	failed := false
	if len(jobs) > 0 {
		p := a.cfg.progress("deregister", size)
		for n, err := range batch(ctx, deregistering, inDevice, jobs) {
			results[n].Err, results[n].Took = err, jobs[n].took
			failed = failed || err != nil
			if err == nil {
				p.add(int64(results[n].Length))
			}
		}
	}
	if failed {
		return &BatchError{Op: "shrink", Results: results}
	}
	for _, at := range ats {
		at.regs[i].clear()
	}
	r := &a.regions[i]
	return a.free(r)
}

// free unmaps a region that nothing uses. Under attachSem.
func (a *Arena) free(r *region) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	return r.free()
}
