package buffer

// Account is the arena's memory in bytes, a slot counted once, at the size of
// its class: posted if a work request names it, else held if it is referenced,
// else free. Posted + Held + Free == Total; exact when nothing moves.
type Account struct {
	Posted, Held, Free, Total int64
}

// Stats are the counters and gauges of an arena.
type Stats struct {
	Account
	Backing     string // "heap", "hugetlb 2 MiB", "transparent huge pages", "4 KiB pages"
	Regions     int
	RegionSize  int64  // bytes
	Reserve     int64  // bytes that only Control may use
	FreeChunks  int64  // bytes in chunks that any class can use, Reserve not counted
	Retired     int64  // bytes of slots that are out of generations, not in Total
	Quarantined int64  // bytes that a failed Close keeps mapped
	Attached    int    // PDs
	Grants      int    // live grants
	Waiting     int    // Gets that wait
	Waited      uint64 // Gets that had to wait, ever
	Exhausted   uint64 // TryGets, and Gets with FailWhenFull, that failed for lack of memory or quota
	Copied      uint64 // bytes copied by AppendCopy
	Classes     []ClassStats
	Owners      []OwnerStats
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
}
