package buffer

import (
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
)

// tracer knows every reference, by token, while Config.Trace is on.
type tracer struct {
	mu    sync.Mutex
	slots map[uint32]*traced // those in use
	past  map[uint32]*traced // what was known at the last release
}

type traced struct {
	gen    uint64
	next   uint64           // token
	refs   map[uint64]trace // by token
	gone   map[uint64]trace // where they were released
	posted []trace
}

type trace struct {
	owner Owner
	at    uint32 // on the arena's clock
	pcs   [24]uintptr
	depth int
}

const maxToken = 1<<(64-tokenShift) - 1

func newTracer() *tracer {
	return &tracer{slots: map[uint32]*traced{}, past: map[uint32]*traced{}}
}

func here(o Owner, now uint32) trace {
	t := trace{owner: o, at: now}
	t.depth = runtime.Callers(3, t.pcs[:]) // without Callers, here and the tracer's method
	return t
}

// own are the functions of this package that a stack does not begin with.
var own = []string{"buffer.(*Arena).", "buffer.RDMABuffer.", "buffer.(*List)."}

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
	t.slots[b.num()] = &traced{gen: b.gen & maxGen, next: 2, refs: map[uint64]trace{1: here(o, now)}, gone: map[uint64]trace{}}
	return 1
}

// retain records another reference.
func (t *tracer) retain(b RDMABuffer, now uint32) uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.slots[b.num()]
	for {
		tok := s.next
		s.next = s.next%maxToken + 1
		if _, used := s.refs[tok]; used {
			continue
		}
		s.refs[tok] = here(s.refs[b.gen>>tokenShift].owner, now)
		delete(s.gone, tok)
		return tok
	}
}

// release strikes b's reference off. It panics if it was released before.
func (t *tracer) release(b RDMABuffer) {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.slots[b.num()]
	if s == nil || s.gen != b.gen&maxGen {
		return // dead says so
	}
	tok := b.gen >> tokenShift
	if _, ok := s.refs[tok]; !ok {
		panic(fmt.Sprintf("buffer: one reference to buffer %d was released twice, the first time at\n%s", b.slot, s.gone[tok]))
	}
	s.gone[tok] = here(s.refs[tok].owner, s.refs[tok].at)
	delete(s.refs, tok)
}

// last moves what is known of a buffer to the past: its last reference goes.
func (t *tracer) last(b RDMABuffer) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if s := t.slots[b.num()]; s != nil {
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
	s := t.slots[b.num()]
	s.posted = append(s.posted, here(s.refs[b.gen>>tokenShift].owner, now))
}

func (t *tracer) unpost(b RDMABuffer) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if s := t.slots[b.num()]; s != nil && len(s.posted) > 0 {
		s.posted = s.posted[1:]
	}
}

// of returns the references to a slot: those of holders, then of posted work.
func (t *tracer) of(s uint32) (refs []trace, posted []trace) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if e := t.slots[s]; e != nil {
		for _, r := range e.refs {
			refs = append(refs, r)
		}
		posted = append(posted, e.posted...)
	}
	return refs, posted
}
