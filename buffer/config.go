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
	// largest class): it never maps more. 24 bytes of the Go heap go with each
	// slot of the smallest class in it: 1.5 GiB for 256 GiB of 4 KiB, however
	// little is mapped. Default 256 MiB.
	Budget int64
	// Initial is how much of Budget New maps, in bytes, rounded up to whole
	// regions. It stays mapped and registered until Close. The rest is added by
	// whole regions as it is needed, off the data path, and given up when idle.
	// Default all of Budget.
	Initial int64
	// LowWater: when fewer bytes than this are in chunks that nobody uses, a
	// region is added, within Budget. Default a quarter of RegionSize; negative:
	// only when somebody waits. Used with Initial.
	LowWater int64
	// ShrinkAfter is for how long a region beyond Initial has to have been free,
	// with LowWater bytes free besides, before it is deregistered and unmapped.
	// Default 1 min; negative: never. Used with Initial.
	ShrinkAfter time.Duration
	// RegionSize is the size of a region in bytes, a power of two from the
	// largest class to 1 GiB: what one registration covers, and the step in
	// which the arena grows and shrinks. Default 1 GiB, or the smallest that
	// holds the Budget; with Initial the smallest that holds an eighth of it.
	RegionSize int64
	// Classes are the sizes of slots in bytes, ascending powers of two from
	// 4 KiB to RegionSize. The largest is the size of a chunk. Default every
	// power of two from 4 KiB to 1 MiB.
	Classes []int
	// Reserve is how many bytes of Budget only Control may use, rounded up to
	// whole chunks, less than Initial. Default a 64th of Initial; at least one
	// chunk if there are eight. Negative: none.
	Reserve int64
	// Heap takes the memory from the Go heap instead of mmap. Race builds do
	// so always, because the race detector does not see other memory.
	Heap bool
	// NoHugePages uses 4 KiB pages only. By default 2 MiB pages of the
	// system's pool are tried, and touched at once (Linux 5.14 and later), then
	// transparent huge pages, then 4 KiB; Stats.Backing says which it was.
	NoHugePages bool
	// Prefault touches all memory in New, in parallel, so that no page fault
	// happens later. Default off: a page is used when it is touched, or pinned
	// by a device that pins.
	Prefault bool
	// Scrub zeroes a slot when it changes owners. Default off: the new owner
	// sees what the old one left.
	Scrub bool
	// TrustFabric exposes the arena's memory: on devices that can not confine a
	// key to a range and a connection (neither scoped keys nor windows that
	// confine), and on those that READ only into remotely writable memory, the
	// regions are registered with remote read and write rights, and a grant is
	// the key of the whole region. Whoever has a connection on the PD, and has
	// seen or guessed a key, can then read and write all of the arena, at any
	// time until its connection is gone: what a grant was for is only
	// agreed, and Revoke only gives the memory back. So it is for payload only,
	// in an arena of its own, where every machine that can reach the device is
	// as trusted as this one; with Scrub nobody sees there what others have left,
	// and builds with the tag invariants find writes beside and after. Such an
	// arena does not shrink. Default off: payload that can not be granted travels
	// in messages.
	TrustFabric bool
	// FailWhenFull makes Get and GetList return ErrExhausted or ErrQuota where
	// they would wait for somebody to release. For memory within Budget that is
	// yet to be added they wait. Default off.
	FailWhenFull bool
	// Trace records a stack per reference, and gives every Retain a token of
	// its own so that a reference released twice is found: use the handle that
	// Retain returned. It costs microseconds per call. Default off; see
	// Arena.SetTrace.
	Trace bool
	// MaxAge is how long a buffer may be held before that is logged, once per
	// Get, with its owner; and counted in Stats.Overdue. Whole seconds count.
	// Default: no limit.
	MaxAge time.Duration
	// NUMANodes are the numbers of the nodes that the memory may come from
	// (mbind(2), MPOL_BIND). Default: what the kernel chooses, the node of the
	// thread that touches it first. Linux only, not with Heap.
	NUMANodes []int
	// Progress is called as long operations go on: touching, registering and
	// deregistering memory. Calls of one step do not overlap; it must not block
	// or call the arena. Default: nobody is told.
	Progress func(Progress)
	// Logger gets what no caller can be told. nil: silent.
	Logger *slog.Logger
}

const (
	defaultBudget  = 256 << 20
	maxRegion      = 1 << 30
	defaultLargest = 1 << 20
)

// SuperRegions is a Config for large payload only: regions of 1 GiB, each one
// registration, cut into slots of 1 MiB. budget is in bytes.
func SuperRegions(budget int64) Config {
	return Config{Budget: budget, RegionSize: maxRegion, Classes: []int{1 << 20}}
}

// withDefaults fills in the defaults and checks what is given.
func (c Config) withDefaults() (Config, error) {
	fail := func(format string, args ...any) (Config, error) {
		return c, fmt.Errorf("%w: Config."+format, append([]any{ErrInvalid}, args...)...)
	}
	if c.MaxAge < 0 {
		c.MaxAge = 0
	}
	if len(c.NUMANodes) > 0 && c.Heap {
		return fail("NUMANodes with Heap: the Go heap can not be bound to nodes")
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
	elastic := c.Initial != 0
	switch {
	case c.RegionSize == 0:
		c.RegionSize = chunk
		hold := c.Budget
		if elastic {
			hold /= 8
		}
		for c.RegionSize < min(hold, maxRegion) {
			c.RegionSize *= 2
		}
	case c.RegionSize < chunk || c.RegionSize > maxRegion || c.RegionSize&(c.RegionSize-1) != 0:
		return fail("RegionSize of %d bytes: give a power of two from %d, the largest class, to %d", c.RegionSize, chunk, maxRegion)
	}
	switch {
	case c.Initial < 0 || c.Initial > c.Budget:
		return fail("Initial of %d bytes: give from 1 to the Budget of %d", c.Initial, c.Budget)
	case !elastic:
		c.Initial = c.Budget
	default:
		c.Initial = min(c.Budget, (c.Initial+c.RegionSize-1)/c.RegionSize*c.RegionSize)
	}
	if c.LowWater == 0 {
		c.LowWater = c.RegionSize / 4
	}
	if c.ShrinkAfter == 0 {
		c.ShrinkAfter = time.Minute
	}
	if c.TrustFabric {
		c.ShrinkAfter = -1 // who has a key keeps it, and not every device ends its use in time
	}
	switch {
	case c.Reserve < 0:
		c.Reserve = 0
	case c.Reserve == 0:
		c.Reserve = c.Initial / 64 / chunk * chunk
		if c.Reserve == 0 && c.Initial >= 8*chunk {
			c.Reserve = chunk
		}
	default:
		if c.Reserve >= c.Initial {
			return fail("Reserve of %d bytes leaves nothing of the Budget of %d, or of Initial: lower it, or raise Budget", c.Reserve, c.Initial)
		}
		c.Reserve = (c.Reserve + chunk - 1) / chunk * chunk
		if c.Reserve >= c.Initial {
			return fail("Reserve is %d bytes in whole chunks of the largest class and leaves nothing of the Budget of %d, or of Initial: lower it, or raise Budget", c.Reserve, c.Initial)
		}
	}
	c.Heap = c.Heap || raceBuild
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c, nil
}
