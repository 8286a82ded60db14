package buffer

import (
	"iter"
	"time"
)

// Account is the arena's memory in bytes, a slot counted once, at the size of
// its class: posted if a work request names it, else held if it is referenced,
// else free. Posted + Held + Free == Total; exact when nothing moves.
type Account struct {
	Posted, Held, Free, Total int64
}

// Stats are the counters and gauges of an arena.
type Stats struct {
	Account
	Backing     string        // of the first region: "heap", "hugetlb 2 MiB", "transparent huge pages", "4 KiB pages"
	Regions     int           // mapped
	Budget      int64         // bytes that may be mapped
	Mapped      int64         // bytes that are mapped
	OffHeap     int64         // of them, bytes that the Go runtime and GOMEMLIMIT do not count
	Leaving     int           // regions that could not be given up yet, not in Total
	Grown       uint64        // regions added since New
	Shrunk      uint64        // regions given up since New
	GrowErrors  uint64        // times that a region could not be added
	GrowError   string        // why, while that holds
	SlowestGrow time.Duration // to map, touch and register one region, off the data path
	RegionSize  int64         // bytes
	Reserve     int64         // bytes that only Control may use
	FreeChunks  int64         // bytes in chunks that any class can use, Reserve not counted
	// Fragmentation is the part of Free, from 0 to 1, that is in chunks in use:
	// it serves only the class that the chunk is cut for.
	Fragmentation float64
	Retired       int64  // bytes of slots that are out of generations, not in Total
	Quarantined   int64  // bytes that a failed Close keeps mapped
	Attached      int    // PDs
	Grants        int    // live grants
	Waiting       int    // Gets that wait
	Waited        uint64 // Gets that had to wait, ever
	Overdue       uint64 // Gets whose buffer was held for longer than Config.MaxAge
	Exhausted     uint64 // TryGets, and Gets with FailWhenFull, that failed for lack of memory or quota
	Copied        uint64 // bytes copied by AppendCopy
	Classes       []ClassStats
	Owners        []OwnerStats
}

// ClassStats is about one size class, in slots.
type ClassStats struct {
	Size   int // bytes of a slot
	Used   int // referenced
	Cached int // free, in the caches of the cores
	Free   int // free, in chunks of this class
}

// OwnerStats is about one owner, in bytes.
type OwnerStats struct {
	Name   string
	Quota  int64 // 0: no limit
	Held   int64 // referenced buffers, posted ones included
	Posted int64
	// Buffers is how many are referenced; Oldest how long ago the first of those
	// that are not posted was got, to a second.
	Buffers int
	Oldest  time.Duration
}

// slotsOf are the slots of a carved chunk that were ever handed out. Under
// Arena.mu.
func (a *Arena) slotsOf(i uint32) iter.Seq[uint32] {
	return func(yield func(uint32) bool) {
		c := &a.chunks[i]
		step := uint32(a.sizes[c.class] >> a.unitBits)
		for n := range c.fresh {
			if !yield(i<<a.chunkShift + n*step) {
				return
			}
		}
	}
}

// walk calls f for every slot that was ever handed out, under Arena.mu, which
// it gives up between chunks.
func (a *Arena) walk(f func(s uint32, cl uint8, state uint64)) {
	for i := range uint32(len(a.chunks)) {
		a.mu.Lock()
		if c := &a.chunks[i]; c.class != noClass {
			for s := range a.slotsOf(i) {
				f(s, c.class, a.slots[s].state.Load())
			}
		}
		a.mu.Unlock()
	}
}

// Account returns how much memory is in which state. It walks the slots that
// are in use: a few microseconds per MiB of the smallest.
func (a *Arena) Account() Account {
	var acc Account
	a.walk(func(s uint32, cl uint8, state uint64) { acc.add(a, s, cl, state) })
	return a.complete(acc)
}

func (acc *Account) add(a *Arena, s uint32, cl uint8, state uint64) {
	switch {
	case !referenced(state):
	case a.slots[s].posted.Load() > 0:
		acc.Posted += int64(a.sizes[cl])
	default:
		acc.Held += int64(a.sizes[cl])
	}
}

func (a *Arena) complete(acc Account) Account {
	a.mu.Lock()
	defer a.mu.Unlock()
	acc.Total = a.total
	acc.Free = acc.Total - acc.Held - acc.Posted
	return acc
}

// Stats returns the arena's counters and gauges. Like Account it walks the
// slots in use.
func (a *Arena) Stats() Stats {
	st := Stats{
		RegionSize: a.cfg.RegionSize, Reserve: a.cfg.Reserve, Budget: a.cfg.Budget,
		Attached: len(*a.attachments.Load()), Grants: int(a.grants.Load()), Copied: a.copied.Load(),
		Backing: a.backing, Quarantined: a.quarantined.Load(),
		Overdue: a.overdue.Load(),
	}
	for _, size := range a.sizes {
		st.Classes = append(st.Classes, ClassStats{Size: size})
	}
	owners := *a.owners.Load()
	for _, o := range owners {
		st.Owners = append(st.Owners, OwnerStats{Name: o.name, Quota: o.quota.Load()})
	}
	a.walk(func(s uint32, cl uint8, state uint64) {
		st.Account.add(a, s, cl, state)
		switch {
		case referenced(state):
			st.Classes[cl].Used++
			m := a.slots[s].meta.Load()
			if i := ownerOf(m); int(i) < len(st.Owners) {
				o := &st.Owners[i]
				o.Held += int64(a.sizes[cl])
				o.Buffers++
				if a.slots[s].posted.Load() > 0 {
					o.Posted += int64(a.sizes[cl])
				} else {
					o.Oldest = max(o.Oldest, a.age(bornAt(m)))
				}
			}
		case count(state) == 0:
			st.Classes[cl].Cached++
		}
	})
	st.Account = a.complete(st.Account)
	a.mu.Lock()
	defer a.mu.Unlock()
	st.Waiting, st.Waited, st.Exhausted, st.Retired = a.waiting, a.waited, a.exhausted, a.retired
	st.Grown, st.Shrunk, st.GrowErrors, st.SlowestGrow = a.grown, a.shrunk, a.failures, a.slowest
	if a.failed != nil {
		st.GrowError = a.failed.Error()
	}
	var whole int64 // free, in free chunks
	for i := range a.regions {
		r := &a.regions[i]
		if r.state == regionNone {
			continue
		}
		st.Regions++
		st.Mapped += int64(len(r.mem))
		if r.backing != backHeap {
			st.OffHeap += int64(len(r.mem))
		}
		if r.state == regionLeaving {
			st.Leaving++
			continue
		}
		first, n := a.chunksOf(i)
		for c := first; c < first+n; c++ {
			switch c := &a.chunks[c]; {
			case c.class != noClass:
				st.Classes[c.class].Free += int(a.perChunk(c.class) - c.used)
			case c.pool != poolReserve:
				st.FreeChunks += a.chunkSize
				whole += a.chunkSize
			default:
				whole += a.chunkSize
			}
		}
	}
	if st.Free > 0 {
		st.Fragmentation = float64(max(st.Free-whole, 0)) / float64(st.Free)
	}
	return st
}
