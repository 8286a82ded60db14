package buffer

import (
	"context"
	"fmt"
	"math/bits"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/argonaut-rdma/argonaut/verbs/histogram"
)

// Arena is registered memory, cut into reference-counted buffers. Its methods
// are safe for concurrent use.
type Arena struct {
	cfg Config // with defaults filled in

	// A slot is known by the number of its first unit: the size of the
	// smallest class.
	unitBits   uint8 // log2 of bytes per unit
	chunkShift uint8 // log2 of units per chunk
	rgnShift   uint8 // log2 of units per region
	sizes      []int // of the classes
	classOf    [32]uint8
	chunkSize  int64
	scrub      bool
	slots      []slot
	regions    []region
	lens       []atomic.Uint32        // of the buffers in slots, in checked builds
	backing    string                 // of the first region
	foreign    *RegCache              // not nil: an arena of the caller's memory
	tracer     atomic.Pointer[tracer] // nil: no tracing
	tokens     atomic.Uint64          // given to traced references, of all tracers
	cores      cores

	gate    atomic.Int64  // not 0: somebody waits, or the arena closes
	now     atomic.Uint32 // seconds since start
	start   time.Time
	owners  atomic.Pointer[[]*owner]
	copied  atomic.Uint64
	grants  atomic.Int64
	overdue atomic.Uint64

	attachSem   chan struct{} // held by Attach, Detach, Close and the keeper, one at a time: see lockAttach
	attachments atomic.Pointer[[]*attachment]
	detaching   []*attachment // under attachSem
	closed      bool          // Close has succeeded. Under attachSem
	quarantined atomic.Int64  // bytes that Close kept mapped
	describers  describers    // see Describe

	getWait histogram.Counter // see Latencies

	mu        sync.Mutex
	chunks    []chunk // but for class, see chunk
	pools     [pools]pool
	lines     [maxClasses + 2]queue // see line
	heads     [maxClasses + 2]*waiter
	victim    uint32 // chunk + 1 that drains, or 0
	freed     uint32 // chunk that a slot came back to last
	tickets   uint64
	waiting   int
	waited    uint64
	exhausted uint64
	total     int64 // bytes that are live, without retired slots
	out       int64 // bytes of slots that are not in their chunks
	retired   int64 // bytes
	closing   bool
	idle      chan struct{} // closed when out is 0 and the arena closes
	stopClock chan struct{}
	clockDone chan struct{}

	growth // see there
}

// New maps the memory of an arena that no PD is attached to. Without a device
// it serves streams. Errors: ErrInvalid, ErrNotSupported, *LimitError, the
// system's.
func New(cfg Config) (*Arena, error) { return NewContext(context.Background(), cfg) }

