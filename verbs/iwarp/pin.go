package iwarp

import (
	"slices"
	"sync"
)

// pinner locks the pages of registered memory. The kernel does not count locks, so it unlocks only what no other
// region covers.
type pinner struct {
	mu     sync.Mutex
	ranges []pinRange // one per pinned region
	total  int64      // bytes of pages, each region counted by itself
}

type pinRange struct{ lo, hi uint64 } // whole pages

func pinPages(addr, n uint64) pinRange {
	return pinRange{lo: addr &^ (pageSize - 1), hi: (addr + n + pageSize - 1) &^ (pageSize - 1)}
}

func (p *pinner) pin(addr, n uint64) error {
	r := pinPages(addr, n)
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := mlock(r.lo, r.hi-r.lo); err != nil {
		for _, gap := range p.uncovered(r) { // a failed mlock may have locked a part
			munlock(gap.lo, gap.hi-gap.lo)
		}
		return err
	}
	p.ranges = append(p.ranges, r)
	p.total += int64(r.hi - r.lo)
	return nil
}

func (p *pinner) unpin(addr, n uint64) {
	r := pinPages(addr, n)
	p.mu.Lock()
	defer p.mu.Unlock()
	i := slices.Index(p.ranges, r)
	p.ranges = slices.Delete(p.ranges, i, i+1)
	p.total -= int64(r.hi - r.lo)
	for _, gap := range p.uncovered(r) {
		munlock(gap.lo, gap.hi-gap.lo)
	}
}

// uncovered returns the parts of r that no pinned range covers.
func (p *pinner) uncovered(r pinRange) []pinRange {
	left := []pinRange{r}
	for _, x := range p.ranges {
		var next []pinRange
		for _, l := range left {
			if x.hi <= l.lo || l.hi <= x.lo {
				next = append(next, l)
				continue
			}
			if l.lo < x.lo {
				next = append(next, pinRange{l.lo, x.lo})
			}
			if x.hi < l.hi {
				next = append(next, pinRange{x.hi, l.hi})
			}
		}
		left = next
	}
	return left
}

func (p *pinner) bytes() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.total
}
