package buffer

import (
	"context"
	"slices"
	"time"
)

// closeGrace is how much longer than ctx Close takes at most when the context
// ended while buffers were held: to deregister what is not in use.
const closeGrace = 250 * time.Millisecond

// Close refuses new Gets (waiting ones end with ErrClosed), waits until every
// buffer is back or ctx ends, detaches from every PD in parallel batches and
// unmaps the memory. If buffers are still held, or a region is still
// registered, it returns *LeakError naming them, and keeps mapped and, where a
// device may still use it, registered what they are in; the rest is freed. It
// returns at most 250 ms after ctx ended. Close may be called again to finish,
// for instance when QPs are gone; once it has returned nil it always does.
func (a *Arena) Close(ctx context.Context) error {
	if a.foreign != nil {
		return errForeign
	}
	a.mu.Lock()
	if !a.closing {
		a.closing = true
		a.gate.Add(1)
		a.failAll()
		close(a.stopClock)
		a.stopKeeper()
	}
	a.sweep()
	a.checkIdle()
	a.mu.Unlock()
	<-a.clockDone
	select {
	case a.attachSem <- struct{}{}: // also when ctx has ended
	default:
		if err := a.lockAttach(ctx); err != nil {
			return err
		}
	}
	defer a.unlockAttach()
	<-a.keeperDone // it only waits for its turn
	if a.closed {
		return nil
	}

	select {
	case <-a.idle:
	case <-ctx.Done():
	}
	holders := a.Holders() // before their lkeys go
	if ctx.Err() != nil {
		grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeGrace)
		defer cancel()
		ctx = grace
	}
	a.detaching = append(a.detaching, *a.attachments.Load()...)
	a.publish(nil)
	results, _ := a.deregister(ctx, slices.Clone(a.detaching))
	regions := (&BatchError{Results: results}).left()
	// What came back meanwhile does not leak.
	a.mu.Lock()
	busy := a.out > 0
	a.mu.Unlock()
	if !busy {
		holders = nil
	}
	var kept int64
	for i := range a.regions {
		r := &a.regions[i]
		if a.registered(i) || busy && a.regionBusy(i) {
			kept += int64(len(r.mem))
			continue
		}
		if err := a.free(r); err != nil {
			regions = append(regions, err)
			kept += int64(len(r.mem))
		}
	}
	a.quarantined.Store(kept)
	if kept == 0 && len(holders) == 0 {
		a.closed = true
		return nil
	}
	a.cfg.Logger.Warn("arena not closed", "holders", len(holders), "bytes mapped", kept)
	return &LeakError{What: "arena", Holders: holders, Regions: regions, Quarantined: kept}
}

// failAll ends every wait with ErrClosed. Under Arena.mu.
func (a *Arena) failAll() {
	for _, o := range *a.owners.Load() {
		for w := o.queue.first; w != nil; w = o.queue.first {
			o.queue.remove(w)
			a.finish(w, errArenaClosed)
		}
	}
	for i := range a.lines {
		for w := a.lines[i].first; w != nil; w = a.lines[i].first {
			a.lines[i].remove(w)
			a.finish(w, errArenaClosed)
		}
	}
	a.undrain()
}

// regionBusy reports whether a slot of region i is not in its chunk.
func (a *Arena) regionBusy(i int) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	per := 1 << (a.rgnShift - a.chunkShift)
	for c := i * per; c < min((i+1)*per, len(a.chunks)); c++ {
		if a.chunks[c].class != noClass && a.inUse(uint32(c)) {
			return true
		}
	}
	return false
}

// inUse reports whether a slot of a chunk is neither free nor retired. Under
// Arena.mu.
func (a *Arena) inUse(c uint32) bool {
	for s := range a.slotsOf(c) {
		switch count(a.slots[s].state.Load()) {
		case inChunk, isRetired:
		default:
			return true
		}
	}
	return false
}
