package buffer

import (
	"fmt"
	"log/slog"
	"slices"
	"time"
)

// Page is the alignment of every buffer's memory and the smallest size class.
const Page = 4 << 10

// Config is what an Arena is made of. The zero value is the default.
type Config struct {
	// Budget is the arena's size in bytes, rounded up to whole chunks (the
	// largest class). All of it is mapped by New and stays. Default 256 MiB.
	Budget int64
	// RegionSize is the size of a region in bytes, a power of two from the
	// largest class to 1 GiB: what one registration covers. Default 1 GiB, or
	// the smallest that holds the Budget.
	RegionSize int64
	// Classes are the sizes of slots in bytes, ascending powers of two from
	// 4 KiB to RegionSize. The largest is the size of a chunk. Default every
	// power of two from 4 KiB to 1 MiB.
	Classes []int
	// Reserve is how many bytes of Budget only Control may use, rounded up to
	// whole chunks, less than Budget. Default a 64th of Budget; at least one
	// chunk if there are eight. Negative: none.
	Reserve int64
	// Heap takes the memory from the Go heap instead of mmap. Race builds do
	// so always, because the race detector does not see other memory.
	Heap bool
	// NoHugePages uses 4 KiB pages only. By default 2 MiB pages of the
	// system's pool are tried, then transparent huge pages, then 4 KiB;
	// Stats.Backing says which it was.
	NoHugePages bool
	// Prefault touches all memory in New, in parallel, so that no page fault
	// happens later. Default off: a page is used when it is touched, or pinned
	// by a device that pins.
	Prefault bool
	// Scrub zeroes a slot when it changes owners. Default off: the new owner
	// sees what the old one left.
	Scrub bool
	// FailWhenFull makes Get and GetList return ErrExhausted or ErrQuota where
	// they would wait. Default off.
	FailWhenFull bool
	// Trace records a stack per reference, and gives every Retain a token of
	// its own so that a reference released twice is found: use the handle that
	// Retain returned. It costs microseconds per call. Default off.
	Trace bool
	// MaxAge is not built yet: New returns ErrNotSupported unless it is 0.
	MaxAge time.Duration
	// NUMANode is not built yet: New returns ErrNotSupported unless it is 0.
	NUMANode int
	// Logger gets what no caller can be told. nil: silent.
	Logger *slog.Logger
}

const (
	defaultBudget  = 256 << 20
	maxRegion      = 1 << 30
	defaultLargest = 1 << 20
)

// withDefaults fills in the defaults and checks what is given.
func (c Config) withDefaults() (Config, error) {
	fail := func(format string, args ...any) (Config, error) {
		return c, fmt.Errorf("%w: Config."+format, append([]any{ErrInvalid}, args...)...)
	}
	if c.MaxAge != 0 || c.NUMANode != 0 {
		return c, fmt.Errorf("%w: Config.MaxAge and Config.NUMANode are not built yet: leave them 0", ErrNotSupported)
	}
	if c.Budget == 0 {
		c.Budget = defaultBudget
	}
	if c.Budget < 0 || c.Budget>>52 != 0 {
		return fail("Budget of %d bytes: give what the arena may use", c.Budget)
	}
	if c.Classes == nil {
		for size := Page; size <= defaultLargest; size *= 2 {
			c.Classes = append(c.Classes, size)
		}
	}
	if len(c.Classes) == 0 {
		return fail("Classes is empty: leave it nil for the default")
	}
	c.Classes = slices.Clone(c.Classes)
	last := 0
	for _, size := range c.Classes {
		if size < Page || size > maxRegion || size&(size-1) != 0 || size <= last {
			return fail("Classes %v: give ascending powers of two from %d to %d", c.Classes, Page, maxRegion)
		}
		last = size
	}
	chunk := int64(last)
	c.Budget = (c.Budget + chunk - 1) / chunk * chunk
	if c.Budget/int64(c.Classes[0]) > 1<<31 {
		return fail("Budget of %d bytes is more than 2^31 of the smallest class: drop small Classes", c.Budget)
	}
	switch {
	case c.RegionSize == 0:
		c.RegionSize = chunk
		for c.RegionSize < min(c.Budget, maxRegion) {
			c.RegionSize *= 2
		}
	case c.RegionSize < chunk || c.RegionSize > maxRegion || c.RegionSize&(c.RegionSize-1) != 0:
		return fail("RegionSize of %d bytes: give a power of two from %d, the largest class, to %d", c.RegionSize, chunk, maxRegion)
	}
	switch {
	case c.Reserve < 0:
		c.Reserve = 0
	case c.Reserve == 0:
		c.Reserve = c.Budget / 64 / chunk * chunk
		if c.Reserve == 0 && c.Budget >= 8*chunk {
			c.Reserve = chunk
		}
	default:
		if c.Reserve >= c.Budget {
			return fail("Reserve of %d bytes leaves nothing of the Budget of %d: lower it, or raise Budget", c.Reserve, c.Budget)
		}
		c.Reserve = (c.Reserve + chunk - 1) / chunk * chunk
		if c.Reserve >= c.Budget {
			return fail("Reserve is %d bytes in whole chunks of the largest class and leaves nothing of the Budget of %d: lower it, or raise Budget", c.Reserve, c.Budget)
		}
	}
	c.Heap = c.Heap || raceBuild
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c, nil
}
