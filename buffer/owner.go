package buffer

import (
	"fmt"
	"sync/atomic"
)

// Owner is an interned name for who holds buffers. It belongs to one arena.
type Owner uint32

const (
	// Anonymous is the owner of whoever names none. It has no quota.
	Anonymous Owner = 0
	// Control is the owner of control traffic: heartbeats, credits. It may use
	// the arena's Reserve when the rest is in use. It has no quota.
	Control Owner = 1
)

// owner is what the arena knows of one. Its quota is spent in two steps: blocks
// are leased to the cores, and Get takes from a lease. Limits are
// exact: where the rest is short, leases are called back.
type owner struct {
	name  string
	quota atomic.Int64 // 0: no limit
	over  atomic.Bool  // avail is negative: what comes back is not leased
	// lasting: see Arena.Lasting
	lasting atomic.Bool
	leases  []lease

	// Under Arena.mu.
	avail int64 // of the quota, neither leased nor spent; may be negative
	queue queue // waiting for quota
}

type lease struct {
	left atomic.Int64
	_    [56]byte
}

// Owner interns name and returns its owner, always the same for one name. quota
// is how many bytes it may hold, a slot counted at the size of its class; 0
// means no limit, and for an owner that exists no change. What it got before it
// had a quota does not count. A quota smaller than what is held takes effect as
// buffers come back. It panics for a negative quota, for one given to Control
// or Anonymous, and for more than 16 million owners.
func (a *Arena) Owner(name string, quota int64) Owner {
	if quota < 0 {
		panic(fmt.Sprintf("buffer: quota of %d bytes for owner %q", quota, name))
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	owners := *a.owners.Load()
	for i, o := range owners {
		if o.name == name {
			if quota != 0 {
				a.setQuota(Owner(i), o, quota)
			}
			return Owner(i)
		}
	}
	if len(owners) == int(nobody) {
		panic(fmt.Sprintf("buffer: more than %d owners", nobody))
	}
	o := &owner{name: name, leases: make([]lease, a.cores.leases)}
	grown := append(owners[:len(owners):len(owners)], o)
	a.owners.Store(&grown)
	if quota != 0 {
		a.setQuota(Owner(len(owners)), o, quota)
	}
	return Owner(len(owners))
}

func (a *Arena) setQuota(id Owner, o *owner, quota int64) {
	old := o.quota.Load()
	if id <= Control {
		panic(fmt.Sprintf("buffer: quota for owner %q, which has none", o.name))
	}
	o.quota.Store(quota)
	o.refund(quota - old)
	a.recall(o)
	a.serve()
}

// Lasting says that o holds what it gets for long, as receive queues do. It gets
// memory that is never given up: that of Config.Initial, while there is some,
// else of regions that become so. The mark stays.
func (a *Arena) Lasting(o Owner) { a.owner(o).lasting.Store(true) }

// OwnerName returns the name that o was made with.
func (a *Arena) OwnerName(o Owner) string { return a.owner(o).name }

func (a *Arena) owner(o Owner) *owner {
	owners := *a.owners.Load()
	if int(o) >= len(owners) {
		notOwner(o)
	}
	return owners[o]
}

func notOwner(o Owner) { panic(fmt.Sprintf("buffer: owner %d is not of this arena", o)) }

// charge spends size bytes of o's quota from one of its leases.
func (o *owner) charge(lease uint, size int64) bool {
	l := &o.leases[lease&uint(len(o.leases)-1)].left
	if l.Load() < size {
		return false
	}
	if l.Add(-size) < 0 { // called back meanwhile
		l.Add(size)
		return false
	}
	return true
}

// block is how much a core is leased at a time, for slots of size bytes.
func (o *owner) block(size int64) int64 {
	return max(size, o.quota.Load()/int64(8*len(o.leases)))
}

// credit returns size bytes to one of o's leases, and reports whether that has
// more than two blocks.
func (o *owner) credit(lease uint, size int64) (excess bool) {
	return o.leases[lease&uint(len(o.leases)-1)].left.Add(size) > 2*o.block(size)
}

// recall calls o's leases back. Under Arena.mu.
func (a *Arena) recall(o *owner) {
	for i := range o.leases {
		if l := &o.leases[i].left; l.Load() != 0 {
			o.refund(l.Swap(0))
		}
	}
}

// refund adds to what is left of o's quota. Under Arena.mu.
func (o *owner) refund(size int64) {
	o.avail += size
	o.over.Store(o.avail < 0)
}

// chargeLocked spends size bytes of o's quota and leases another block to core
// id, if it is not negative. Under Arena.mu.
func (a *Arena) chargeLocked(o *owner, size int64, id int) bool {
	if o.avail < size {
		a.recall(o)
		if o.avail < size {
			return false
		}
	}
	o.avail -= size
	if b := o.block(size); id >= 0 && o.avail >= b {
		o.avail -= b
		o.leases[id].left.Add(b)
	}
	return true
}
