package buffer

import "sync"

// describers know what buffers are held for, beyond their owners.
type describers struct {
	mu  sync.Mutex
	all map[*describer]struct{}
}

type describer struct {
	f func(yield func(b RDMABuffer, what string))
}

// Describe makes Holders, reports and LeakErrors say what a buffer is held for: f
// is asked then, and yields what it knows, from any goroutine and perhaps by
// several at a time. It needs no reference to what it yields: what has been
// released meanwhile is left out. f must not call the arena. It is asked until
// stop is called.
func (a *Arena) Describe(f func(yield func(b RDMABuffer, what string))) (stop func()) {
	d := &describer{f: f}
	a.describers.mu.Lock()
	defer a.describers.mu.Unlock()
	if a.describers.all == nil {
		a.describers.all = map[*describer]struct{}{}
	}
	a.describers.all[d] = struct{}{}
	return func() {
		a.describers.mu.Lock()
		defer a.describers.mu.Unlock()
		delete(a.describers.all, d)
	}
}

// use is what a slot was held for in a generation.
type use struct {
	gen  uint64
	what string
}

// uses asks the describers what slots are held for.
func (a *Arena) uses() map[uint32]use {
	a.describers.mu.Lock()
	var all []*describer
	for d := range a.describers.all {
		all = append(all, d)
	}
	a.describers.mu.Unlock()
	uses := map[uint32]use{}
	for _, d := range all {
		d.f(func(b RDMABuffer, what string) {
			if b.a != a {
				return
			}
			u := use{b.gen & maxGen, what}
			switch old, ok := uses[b.num()]; {
			case ok && old.gen > u.gen: // of the past
				return
			case ok && old.gen == u.gen && old.what != what:
				u.what = old.what + ", " + what
			}
			uses[b.num()] = u
		})
	}
	return uses
}
