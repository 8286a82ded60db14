package iwarp

import (
	"sync"
	"sync/atomic"

	"github.com/argonaut-rdma/argonaut/verbs/driver"
)

// region is what a steering tag names: a memory region, a bound window or a scoped key. It is immutable but for its
// use count.
//
// The data path holds a region across one copy or one non-blocking system call, never while parked. close stops new
// uses and waits for those, so it is prompt whatever the peer does.
type region struct {
	mem    []byte
	base   uint64 // address of mem[0]
	access driver.Access
	stag   uint32
	pd     *pd
	qp     *queuePair // nil: any QP of the PD. Else remote access is this QP's peer's alone, and the peer may invalidate it
	owner  revoker    // with qp

	uses    atomic.Int64
	mu      sync.Mutex
	drained sync.Cond // the last use after close has ended
}

// revoker takes a key that it has made out of use, unless that has happened already.
type revoker interface{ revoke(*region) }

const regionClosed = 1 << 62

func (r *region) init(mem []byte, base uint64, access driver.Access, p *pd, q *queuePair) {
	r.mem, r.base, r.access, r.pd, r.qp = mem, base, access, p, q
	r.drained.L = &r.mu
}

// acquire begins a use; false when the region is closed.
func (r *region) acquire() bool {
	if r.uses.Add(1) < regionClosed {
		return true
	}
	r.release()
	return false
}

func (r *region) release() {
	if r.uses.Add(-1) == regionClosed {
		r.mu.Lock()
		r.drained.Broadcast()
		r.mu.Unlock()
	}
}

func (r *region) closed() bool { return r.uses.Load() >= regionClosed }

// close ends the region and returns when no byte of it is touched any more. It is called once.
func (r *region) close() {
	if r.uses.Add(regionClosed) == regionClosed {
		return
	}
	r.mu.Lock()
	for r.uses.Load() != regionClosed {
		r.drained.Wait()
	}
	r.mu.Unlock()
}

// offset checks that [addr, addr+n) lies inside and returns where in mem it begins.
func (r *region) offset(addr, n uint64) (uint64, bool) {
	off := addr - r.base
	if addr < r.base || off > uint64(len(r.mem)) || n > uint64(len(r.mem))-off {
		return 0, false
	}
	return off, true
}

// sge is a resolved scatter/gather element. reg is nil where the element names no memory that may be used so.
type sge struct {
	reg *region
	off uint64
	n   uint32
}

// resolve turns driver's elements into dst's and returns the total length; bad where one of them is unusable.
func (d *Device) resolve(dst []sge, src []driver.SGE, p *pd, need driver.Access) (out []sge, total uint64, bad bool) {
	for i := range src {
		s := &src[i]
		total += uint64(s.Length)
		e := sge{n: s.Length}
		if s.Length == 0 {
			continue // names no byte, so its key does not matter
		}
		if r := d.stags.lookup(s.LKey); r != nil && r.pd == p && r.access&need == need {
			if off, ok := r.offset(s.Addr, uint64(s.Length)); ok {
				e.reg, e.off = r, off
			}
		}
		bad = bad || e.reg == nil
		dst = append(dst, e)
	}
	return dst, total, bad
}
