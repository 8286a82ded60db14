package buffer

import (
	"context"

	"github.com/argonaut-rdma/argonaut/verbs"
)

// Arena is registered memory, cut into reference-counted buffers. Its methods
// are safe for concurrent use.
type Arena struct{}

// New maps the memory of an arena that no PD is attached to. Without a device
// it serves streams. Errors: ErrInvalid, ErrNotSupported, *LimitError, the
// system's.
func New(cfg Config) (*Arena, error) { return nil, ErrNotSupported }

// Attach registers every region on pd, with local rights (and window binding
// where the device has windows), or none. Before that it checks the device's
// limits and, where the device pins, RLIMIT_MEMLOCK: see Preflight. Attaching
// again changes nothing. It may take long for large arenas; ctx ends it.
func (a *Arena) Attach(ctx context.Context, pd *verbs.PD) error { return ErrNotSupported }

// Detach deregisters every region from pd, in parallel batches. Buffers may be
// held meanwhile, but no posted work may name them on pd and no grant be live
// there: otherwise the error matches verbs.ErrBusy and everything stays
// attached. A region that the device fails to deregister, or is still
// deregistering when ctx ends, is named in the error; call Detach again for
// it. As soon as Detach deregisters, SGE(pd) returns SGEs that a post refuses.
// Detaching what is not attached returns nil.
func (a *Arena) Detach(ctx context.Context, pd *verbs.PD) error { return ErrNotSupported }

// Attached reports whether SGEs for pd can be made.
func (a *Arena) Attached(pd *verbs.PD) bool { return false }

// Get returns a reference to a buffer of n bytes, 1 to the largest class. It
// waits, first come first served, until the memory is free and o's quota
// allows it, or ctx ends: then it returns ctx's error and has taken nothing.
// The contents are undefined (see Config.Scrub). Errors: ErrTooLarge (use
// GetList), ErrQuota (n can never fit o's quota), ErrInvalid, ErrClosed, and
// with Config.FailWhenFull ErrExhausted and ErrQuota. An uncontended call
// allocates nothing.
func (a *Arena) Get(ctx context.Context, n int, o Owner) (RDMABuffer, error) {
	return RDMABuffer{}, ErrNotSupported
}

// TryGet is Get that returns false where Get would wait or fail. It never
// blocks: pollers may call it.
func (a *Arena) TryGet(n int, o Owner) (RDMABuffer, bool) { return RDMABuffer{}, false }

// GetList returns a list of n bytes, 1 and more: buffers of the largest class
// and one of the class that holds the rest. It takes all of them or none, and
// waits as Get does. ErrTooLarge means that the arena can never give so much.
func (a *Arena) GetList(ctx context.Context, n int64, o Owner) (*List, error) {
	return nil, ErrNotSupported
}

// TryGetList is GetList that returns false where GetList would wait or fail.
// It never blocks.
func (a *Arena) TryGetList(n int64, o Owner) (*List, bool) { return nil, false }

// Classes returns the size classes in bytes, ascending.
func (a *Arena) Classes() []int { return nil }

// Account returns how much memory is in which state; see Account. It walks the
// slot table: microseconds per MiB of small slots.
func (a *Arena) Account() Account { return Account{} }

// Holders lists who holds which buffers. With Config.Trace there is one entry
// per reference with its stack, else one per buffer.
func (a *Arena) Holders() []Holder { return nil }

// Stats returns the arena's counters and gauges.
func (a *Arena) Stats() Stats { return Stats{} }

// Close refuses new Gets (waiting ones end with ErrClosed), waits until every
// buffer is back or ctx ends, detaches from every PD in parallel batches and
// unmaps the memory. If buffers are still held, or a region is still
// registered, it returns *LeakError naming them, and keeps mapped and, where a
// device may still use it, registered what they are in; the rest is freed.
// Close may be called again to finish, for instance when QPs are gone; once it
// has returned nil it always does.
func (a *Arena) Close(ctx context.Context) error { return ErrNotSupported }