// NewContext is New that ctx ends while memory is touched (Config.Prefault):
// that takes a second or so for each few GiB.
func NewContext(ctx context.Context, cfg Config) (*Arena, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	sys := systemLimits()
	if err := sys.holds(cfg); err != nil {
		return nil, err
	}
	if err := sys.fits(cfg.Budget); err != nil {
		if cfg.Prefault {
			return nil, err
		}
		cfg.Logger.Warn("the arena does not fit its cgroup if all of it is used", "err", err)
	}
	largest := cfg.Classes[len(cfg.Classes)-1]
	a := &Arena{
		cfg:       cfg,
		unitBits:  uint8(bits.TrailingZeros(uint(cfg.Classes[0]))),
		sizes:     cfg.Classes,
		chunkSize: int64(largest),
		scrub:     cfg.Scrub,
		start:     time.Now(),
		attachSem: make(chan struct{}, 1),
		idle:      make(chan struct{}),
		stopClock: make(chan struct{}),
		clockDone: make(chan struct{}),
	}
	a.chunkShift = uint8(bits.TrailingZeros(uint(largest))) - a.unitBits
	a.rgnShift = uint8(bits.TrailingZeros64(uint64(cfg.RegionSize))) - a.unitBits
	for cl := len(cfg.Classes) - 1; cl >= 0; cl-- {
		for b := range bits.Len(uint(cfg.Classes[cl]-1)) + 1 {
			a.classOf[b] = uint8(cl)
		}
	}
	a.slots = make([]slot, cfg.Budget>>a.unitBits)
	if invariants {
		a.lens = make([]atomic.Uint32, len(a.slots))
	}
	a.cores.init(cfg.Classes, cfg.Budget/int64(16*numCores()))
	a.owners.Store(&[]*owner{
		{name: "anonymous", leases: make([]lease, a.cores.leases)},
		{name: "control", leases: make([]lease, a.cores.leases)},
	})
	a.attachments.Store(&[]*attachment{})
	if cfg.Trace {
		a.SetTrace(true)
	}
	a.chunks = make([]chunk, cfg.Budget/a.chunkSize)
	reserve, initial := uint32(cfg.Reserve/a.chunkSize), uint32(cfg.Initial/a.chunkSize)
	for i := range a.chunks {
		c := &a.chunks[i]
		c.class = noClass
		switch {
		case uint32(i) < reserve:
			c.pool = poolReserve
		case uint32(i) >= initial:
			c.pool = poolElastic
		}
	}
	if a.regions, err = mapRegions(ctx, cfg); err != nil {
		return nil, err
	}
	a.backing = a.regions[0].backing
	a.mu.Lock()
	for i := len(a.regions) - 1; i >= 0; i-- {
		if r := &a.regions[i]; r.state == regionLive {
			if invariants {
				poison(r.mem)
			}
			a.open(i)
		}
	}
	a.mu.Unlock()
	cfg.Logger.Info("arena mapped", "bytes", cfg.Initial, "budget", cfg.Budget, "backing", a.backing)
	// The clock is the arena's; Close ends it.
	go a.clock()
	a.startKeeper()
	return a, nil
}

// clock keeps now, from New to Close.
func (a *Arena) clock() {
	defer close(a.clockDone)
	t := time.NewTicker(time.Second)
	defer t.Stop()
	age := ageWatch{every: uint32(max(a.cfg.MaxAge/4, time.Second) / time.Second), told: map[uint32]uint64{}}
	for {
		select {
		case <-t.C:
			a.now.Store(uint32(time.Since(a.start) / time.Second))
			if a.cfg.MaxAge > 0 {
				a.watchAge(&age)
			}
		case <-a.stopClock:
			return
		}
	}
}

// Classes returns the size classes in bytes, ascending.
func (a *Arena) Classes() []int { return append([]int(nil), a.sizes...) }

func (a *Arena) largest() uint8 { return uint8(len(a.sizes) - 1) }

// classFor is the smallest class that holds n bytes, 1 to the largest.
func (a *Arena) classFor(n int) (uint8, bool) {
	if uint64(n-1) >= uint64(a.chunkSize) {
		return 0, false
	}
	return a.classOf[bits.Len32(uint32(n-1))&31], true
}

func (a *Arena) sizeError(n int64) error {
	if n <= 0 {
		return fmt.Errorf("%w: a buffer of %d bytes", ErrInvalid, n)
	}
	return fmt.Errorf("%w: %d bytes, the largest class has %d: use GetList", ErrTooLarge, n, a.chunkSize)
}

// checkIdle tells Close that everything is back. Under Arena.mu.
func (a *Arena) checkIdle() {
	if a.closing && a.out == 0 {
		select {
		case <-a.idle:
		default:
			close(a.idle)
		}
	}
}

// slotMem is the memory of a slot, which is in use.
func (a *Arena) slotMem(s uint32) []byte {
	return unsafe.Slice((*byte)(a.addr(s)), a.sizes[a.chunks[s>>a.chunkShift].class])
}

// addr is where a slot is in memory.
func (a *Arena) addr(s uint32) unsafe.Pointer {
	return unsafe.Add(a.regions[s>>a.rgnShift].base, a.offset(s))
}

// offset is where a slot is in its region.
func (a *Arena) offset(s uint32) uint64 {
	return uint64(s&(1<<a.rgnShift-1)) << a.unitBits
}
