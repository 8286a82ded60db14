package buffer

import (
	"runtime"
	"sync"
	"sync/atomic"
	"unsafe"
)

// The caches of free slots, one per core (P). Measured on the busy 2-core
// development machine for Get and Release together, minima of 400 runs: this
// design pinned 32 ns; with a mutex per core, chosen by a hash of the stack's
// address, 39 ns; with a quota 37 ns. sync.Pool took 14 to 45 ns without any
// slot state, and it drops what it has at every second garbage collection.
//
// A cached slot has count 0 in its state, and whoever changes that to 1 has got
// it. The entries of a cache are only hints where such slots may be: an entry
// whose slot turns out to be in use, or in its chunk, is dropped. So the owner
// of a cache needs exclusion for the stack pointer n only, and anybody may
// steal from any cache at any time by changing the states of the slots that the
// entries name.
//
// What makes it safe: who makes a count 0 then pushes an entry, so a slot with
// count 0 always has an entry, or one is about to be pushed; and who has pushed
// looks at Arena.gate, which who waits raises before it looks at the caches, so
// one of them sees the other.

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

type cores struct {
	all      []core
	limit    [maxClasses]int // entries used per class
	portable bool            // use mutexes though there is pinning
}

func numCores() int { return max(runtime.GOMAXPROCS(0), runtime.NumCPU()) }

// init makes a cache for every P that there may be; a P beyond (GOMAXPROCS
// raised later) does without. In each, a class may keep keep bytes.
func (c *cores) init(sizes []int, keep int64) {
	c.all = make([]core, numCores())
	for i := range c.all {
		c.all[i].id = i
	}
	for i, size := range sizes {
		c.limit[i] = int(min(maxCached, max(1, keep/int64(size))))
	}
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
