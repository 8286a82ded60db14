package buffer

import (
	"context"
	"errors"
	"runtime"
	"sync/atomic"
	"time"
	"unsafe"
)

// region is what one registration covers.
type region struct {
	// base, mem, backing and unmap are written under attachSem and Arena.mu.
	base    unsafe.Pointer
	mem     []byte
	backing string
	unmap   func() error // nil once unmapped

	state regionState // under attachSem and Arena.mu; read under either
	// kept says that an elastic region is not given up any more: something that
	// is held for long is in it.
	kept atomic.Bool

	// Under Arena.mu.
	carved int       // chunks that are not free
	idle   time.Time // since when carved is 0; zero if it is not, or not elastic
}

type regionState uint8

const (
	regionNone    regionState = iota // not mapped
	regionLive                       // its chunks are in use
	regionLeaving                    // its chunks are withdrawn; it is being deregistered and unmapped
)

func (r *region) addr() uint64 { return uint64(uintptr(r.base)) }

// Values of Stats.Backing.
const (
	backHeap    = "heap"
	backHugeTLB = "hugetlb 2 MiB"
	backTHP     = "transparent huge pages"
	backPages   = "4 KiB pages"
)

const hugePage = 2 << 20

// regionBytes is the size of region i.
func (c *Config) regionBytes(i int) int64 {
	return min(c.RegionSize, c.Budget-int64(i)*c.RegionSize)
}

// mapMemory fills r in with size bytes of memory. have is how much the arena
// has already. Pages of the system's pool it touches, until ctx ends: the pool may
// not give them though it has them (a limit of the cgroup, other NUMA nodes), and
// who touches them then gets a signal.
func (c *Config) mapMemory(ctx context.Context, r *region, size, have int64) error {
	var m region
	var err error
	if c.Heap {
		m = heapRegion(size)
	} else if m, err = mapRegion(size, !c.NoHugePages, func(mem []byte) error {
		if err := c.bind(mem); err != nil {
			return err
		}
		return touchAll(ctx, c.progress("touch", size), populate, mem)
	}); err != nil {
		return mapError(c.Budget, have, size, err)
	}
	if err = ctx.Err(); err == nil && m.backing != backHugeTLB {
		err = c.bind(m.mem)
	}
	if err != nil {
		return errors.Join(err, m.unmap())
	}
	r.base, r.mem, r.backing, r.unmap = unsafe.Pointer(unsafe.SliceData(m.mem)), m.mem, m.backing, m.unmap
	return nil
}

// bind makes fresh memory come from Config.NUMANodes, if there are any.
func (c *Config) bind(mem []byte) error {
	if len(c.NUMANodes) == 0 || c.Heap {
		return nil
	}
	return bind(mem, c.NUMANodes)
}

// mapRegions maps the regions that an arena of cfg begins with, or none. The
// others are there, but have no memory yet.
func mapRegions(ctx context.Context, cfg Config) ([]region, error) {
	rs := make([]region, (cfg.Budget+cfg.RegionSize-1)/cfg.RegionSize)
	first := rs[:(cfg.Initial+cfg.RegionSize-1)/cfg.RegionSize]
	live := make([]*region, len(first))
	for i := range first {
		if err := cfg.mapMemory(ctx, &rs[i], cfg.regionBytes(i), int64(i)*cfg.RegionSize); err != nil {
			return nil, errors.Join(err, unmapAll(first))
		}
		rs[i].state = regionLive
		live[i] = &rs[i]
	}
	if cfg.Prefault {
		if err := prefaultAll(ctx, cfg, live); err != nil {
			return nil, errors.Join(err, unmapAll(first))
		}
	}
	return rs, nil
}

func unmapAll(rs []region) error {
	var errs []error
	for i := range rs {
		errs = append(errs, rs[i].free())
	}
	return errors.Join(errs...)
}

// free unmaps the region. Nothing may use it any more.
func (r *region) free() error {
	if r.unmap == nil {
		return nil
	}
	err := r.unmap()
	if err == nil {
		r.base, r.mem, r.unmap, r.state = nil, nil, nil, regionNone
	}
	return err
}

// heapRegion is page-aligned, pinned memory of the Go heap.
func heapRegion(size int64) region {
	mem := make([]byte, size+Page-1)
	skip := -uintptr(unsafe.Pointer(unsafe.SliceData(mem))) & (Page - 1)
	mem = mem[skip : skip+uintptr(size) : skip+uintptr(size)]
	pin := new(runtime.Pinner)
	pin.Pin(unsafe.SliceData(mem))
	return region{mem: mem, backing: backHeap, unmap: func() error { pin.Unpin(); return nil }}
}

// prefaultAll touches every page, on all cores, but for those of the system's
// pool: see mapMemory. When ctx ends it stops after the pieces that are being
// touched. What is in the memory stays.
func prefaultAll(ctx context.Context, cfg Config, rs []*region) error {
	var total int64
	var mems [][]byte
	for _, r := range rs {
		if r.backing != backHugeTLB {
			total += int64(len(r.mem))
			mems = append(mems, r.mem)
		}
	}
	err := touchAll(ctx, cfg.progress("touch", total), prefault, mems...)
	if err == nil || ctx.Err() != nil {
		return err
	}
	return touchError(total, err)
}

// touchAll calls touch for pieces of mems, on all cores.
func touchAll(ctx context.Context, p *progress, touch func([]byte) error, mems ...[]byte) error {
	const piece = 64 << 20
	var jobs []*job
	for _, mem := range mems {
		for len(mem) > 0 {
			n := min(piece, len(mem))
			part := mem[:n]
			mem = mem[n:]
			jobs = append(jobs, &job{run: func() error {
				err := touch(part)
				if err == nil {
					p.add(int64(n))
				}
				return err
			}})
		}
	}
	if len(jobs) == 0 {
		return nil
	}
	errs := batch(ctx, touching, runtime.GOMAXPROCS(0), jobs)
	for _, j := range jobs {
		j.wait() // or the memory would be unmapped under it
	}
	return errors.Join(errs...)
}

// prefault touches every page of mem, in which buffers may be held. Where the
// system says so, too little memory is an error, not a fault.
func prefault(mem []byte) error {
	err := populate(mem)
	if errors.Is(err, ErrNotSupported) {
		touch(mem)
		return nil
	}
	return err
}

// touch writes to every page of mem and changes nothing, whoever writes there
// meanwhile.
func touch(mem []byte) {
	for i := 0; i < len(mem); i += Page {
		atomic.OrUint32((*uint32)(unsafe.Pointer(&mem[i])), 0)
	}
}
