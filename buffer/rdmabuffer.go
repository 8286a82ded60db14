package buffer

import (
	"fmt"
	"unsafe"

	"github.com/argonaut-rdma/argonaut/verbs"
)

// RDMABuffer is a handle to a buffer of an arena, or to a part of one: a value,
// to be copied freely. Whoever has a reference may use it; every Get and every
// Retain owes one Release. Use of a buffer whose last reference has gone
// panics. Methods are safe for concurrent use; the bytes are not guarded.
type RDMABuffer struct {
	// Four words, so that the compiler keeps a buffer in registers: with five
	// fields Get and Release together took twice as long.
	a    *Arena
	gen  uint64 // token << tokenShift | generation
	slot uint64
	view uint64 // offset << 32 | length, in bytes
}

// tokenShift is where the token of a traced reference is in RDMABuffer.gen.
const tokenShift = 40

func (b RDMABuffer) off() uint32  { return uint32(b.view >> 32) }
func (b RDMABuffer) size() uint32 { return uint32(b.view) }

// num is the number of the slot.
func (b RDMABuffer) num() uint32 { return uint32(b.slot) }

// IsZero reports whether b is the zero value, which names no buffer.
func (b RDMABuffer) IsZero() bool { return b.a == nil }

// live returns b's slot, if it has a reference that b can be of.
func (b RDMABuffer) live() *slot {
	s := &b.a.slots[b.slot]
	if w := s.state.Load(); gen(w) != b.gen&maxGen || !referenced(w) {
		b.dead(w)
	}
	return s
}

// dead panics: the caller used a buffer that it has no reference to.
func (b RDMABuffer) dead(state uint64) {
	s := fmt.Sprintf("buffer: use of buffer %d (generation %d) after its last release; the slot is at generation %d",
		b.slot, b.gen&maxGen, gen(state))
	if t := b.a.tracer.Load(); t == nil {
		s += "; Config.Trace tells who released it"
	} else {
		s += t.released(b)
	}
	panic(s)
}

// Retain takes another reference and returns the handle that it belongs to:
// the same one, unless tracing tells references apart.
func (b RDMABuffer) Retain() RDMABuffer {
	b.ref()
	if t := b.a.tracer.Load(); t != nil {
		b.gen = b.gen&maxGen | t.retain(b, b.a.now.Load())<<tokenShift
	}
	return b
}

// ref adds one to the count.
func (b RDMABuffer) ref() *slot {
	s := &b.a.slots[b.slot]
	for {
		w := s.state.Load()
		if gen(w) != b.gen&maxGen || !referenced(w) {
			b.dead(w)
		}
		if count(w) == maxHolders {
			panic(fmt.Sprintf("buffer: buffer %d has %d references: one in a loop is not released", b.slot, maxHolders))
		}
		if s.state.CompareAndSwap(w, w+1) {
			return s
		}
	}
}

// Release gives one reference back. The last one returns the buffer to the
// arena.
func (b RDMABuffer) Release() {
	a := b.a
	s := &a.slots[b.slot]
	w := s.state.Load()
	// The usual case, as in unref without its calls: a tenth of what Get and
	// Release take together.
	if w == b.gen<<countBits|1 && gen(w) != maxGen && s.posted.Load() == 0 && !invariants && a.tracer.Load() == nil {
		m := s.meta.Load()
		cl := a.chunks[b.slot>>(a.chunkShift&31)].class
		if s.state.CompareAndSwap(w, w-1+1<<countBits) {
			a.put(b.num(), m, cl)
			return
		}
	}
	b.unref(true)
}

// unref takes one from the count: a holder's reference, or posted work's.
func (b RDMABuffer) unref(holder bool) {
	s := &b.a.slots[b.slot]
	tr := b.a.tracer.Load()
	if tr != nil && holder {
		tr.release(b)
	}
	for {
		w := s.state.Load()
		if gen(w) != b.gen&maxGen || !referenced(w) {
			b.dead(w)
		}
		if count(w) > 1 {
			if s.state.CompareAndSwap(w, w-1) {
				if count(w) == 2 && b.a.foreign != nil {
					b.a.foreign.released(b.num())
				}
				return
			}
			continue
		}
		// The slot is ours alone until the count is 0.
		if s.posted.Load() != 0 {
			panic(fmt.Sprintf("buffer: buffer %d was released while posted work still names it: the reference of RetainPosted is given back by ReleasePosted", b.slot))
		}
		m := s.meta.Load()
		cl := b.a.chunks[b.slot>>b.a.chunkShift].class
		if tr != nil {
			tr.last(b)
		}
		if invariants && b.a.foreign == nil {
			b.a.checkCanary(b.num())
			poison(b.a.slotMem(b.num()))
		}
		if gen(w) == maxGen {
			if s.state.CompareAndSwap(w, maxGen<<countBits|isRetired) {
				b.a.retire(m, cl)
				return
			}
			continue
		}
		if s.state.CompareAndSwap(w, (gen(w)+1)<<countBits) {
			b.a.put(b.num(), m, cl)
			return
		}
	}
}

// RetainPosted takes a reference on behalf of a work request, before it is
// posted. It counts as posted in the account.
func (b RDMABuffer) RetainPosted() {
	b.ref().posted.Add(1)
	if t := b.a.tracer.Load(); t != nil {
		t.post(b, b.a.now.Load())
	}
}

// ReleasePosted gives the reference of a work request back: when the request
// was refused, when its completion was polled, or when QP.Close or SRQ.Close
// returned it as an orphan. It panics if none is left.
func (b RDMABuffer) ReleasePosted() {
	if t := b.a.tracer.Load(); t != nil {
		t.unpost(b)
	}
	if n := b.live().posted.Add(^uint32(0)); n == ^uint32(0) {
		panic(fmt.Sprintf("buffer: ReleasePosted of buffer %d, which no posted work names: completed twice, or RetainPosted forgotten", b.slot))
	}
	b.unref(false)
}

// Bytes returns the buffer's memory, valid until the last Release. Its cap is
// Len.
func (b RDMABuffer) Bytes() []byte {
	b.live()
	return unsafe.Slice((*byte)(unsafe.Add(b.a.addr(b.num()), b.off())), b.size())
}

// Len is the number of bytes.
func (b RDMABuffer) Len() int { return int(b.size()) }

// Owner is the name of the owner that the buffer was got for. It panics after the
// last release.
func (b RDMABuffer) Owner() string { return b.a.nameOf(ownerOf(b.live().meta.Load())) }

// Slice returns the view [i, j) of the buffer, 0 <= i <= j <= Len; it panics
// for others. It shares b's reference and takes none of its own.
func (b RDMABuffer) Slice(i, j int) RDMABuffer {
	if i < 0 || j < i || j > b.Len() {
		panic(fmt.Sprintf("buffer: slice [%d:%d) of %d bytes", i, j, b.Len()))
	}
	b.live()
	b.view = uint64(b.off()+uint32(i))<<32 | uint64(j-i)
	return b
}

// Arena returns the arena that the buffer is of.
func (b RDMABuffer) Arena() *Arena { return b.a }

// SGE returns the buffer as a piece of memory registered on pd. If the arena is
// not attached to pd its MR is nil and a post refuses it. It allocates nothing.
func (b RDMABuffer) SGE(pd *verbs.PD) verbs.SGE {
	b.live()
	e := verbs.SGE{Offset: b.a.offset(b.num()) + uint64(b.off()), Length: b.size()}
	for _, at := range *b.a.attachments.Load() {
		if at.pd == pd {
			e.MR = at.regs[b.slot>>b.a.rgnShift].mr.Load()
		}
	}
	return e
}
