package buffer

import (
	"fmt"
	"sync"
)

// FullError says that memory could not be had, and in what state the arena was.
// It matches the error of the context that ended, or ErrExhausted, and, where the
// arena failed to grow, what was the reason.
type FullError struct {
	Want    int64  // bytes
	Owner   string // who asked
	Quota   int64  // of the owner, if that was in the way; else 0
	Total   int64  // bytes of the arena, mapped now
	Budget  int64  // bytes that it may map
	Free    int64  // bytes that nobody had then, but for what caches kept; not all in one piece
	Waiting int    // Gets that waited besides
	Grow    error  // why the arena could not grow, or nil
	Err     error  // of the context, or ErrExhausted

	a    *Arena
	once sync.Once
	most OwnerStats
}

// full makes a FullError for w. Under Arena.mu.
func (a *Arena) full(w *waiter, err error) *FullError {
	o := a.owner(w.owner)
	e := &FullError{
		Want: w.bytes, Owner: o.name, Total: a.total, Budget: a.cfg.Budget, Free: a.total - a.out, Waiting: a.waiting,
		Grow: a.failed, Err: err, a: a,
	}
	if q := o.quota.Load(); q != 0 && !w.charged && o.avail < w.bytes {
		e.Quota = q
	}
	return e
}

// waitEnded is err, of ctx, as the end of w's wait.
func (a *Arena) waitEnded(w *waiter, err error) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.full(w, err)
}

// Largest is the owner that holds most, and how many bytes, when it is first
// asked for: it looks at all buffers.
func (e *FullError) Largest() (owner string, held int64) {
	e.once.Do(func() {
		for _, o := range e.a.Stats().Owners {
			if o.Held > e.most.Held {
				e.most = o
			}
		}
	})
	return e.most.Name, e.most.Held
}

func (e *FullError) Error() string {
	remedy := "raise Config.Budget, or release sooner"
	if e.Quota > 0 {
		remedy = fmt.Sprintf("the quota of %d bytes is spent: raise it with Arena.Owner, or release sooner", e.Quota)
	}
	s := fmt.Sprintf("%v: %d bytes for %q are not free of %d (budget %d): %d are free, %d other Gets wait", e.Err, e.Want, e.Owner, e.Total, e.Budget, e.Free, e.Waiting)
	if name, held := e.Largest(); held > 0 {
		s += fmt.Sprintf(", %q holds most: %d", name, held)
	}
	s += ": " + remedy
	if e.Grow != nil {
		s += ": " + e.Grow.Error()
	}
	return s
}

// Unwrap returns Err and Grow.
func (e *FullError) Unwrap() []error {
	if e.Grow == nil {
		return []error{e.Err}
	}
	return []error{e.Err, e.Grow}
}
