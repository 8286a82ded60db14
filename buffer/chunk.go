package buffer

// A chunk is the memory of one slot of the largest class. It is free, or
// carved into slots of one class, which takes O(1): slots are numbered when
// they are first handed out. All is under Arena.mu; class alone is also read by
// who has a slot of the chunk, which keeps it from changing.
type chunk struct {
	class uint8
	pool  uint8 // poolGeneral, poolReserve or poolElastic; never changes
	// A chunk that drains is not in its class's list though it has free slots:
	// see drain.
	draining bool
	used     uint32 // slots that are not free here: referenced, cached or retired
	fresh    uint32 // slots from this one on were never handed out since carving
	free     uint32 // first of the other free slots: slot + 1, or 0
	// Neighbours in the list of chunks of the class that have free slots, or of
	// free chunks: chunk + 1, or 0.
	prev, next uint32
}

const noClass = 0xff

const (
	poolGeneral = iota
	poolReserve // chunks for Control
	poolElastic // chunks of regions that may be given up: the last choice
	poolForeign // memory of the caller: see RegCache
	pools
)

// pool is a set of chunks.
type pool struct {
	free    chunkList             // not carved
	partial [maxClasses]chunkList // with free slots
}

// chunkList is a doubly linked list through chunk.prev and next.
type chunkList struct{ first uint32 }

func (l *chunkList) add(chunks []chunk, i uint32) {
	c := &chunks[i]
	c.prev, c.next = 0, l.first
	if l.first != 0 {
		chunks[l.first-1].prev = i + 1
	}
	l.first = i + 1
}

func (l *chunkList) remove(chunks []chunk, i uint32) {
	c := &chunks[i]
	if c.prev != 0 {
		chunks[c.prev-1].next = c.next
	} else {
		l.first = c.next
	}
	if c.next != 0 {
		chunks[c.next-1].prev = c.prev
	}
	c.prev, c.next = 0, 0
}

// perChunk is how many slots of class cl a chunk has.
func (a *Arena) perChunk(cl uint8) uint32 {
	return uint32(a.chunkSize / int64(a.sizes[cl]))
}

// alloc takes a free slot of class cl from a chunk of pool p, one that is yet to
// be carved if carve. It stays marked inChunk; the caller claims it. Under
// Arena.mu.
func (a *Arena) alloc(cl uint8, p uint8, carve bool) (uint32, bool) {
	pl := &a.pools[p]
	partial := &pl.partial[cl]
	if partial.first == 0 {
		if pl.free.first == 0 || !carve {
			return 0, false
		}
		i := pl.free.first - 1
		pl.free.remove(a.chunks, i)
		a.chunks[i].class = cl
		a.carve(i)
		partial.add(a.chunks, i)
		if a.scrub {
			a.disown(i)
		}
	}
	i := partial.first - 1
	c := &a.chunks[i]
	var s uint32
	if c.free != 0 {
		s = c.free - 1
		c.free = a.slots[s].next
	} else {
		s = i<<a.chunkShift + c.fresh*uint32(a.sizes[cl]>>a.unitBits)
		c.fresh++
		st := &a.slots[s].state
		if w := st.Load(); w == 0 {
			st.CompareAndSwap(0, 1<<countBits|inChunk)
		}
	}
	c.used++
	a.out += int64(a.sizes[cl])
	if c.free == 0 && c.fresh == a.perChunk(cl) {
		partial.remove(a.chunks, i)
	}
	return s, true
}

// freeSlot puts a slot, marked inChunk, back to its chunk. Under Arena.mu.
func (a *Arena) freeSlot(s uint32) {
	i := s >> a.chunkShift
	c := &a.chunks[i]
	pl := &a.pools[c.pool]
	full := c.free == 0 && c.fresh == a.perChunk(c.class)
	a.slots[s].next = c.free
	c.free = s + 1
	c.used--
	a.out -= int64(a.sizes[c.class])
	switch {
	case c.used == 0:
		if c.draining {
			c.draining = false
			a.victim = 0
		} else if !full {
			pl.partial[c.class].remove(a.chunks, i)
		}
		c.class, c.fresh, c.free = noClass, 0, 0
		pl.free.add(a.chunks, i)
		a.uncarve(i)
	case full && !c.draining:
		pl.partial[c.class].add(a.chunks, i)
	}
	a.freed = i
}

// disown forgets the owners of what a chunk's slots held when it was carved
// otherwise, so that new owners get them scrubbed. Under Arena.mu.
func (a *Arena) disown(i uint32) {
	for s := i << a.chunkShift; s < (i+1)<<a.chunkShift; s++ {
		a.slots[s].meta.Store(metaOf(nobody, false, 0, 0))
	}
}

// drain keeps a chunk of another class from being used again, so that it
// becomes free for the waiter that has waited longest: without it a class in
// steady use could keep all its chunks half full for ever. It is the chunk with
// the fewest used slots among those that slots came back to since somebody
// waits. It reports whether the chunk that drained before is in use again.
// Under Arena.mu.
func (a *Arena) drain(class uint8) bool {
	i := a.freed
	c := &a.chunks[i]
	if c.class == noClass || c.class == class || c.pool == poolReserve || c.draining {
		return false
	}
	if c.free == 0 && c.fresh == a.perChunk(c.class) { // taken again meanwhile
		return false
	}
	other := a.victim != 0
	if other {
		if a.chunks[a.victim-1].used <= c.used {
			return false
		}
		a.undrain()
	}
	a.pools[c.pool].partial[c.class].remove(a.chunks, i)
	c.draining = true
	a.victim = i + 1
	return other
}

// undrain puts the chunk that drains back to use. Under Arena.mu.
func (a *Arena) undrain() {
	if a.victim == 0 {
		return
	}
	i := a.victim - 1
	a.victim = 0
	c := &a.chunks[i]
	c.draining = false
	a.pools[c.pool].partial[c.class].add(a.chunks, i)
}
