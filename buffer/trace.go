package buffer

import (
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
)

// tracer knows every reference that was taken while it was there, by token.
// Tokens are never the same for two references of one buffer, also of different
// tracers, but for one in millions; token 0 is a reference from before.
type tracer struct {
	tokens *atomic.Uint64

	mu    sync.Mutex
	slots map[uint32]*traced // those in use
	past  map[uint32]*traced // what was known at the last release
}

type traced struct {
	gen    uint64
	refs   map[uint64]trace // by token
	gone   map[uint64]trace // where they were released
	order  []uint64         // of gone
	posted []trace
}

// maxGone is how many releases are remembered of a buffer.
const maxGone = 256

type trace struct {
	owner Owner
	at    uint32 // on the arena's clock
	pcs   [24]uintptr
	depth int
}

const maxToken = 1<<(64-tokenShift) - 1

// SetTrace switches tracing on and off, as Config.Trace does from the start.
// References taken while it was off are not told apart and have no stack.
func (a *Arena) SetTrace(on bool) {
	if !on {
		a.tracer.Store(nil)
		return
	}
	a.tracer.CompareAndSwap(nil, &tracer{tokens: &a.tokens, slots: map[uint32]*traced{}, past: map[uint32]*traced{}})
}

// Tracing reports whether references are traced.
func (a *Arena) Tracing() bool { return a.tracer.Load() != nil }

func (t *tracer) token() uint64 { return (t.tokens.Add(1)-1)%maxToken + 1 }

func newTraced(gen uint64) *traced {
	return &traced{gen: gen, refs: map[uint64]trace{}, gone: map[uint64]trace{}}
}

// ofBuffer is what is known of b's slot, begun now if nothing is. Under tracer.mu.
func (t *tracer) ofBuffer(b RDMABuffer) *traced {
	s := t.slots[b.num()]
	if s == nil || s.gen != b.gen&maxGen { // it was got before
		s = newTraced(b.gen & maxGen)
		t.slots[b.num()] = s
	}
	return s
}

func here(o Owner, now uint32) trace {
	t := trace{owner: o, at: now}
	t.depth = runtime.Callers(3, t.pcs[:]) // without Callers, here and the tracer's method
	return t
}

// own are the functions of this package that a stack does not begin with.
var own = []string{"buffer.(*Arena).", "buffer.RDMABuffer.", "buffer.(*List).", "buffer.(*traced).", "buffer.(*Registration)."}

func (t trace) String() string {
	var s strings.Builder
	frames := runtime.CallersFrames(t.pcs[:t.depth])
	for {
		f, more := frames.Next()
		is := func(name string) bool { return strings.Contains(f.Function, name) }
		if f.Function != "" && (s.Len() > 0 || !slices.ContainsFunc(own, is)) {
			fmt.Fprintf(&s, "%s\n\t%s:%d\n", f.Function, f.File, f.Line)
		}
		if !more {
			return s.String()
		}
	}
}

// get records the first reference of a buffer and returns its token.
func (t *tracer) get(b RDMABuffer, o Owner, now uint32) uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.past, b.num())
	s, tok := newTraced(b.gen&maxGen), t.token()
	s.refs[tok] = here(o, now)
	t.slots[b.num()] = s
	return tok
}

// retain records another reference.
func (t *tracer) retain(b RDMABuffer, now uint32) uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	s, tok := t.ofBuffer(b), t.token()
	for s.refs[tok].depth > 0 { // held for millions of references
		tok = t.token()
	}
	delete(s.gone, tok)
	s.refs[tok] = here(s.owner(b), now)
	return tok
}

// owner is that of b's reference.
func (s *traced) owner(b RDMABuffer) Owner {
	if r, ok := s.refs[b.gen>>tokenShift]; ok {
		return r.owner
	}
	return ownerOf(b.a.slots[b.num()].meta.Load())
}

// release strikes b's reference off. It panics if it was released before.
func (t *tracer) release(b RDMABuffer) {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.slots[b.num()]
	if s == nil || s.gen != b.gen&maxGen {
		return // dead says so, or it was got before
	}
	tok := b.gen >> tokenShift
	r, ok := s.refs[tok]
	if !ok {
		if g, ok := s.gone[tok]; ok {
			panic(fmt.Sprintf("buffer: one reference to buffer %d was released twice, the first time at\n%s", b.slot, g))
		}
		return // taken before
	}
	s.gone[tok] = here(r.owner, r.at)
	s.order = append(s.order, tok)
	if len(s.order) > maxGone {
		delete(s.gone, s.order[0])
		s.order = s.order[1:]
	}
	delete(s.refs, tok)
}

// last moves what is known of a buffer to the past: its last reference goes.
func (t *tracer) last(b RDMABuffer) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if s := t.slots[b.num()]; s != nil && s.gen == b.gen&maxGen {
		t.past[b.num()] = s
		delete(t.slots, b.num())
	}
}

// released says where a buffer that was used once too often was released.
func (t *tracer) released(b RDMABuffer) string {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.past[b.num()]
	if s == nil || s.gen != b.gen&maxGen {
		return ""
	}
	at, ok := s.gone[b.gen>>tokenShift]
	if !ok {
		return ""
	}
	return "; this reference was released at\n" + at.String()
}

func (t *tracer) post(b RDMABuffer, now uint32) {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.ofBuffer(b)
	s.posted = append(s.posted, here(s.owner(b), now))
}

func (t *tracer) unpost(b RDMABuffer) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if s := t.slots[b.num()]; s != nil && s.gen == b.gen&maxGen && len(s.posted) > 0 {
		s.posted = s.posted[1:]
	}
}

// of returns the references to a slot: those of holders, then of posted work.
func (t *tracer) of(s uint32, gen uint64) (refs []trace, posted []trace) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if e := t.slots[s]; e != nil && e.gen == gen {
		for _, r := range e.refs {
			refs = append(refs, r)
		}
		posted = append(posted, e.posted...)
	}
	return refs, posted
}
