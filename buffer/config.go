package buffer

import (
	"log/slog"
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
