package buffer

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
)

// LeakError is what Close returns when not everything came back.
type LeakError struct {
	What        string   // "arena", or "memory" of the caller
	Holders     []Holder // buffers, or references with Config.Trace, that are still held
	Regions     []error  // regions that could not be deregistered or unmapped, and why
	Quarantined int64    // bytes that stay mapped
}

const (
	// listed is how many holders and regions an error message names at most,
	listed = 16
	// and frames how many frames of a stack.
	frames = 3
)

// Error names holders and regions, up to some number, and where references were
// taken; all of it, with whole stacks, is in the fields and in Arena.Report.
func (e *LeakError) Error() string {
	var s strings.Builder
	what, stay := "arena", "stay mapped"
	if e.What == "memory" {
		what, stay = e.What, "have to stay mapped"
	}
	fmt.Fprintf(&s, "buffer: %s not closed: %d bytes %s", what, e.Quarantined, stay)
	if len(e.Holders) > 0 {
		fmt.Fprintf(&s, "; %d buffers are held: release them, close the connections that send or receive with them (the QPs that have them posted), and call Close again", len(e.Holders))
	}
	for i, h := range e.Holders {
		if i == listed {
			fmt.Fprintf(&s, "\n\t%d more, see Arena.Report", len(e.Holders)-listed)
			break
		}
		h.Stack = top(h.Stack, frames)
		s.WriteString("\n\t" + strings.ReplaceAll(h.String(), "\n", "\n\t"))
	}
	for i, err := range e.Regions {
		if i == listed {
			fmt.Fprintf(&s, "\n\t%d more regions, see Arena.Report", len(e.Regions)-listed)
			break
		}
		s.WriteString("\n\t" + err.Error())
	}
	return s.String()
}

// top is the first n frames of a stack, which has two lines for each.
func top(stack string, n int) string {
	end := 0
	for range 2 * n {
		i := strings.IndexByte(stack[end:], '\n')
		if i < 0 {
			return stack
		}
		end += i + 1
	}
	if end < len(stack) {
		return stack[:end] + "...\n"
	}
	return stack
}

// Unwrap returns Regions.
func (e *LeakError) Unwrap() []error { return e.Regions }

// Holder describes a buffer that somebody holds.
type Holder struct {
	Owner  string
	What   string        // what it is held for, where somebody knows: see Arena.Describe
	Age    time.Duration // since Get (with Trace: since the reference was taken), to a second
	LKey   uint32        // on the PD attached first; 0 when none is
	Addr   uint64        // of the first byte of the slot
	Len    uint64        // of the slot, in bytes
	Refs   int           // references
	Posted int           // of them, by posted work
	Stack  string        // where the reference was taken, with Config.Trace
}

func (h Holder) String() string {
	s := fmt.Sprintf("%q holds %d bytes at 0x%x (lkey 0x%x) for %v, %d references", h.Owner, h.Len, h.Addr, h.LKey, h.Age, h.Refs)
	if h.Posted > 0 {
		s += fmt.Sprintf(", %d of them posted work", h.Posted)
	}
	if h.What != "" {
		s += ": " + h.What
	}
	if h.Stack != "" {
		s += ", taken at\n" + strings.TrimSuffix(h.Stack, "\n")
	}
	return s
}

// Holders lists who holds which buffers. With Config.Trace there is one entry
// per reference with its stack, else one per buffer.
func (a *Arena) Holders() []Holder {
	var hs []Holder
	tr := a.tracer.Load()
	uses := a.uses()
	a.walk(func(s uint32, cl uint8, state uint64) {
		if !referenced(state) {
			return
		}
		h := a.holder(s, cl, state, a.slots[s].meta.Load(), uses)
		var refs, posted []trace
		if tr != nil {
			refs, posted = tr.of(s, gen(state))
		}
		// References that are not known were taken while tracing was off.
		if rest := h.Refs - len(refs) - len(posted); rest > 0 || tr == nil {
			old := h
			old.Refs, old.Posted = rest, max(h.Posted-len(posted), 0)
			hs = append(hs, old)
		}
		h.Refs = 1
		for i, t := range append(refs, posted...) {
			h.Posted = 0
			if i >= len(refs) {
				h.Posted = 1
			}
			h.Owner, h.Age, h.Stack = a.nameOf(t.owner), a.age(t.at), t.String()
			hs = append(hs, h)
		}
	})
	return hs
}

// holder describes a buffer, whose slot has or had state and meta. Under Arena.mu.
func (a *Arena) holder(s uint32, cl uint8, state, meta uint64, uses map[uint32]use) Holder {
	h := Holder{
		Owner: a.nameOf(ownerOf(meta)), Age: a.age(bornAt(meta)), Len: uint64(a.sizes[cl]), Refs: int(count(state)),
		Addr: uint64(uintptr(a.addr(s))), Posted: int(a.slots[s].posted.Load()),
	}
	if u, ok := uses[s]; ok && u.gen == gen(state) {
		h.What = u.what
	}
	if ats := *a.attachments.Load(); len(ats) > 0 {
		if mr := ats[0].regs[s>>a.rgnShift].mr.Load(); mr != nil {
			h.LKey = mr.LKey()
		}
	}
	return h
}

// age is how long ago the arena's clock was at.
func (a *Arena) age(at uint32) time.Duration {
	return time.Duration(max(int64(a.now.Load())-int64(at), 0)) * time.Second
}

// Oldest lists the buffers that have been held longest and are not posted, the
// oldest first, at most most: one Holder each, without stacks. It looks at all and
// keeps no more than that. What is released meanwhile is left out. What a GetList that waits has got so far is its owner's.
// A buffer that another goroutine is getting in this very moment may still be listed
// with its former owner and age.
func (a *Arena) Oldest(most int) []Holder {
	type old struct {
		slot  uint32
		cl    uint8
		state uint64
		meta  uint64
	}
	if most <= 0 {
		return nil
	}
	var top []old
	a.walk(func(s uint32, cl uint8, state uint64) {
		if !referenced(state) || a.slots[s].posted.Load() > 0 {
			return
		}
		o := old{s, cl, state, a.slots[s].meta.Load()}
		if len(top) == most {
			if bornAt(o.meta) >= bornAt(top[most-1].meta) {
				return
			}
			top = top[:most-1]
		}
		i, _ := slices.BinarySearchFunc(top, bornAt(o.meta)+1, func(x old, at uint32) int { return cmp.Compare(bornAt(x.meta), at) })
		top = slices.Insert(top, i, o)
	})
	uses := a.uses()
	hs := make([]Holder, 0, len(top))
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, o := range top {
		if now := a.slots[o.slot].state.Load(); !referenced(now) || gen(now) != gen(o.state) {
			continue // released meanwhile, and its region may be gone
		}
		hs = append(hs, a.holder(o.slot, o.cl, o.state, o.meta, uses))
	}
	return hs
}
