package iwarp

import (
	"encoding/binary"
	"sync"
	"sync/atomic"

	crand "crypto/rand"
)

// stagTable maps steering tags to regions. A tag is a 24-bit index and an 8-bit key. The index is a slot number passed
// through a keyed permutation, so that tags do not follow each other and one that is guessed is most likely nobody's;
// the key changes whenever a slot is used again, so that a stale tag names nothing. Lookups take no lock.
type stagTable struct {
	round  [4]uint32
	limit  uint32
	chunks []atomic.Pointer[stagChunk]

	mu   sync.Mutex
	next uint32   // slots from here on were never used
	free []uint32 // oldest first, so that a slot rests for long
}

const stagChunkLen = 1024

type stagChunk struct {
	regions [stagChunkLen]atomic.Pointer[region]
	keys    [stagChunkLen]uint8 // guarded by stagTable.mu
}

func newStagTable(limit int) *stagTable {
	t := &stagTable{limit: uint32(limit), chunks: make([]atomic.Pointer[stagChunk], (limit+stagChunkLen-1)/stagChunkLen)}
	var seed [16]byte
	_, _ = crand.Read(seed[:]) // never fails
	for i := range t.round {
		t.round[i] = binary.LittleEndian.Uint32(seed[4*i:])
	}
	return t
}

// The permutation is a Feistel network over two halves of 12 bits.
func (t *stagTable) mix(half uint32, i int) uint32 {
	x := (half ^ t.round[i]) * 0x9e3779b1
	x ^= x >> 15
	return (x * 0x85ebca6b) >> 20
}

func (t *stagTable) index(slot uint32) uint32 {
	l, r := slot>>12, slot&0xfff
	for i := range t.round {
		l, r = r, l^t.mix(r, i)
	}
	return l<<12 | r
}

func (t *stagTable) slot(index uint32) uint32 {
	l, r := index>>12, index&0xfff
	for i := len(t.round) - 1; i >= 0; i-- {
		l, r = r^t.mix(l, i), l
	}
	return l<<12 | r
}

// alloc takes a slot and returns its tag; the slot is empty until set. ok is false when the table is full.
func (t *stagTable) alloc() (stag uint32, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for {
		var slot uint32
		switch {
		case t.next < t.limit: // fresh slots first: used ones rest
			slot = t.next
			t.next++
		case len(t.free) > 0:
			slot = t.free[0]
			t.free = t.free[1:]
		default:
			return 0, false
		}
		c := t.chunk(slot)
		c.keys[slot%stagChunkLen]++
		stag = t.index(slot)<<8 | uint32(c.keys[slot%stagChunkLen])
		if stag>>8 != 0 { // 0 is no key, and index 0 stays unused with it
			return stag, true
		}
	}
}

// chunk returns the slot's chunk and makes it first if need be. Called with mu held.
func (t *stagTable) chunk(slot uint32) *stagChunk {
	p := &t.chunks[slot/stagChunkLen]
	c := p.Load()
	if c == nil {
		c = new(stagChunk)
		var seed [stagChunkLen]byte
		_, _ = crand.Read(seed[:])
		c.keys = seed
		p.Store(c)
	}
	return c
}

// release gives the tag's slot back. The key that follows is the next one's: that of a window is its binder's choice.
func (t *stagTable) release(stag uint32) {
	slot := t.slot(stag >> 8)
	t.mu.Lock()
	c := t.chunk(slot)
	c.regions[slot%stagChunkLen].Store(nil)
	c.keys[slot%stagChunkLen] = uint8(stag)
	t.free = append(t.free, slot)
	t.mu.Unlock()
}

// set puts r, or nil, into the slot of an allocated tag.
func (t *stagTable) set(stag uint32, r *region) {
	slot := t.slot(stag >> 8)
	t.chunks[slot/stagChunkLen].Load().regions[slot%stagChunkLen].Store(r)
}

// lookup returns the region of a tag, or nil.
func (t *stagTable) lookup(stag uint32) *region {
	slot := t.slot(stag >> 8)
	if slot >= t.limit {
		return nil
	}
	c := t.chunks[slot/stagChunkLen].Load()
	if c == nil {
		return nil
	}
	if r := c.regions[slot%stagChunkLen].Load(); r != nil && r.stag == stag {
		return r
	}
	return nil
}
