package buffer

import (
	"errors"
	"fmt"

	"github.com/argonaut-rdma/argonaut/verbs"
)

// Errors to be tested for with errors.Is.
var (
	// ErrClosed: the arena is closed, or closing.
	ErrClosed = verbs.ErrClosed
	// ErrNotSupported: not built, or the device can not do it.
	ErrNotSupported = verbs.ErrNotSupported
	// ErrInvalid: an argument or a Config field is out of range.
	ErrInvalid = verbs.ErrInvalid
	// ErrTooLarge: more than the largest class (use GetList), or more than the
	// arena can ever give.
	ErrTooLarge = errors.New("buffer too large")
	// ErrQuota: the owner's quota does not allow it.
	ErrQuota = errors.New("owner's quota exceeded")
	// ErrExhausted: no memory is free and Config.FailWhenFull is set.
	ErrExhausted = errors.New("arena exhausted")

	// Why tryAcquire has got nothing though it may get it later.
	errNoMemory = errors.New("no memory is free")
	errNoQuota  = errors.New("no quota is left")

	errForeign     = fmt.Errorf("%w: memory of a RegCache is not an arena to be used: use the RegCache", ErrNotSupported)
	errArenaClosed = fmt.Errorf("buffer: the arena is closed or closing: %w", ErrClosed)
)

// LimitError says that a limit of the system or of a device is too low. It
// matches verbs.ErrMemlock or verbs.ErrLimit.
type LimitError struct {
	Limit   string // "RLIMIT_MEMLOCK", "MaxMR of iwarp" ...
	Need    uint64 // what is needed in all, in the unit of the limit
	Used    uint64 // what is used already, part of Need
	Allowed uint64
	Unit    string // "bytes", "regions", "pages"
	Remedy  string // what to do
	Err     error  // verbs.ErrMemlock or verbs.ErrLimit, perhaps wrapped
}

// Unwrap returns Err.
func (e *LimitError) Unwrap() error { return e.Err }
