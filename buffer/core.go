package buffer

import (
	"runtime"
	"sync"
	"sync/atomic"
	"unsafe"
)

// The caches of free slots are in two steps. A shard has one entry per class;
// goroutines share the shards by where their stacks are, and a slot goes back to
// the shard that it came from. Behind it each core (P) has a stack of entries per
// class.
//
// A cached slot has count 0 in its state, and whoever changes that to 1 has got
// it. The entries are only hints where such slots may be: an entry whose slot
// turns out to be in use, or in its chunk, is dropped. So anybody may steal from
// any cache at any time by changing the states of the slots that the entries
// name, and only the stack pointer of a core needs exclusion.
//
// What makes it safe: a slot with count 0 always has an entry, or one is about
// to be made by who made the count 0. Whoever gets a slot by the entry of a shard
// leaves the entry where it is; so who brings the slot back finds it there and
// has nothing to do. Whoever overwrites the entry of a slot in use looks at that
// slot again afterwards: if it has come back meanwhile, perhaps on account of
// that entry, it gets another. And who has made a slot free looks at Arena.gate,
// which who waits raises before it looks at the caches, so one of them sees the
// other.
//
// Measured for Get and Release together on the busy 2-core development machine,
// minima of 600 runs (BenchmarkCost): 21 ns, with two compare-and-swaps, of 6 ns.
// Pinning costs 4 ns per pair of calls and a mutex 5; by a shard neither is
// needed.

const (
	maxClasses = 19 // powers of two from 4 KiB to 1 GiB
	maxCached  = 32 // entries per class and core, a power of two
	noSlot     = ^uint32(0)
)

type stack struct {
	n     int                      // entries. Guarded by pinning, or by core.mu
	cells [maxCached]atomic.Uint32 // slot + 1; 0: never used
}

type core struct {
	mu     sync.Mutex // guards the n of stacks where there is no pinning
	id     int
	stacks [maxClasses]stack
	_      [64]byte // cores are neighbours in memory
}

// shard is the first step of the caches: slot + 1 per class, or 0.
type shard struct {
	cells [maxClasses]atomic.Uint32
	_     [128 - 4*maxClasses]byte // neighbours in memory
}

type cores struct {
	all      []core
	leases   int             // per owner: a power of two, at least as many as cores
	limit    [maxClasses]int // entries used per class and core
	shards   *[maxShards]shard
	mask     [maxClasses]uint8 // of the shards that a class uses
	portable bool              // use mutexes though there is pinning
}

func numCores() int { return max(runtime.GOMAXPROCS(0), runtime.NumCPU()) }

// init makes a cache for every P that there may be; a P beyond (GOMAXPROCS
// raised later) does without. In each, a class may keep keep bytes.
func (c *cores) init(sizes []int, keep int64) {
	c.all = make([]core, numCores())
	for i := range c.all {
		c.all[i].id = i
	}
	c.leases = 1
	for c.leases < len(c.all) {
		c.leases *= 2
	}
	shards := min(8*c.leases, maxShards) // of them used
	c.shards = new([maxShards]shard)
	for i, size := range sizes {
		n := int(min(maxCached, max(1, keep/int64(size))))
		c.limit[i] = n
		use := 1
		for use < shards && use < n*len(c.all) {
			use *= 2
		}
		c.mask[i] = uint8(use - 1)
	}
}

// shardAt picks a shard by an address of the caller's stack, which differs
// between goroutines.
func shardAt(stack uintptr) uint {
	return uint(uint32(stack>>12)*0x9E3779B1>>25) & (maxShards - 1)
}

// hot is the entry of a shard for class cl.
func (c *cores) hot(shard uint, cl uint8) *atomic.Uint32 {
	return &c.shards[shard&uint(c.mask[cl])&(maxShards-1)].cells[cl]
}

// pin returns a core's cache for exclusive use until unpin, or nil. In between
// nothing may block, panic or take long.
func (c *cores) pin() *core {
	if !canPin || c.portable {
		return c.lock()
	}
	if id := procPin(); id < len(c.all) {
		return &c.all[id]
	}
	procUnpin()
	return nil
}

func (c *cores) unpin(k *core) {
	if !canPin || c.portable {
		k.mu.Unlock()
		return
	}
	procUnpin()
}

// lock picks a cache by the address of the stack, which differs between
// goroutines, and the next one that is free if that is taken.
func (c *cores) lock() *core {
	var here byte
	first := int(uintptr(unsafe.Pointer(&here)) >> 11 * 0x9E3779B1 >> 16 & 0xffff)
	for i := range c.all {
		if k := &c.all[(first+i)%len(c.all)]; k.mu.TryLock() {
			return k
		}
	}
	k := &c.all[first%len(c.all)]
	k.mu.Lock()
	return k
}

// push adds an entry for a slot that has count 0, unless there are limit.
func (k *core) push(cl uint8, i uint32, limit int) bool {
	st := &k.stacks[cl]
	if st.n >= limit {
		return false
	}
	st.cells[st.n&(maxCached-1)].Store(i + 1)
	st.n++
	return true
}

// drop moves up to len(dst) entries of class cl to dst.
func (k *core) drop(cl uint8, dst []uint32) int {
	st := &k.stacks[cl]
	n := min(st.n, len(dst))
	for i := range n {
		st.n--
		dst[i] = st.cells[st.n].Load() - 1
	}
	return n
}
