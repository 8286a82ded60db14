package histogram

import (
	"math/bits"
	"sync/atomic"
	"time"
)

// Histogram is a snapshot of durations. The bounds are the same for all.
type Histogram struct {
	Count   uint64
	Sum     time.Duration
	Buckets [Buckets]uint64 // of durations below Bound, each
}

const (
	// Buckets is how many buckets there are: two for each doubling, from 1 us to
	// 34 s, and one for what is longer.
	Buckets = 2*octaves + 2

	octaves = 25
	shift   = 10 // the first bound is 1 << 10 ns
)

// Bound is the least duration that is too long for bucket i, 0 for the last one,
// which has no bound.
func Bound(i int) time.Duration {
	switch {
	case i == 0:
		return 1 << shift
	case i == Buckets-1:
		return 0
	}
	octave, half := (i-1)/2, (i-1)%2
	base := time.Duration(1) << (shift + octave)
	if half == 0 {
		return base + base/2
	}
	return 2 * base
}

// bucketOf is the bucket of a duration.
func bucketOf(d time.Duration) int {
	if d < 1<<shift {
		return 0
	}
	octave := bits.Len64(uint64(d)) - 1 - shift
	if octave >= octaves {
		return Buckets - 1
	}
	half := int(uint64(d)>>(shift+octave-1)) & 1
	return 1 + 2*octave + half
}

// Counter is a Histogram while it counts. The zero value is ready for use; all
// methods are safe for concurrent use, allocate nothing and do not block.
type Counter struct {
	sum     atomic.Int64
	buckets [Buckets]atomic.Uint64
}

// Observe counts one duration; one below zero counts as zero.
func (c *Counter) Observe(d time.Duration) {
	c.sum.Add(int64(max(d, 0)))
	c.buckets[bucketOf(d)].Add(1)
}

// Snapshot returns what has been counted. What is observed meanwhile may be in
// Sum and not yet in Buckets.
func (c *Counter) Snapshot() (h Histogram) {
	for i := range h.Buckets {
		h.Buckets[i] = c.buckets[i].Load()
		h.Count += h.Buckets[i]
	}
	h.Sum = time.Duration(c.sum.Load())
	return h
}
