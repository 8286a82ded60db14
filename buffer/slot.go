package buffer

import "sync/atomic"

// The state of a slot is one word, changed only by compare-and-swap of the
// whole: generation << countBits | count. The generation moves on when the last
// reference goes, so that no older handle matches; a slot that has used up its
// generations is retired. The count is the number of references, or 0 for a
// slot that a cache may hand out, or one of the marks below.
const (
	countBits = 24
	countMask = 1<<countBits - 1
	maxGen    = 1<<40 - 1

	inChunk    = countMask     // count: the slot is in its chunk's free list
	isRetired  = countMask - 1 // count: out of generations, never used again
	maxHolders = countMask - 2
)

// slot is the state of one slot. The table has one for every unit (smallest
// class); a slot is known by the number of its first unit, which gives its
// region, chunk and address.
type slot struct {
	state atomic.Uint64
	// meta says whose the slot is, since when on the arena's clock, and which
	// shard it came from: see metaOf. Who gets the slot writes it: out of a chunk
	// under Arena.mu, as walk looks; out of a cache just after, so that for an
	// instant it is still the former owner's. It stays when the slot is free.
	meta   atomic.Uint64
	posted atomic.Uint32 // references of posted work, part of the count
	next   uint32        // free list of the chunk: slot + 1, or 0. Under Arena.mu
}

func gen(state uint64) uint64   { return state >> countBits }
func count(state uint64) uint32 { return uint32(state & countMask) }

// referenced reports whether state is that of a slot with holders.
func referenced(state uint64) bool {
	c := count(state)
	return c-1 < maxHolders // 0 wraps around
}

// claim takes the slot from state count from to state count to, unless it has
// another count: caches may have stale entries for a slot.
func (s *slot) claim(from, to uint64) bool {
	for {
		w := s.state.Load()
		if w&countMask != from {
			return false
		}
		if s.state.CompareAndSwap(w, w-from+to) {
			return true
		}
	}
}

// The meta of a slot: charged << 63 | shard << 56 | owner << 32 | time.
const (
	shardShift = 56
	maxShards  = 128
)

// nobody owns what a slot holds.
const nobody Owner = 1<<24 - 1

func metaOf(o Owner, charged bool, shard uint, now uint32) uint64 {
	m := uint64(shard)<<shardShift | uint64(o)<<32 | uint64(now)
	if charged {
		m |= 1 << 63
	}
	return m
}

func ownerOf(meta uint64) Owner    { return Owner(meta >> 32 & uint64(nobody)) }
func shardOf(meta uint64) uint     { return uint(meta>>shardShift) & (maxShards - 1) }
func metaCharged(meta uint64) bool { return meta>>63 != 0 }
func bornAt(meta uint64) uint32    { return uint32(meta) }
