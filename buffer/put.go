package buffer

// put takes back a slot whose last reference has just gone. m is its meta and
// cl its class, read while it was referenced: it may be somebody else's now.
func (a *Arena) put(s uint32, m uint64, cl uint8) {
	var o *owner // whose quota it was
	if metaCharged(m) {
		o = a.owner(ownerOf(m))
	}
	if a.chunks[s>>(a.chunkShift&31)].pool&poolReserve != 0 || a.gate.Load() != 0 || o != nil && o.over.Load() {
		a.putSlow(s, m, cl)
		return
	}
	sh := shardOf(m)
	excess := o != nil && o.credit(sh, int64(a.sizes[cl]))
	// Whoever got the slot by the entry of the shard has left it there.
	hot := a.cores.hot(sh, cl)
	if h := hot.Load(); h != s+1 {
		switch {
		case h != 0 && count(a.slots[h-1].state.Load()) == 0, !hot.CompareAndSwap(h, s+1):
			a.stack(s, cl)
		case h != 0 && count(a.slots[h-1].state.Load()) == 0: // it came back meanwhile
			a.stack(h-1, cl)
		}
	}
	if excess || a.gate.Load() != 0 {
		a.putExcess(o, excess)
	}
}

// stack makes an entry for a slot with count 0 in the core's stack.
func (a *Arena) stack(s uint32, cl uint8) {
	k := a.cores.pin()
	if k == nil {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.uncache([]uint32{s})
		a.settle()
		return
	}
	if !k.push(cl, s, a.cores.limit[cl]) {
		a.flush(k, s, cl)
		return
	}
	a.cores.unpin(k)
}

// flush takes half of the full cache k, and slot s, back to their chunks. It
// unpins.
func (a *Arena) flush(k *core, s uint32, cl uint8) {
	var some [maxCached/2 + 1]uint32
	n := k.drop(cl, some[:(a.cores.limit[cl]+1)/2])
	a.cores.unpin(k)
	some[n] = s
	a.mu.Lock()
	defer a.mu.Unlock()
	a.uncache(some[:n+1])
	a.settle()
}

// putSlow takes a slot back to its chunk. The last reference to memory of the
// caller is the cache's.
func (a *Arena) putSlow(s uint32, m uint64, cl uint8) {
	if a.foreign != nil {
		panic("buffer: memory of a RegCache was released once too often")
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if metaCharged(m) {
		a.owner(ownerOf(m)).refund(int64(a.sizes[cl]))
	}
	a.uncache([]uint32{s})
	if a.gate.Load() != 0 {
		a.serve()
		a.checkIdle()
	}
}

// putExcess is for who has added to the leases of o or to the caches: a lease has
// grown too much, or somebody waits.
func (a *Arena) putExcess(o *owner, excess bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if excess {
		a.recall(o)
	}
	a.settle()
}

// retire takes a slot out of use for ever: it has no generation left.
func (a *Arena) retire(m uint64, cl uint8) {
	a.mu.Lock()
	size := int64(a.sizes[cl])
	if metaCharged(m) {
		a.owner(ownerOf(m)).refund(size)
	}
	a.out -= size
	a.total -= size
	a.retired += size
	a.settle()
	a.mu.Unlock()
	a.cfg.Logger.Warn("a buffer has used up its generations and is not used again", "bytes", size)
}

// giveBackStray returns a slot of another class than was asked for.
func (a *Arena) giveBackStray(s uint32, o *owner, charged bool, size int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if charged {
		o.refund(size)
	}
	a.slots[s].claim(1, inChunk)
	a.freeSlot(s)
	a.settle()
}
