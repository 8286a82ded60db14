package buffer

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"unsafe"

	"golang.org/x/sync/errgroup"
)

// region is what one registration covers.
type region struct {
	base    unsafe.Pointer
	mem     []byte
	backing string
	unmap   func() error // nil once unmapped
}

// Values of Stats.Backing.
const (
	backHeap    = "heap"
	backHugeTLB = "hugetlb 2 MiB"
	backTHP     = "transparent huge pages"
	backPages   = "4 KiB pages"
)

const hugePage = 2 << 20

// mapRegions maps all of cfg's memory, or none.
func mapRegions(cfg Config) ([]region, error) {
	var rs []region
	for left := cfg.Budget; left > 0; {
		size := min(left, cfg.RegionSize)
		left -= size
		var r region
		var err error
		if cfg.Heap {
			r = heapRegion(size)
		} else if r, err = mapRegion(size, !cfg.NoHugePages); err != nil {
			return nil, errors.Join(&LimitError{
				Limit: "address space (RLIMIT_AS, vm.overcommit_memory, vm.max_map_count)", Unit: "bytes",
				Need: uint64(cfg.Budget), Used: uint64(cfg.Budget - left - size), Remedy: "lower Config.Budget, or raise the limit",
				Err: fmt.Errorf("map %d bytes: %w", size, err),
			}, unmapAll(rs))
		}
		r.base = unsafe.Pointer(unsafe.SliceData(r.mem))
		rs = append(rs, r)
	}
	if cfg.Prefault {
		if err := prefaultAll(rs); err != nil {
			return nil, errors.Join(fmt.Errorf("buffer: prefault %d bytes: %w: the machine or the cgroup (memory.max) has too little memory: lower Config.Budget", cfg.Budget, err), unmapAll(rs))
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
		r.base, r.mem, r.unmap = nil, nil, nil
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

// prefaultAll touches every page, on all cores.
func prefaultAll(rs []region) error {
	const piece = 64 << 20
	g, _ := errgroup.WithContext(context.Background())
	g.SetLimit(runtime.GOMAXPROCS(0))
	for i := range rs {
		for mem := rs[i].mem; len(mem) > 0; {
			n := min(piece, len(mem))
			part := mem[:n]
			mem = mem[n:]
			g.Go(func() error { return prefault(part) })
		}
	}
	return g.Wait()
}

// touch writes to every page of fresh memory.
func touch(mem []byte) {
	for i := 0; i < len(mem); i += Page {
		mem[i] = 0
	}
}
