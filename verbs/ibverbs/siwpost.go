//go:build ibverbs && linux && cgo

package ibverbs

import (
	"sync"
	"sync/atomic"

	"github.com/argonaut-rdma/argonaut/verbs/driver"
	"github.com/argonaut-rdma/argonaut/verbs/ibverbs/internal/cverbs"
)

// siw copies payload of one SGE and at most shortSIW bytes behind the header of
// its packet. When the payload lies in two pages it takes the second part from a
// wrong place, unless it is still within the system call that posted it, which a
// READ's answer never is (siw_try_1seg of siw_qp_tx.c, Linux 5.3 and later): the
// peer gets wrong bytes with a good checksum. So payload of ours is cut into two
// SGEs at the end of the page, which go another way, and a READ into two READs.
const (
	shortSIW = 32   // bytes; MAX_HDR_INLINE
	pageSIW  = 4096 // bytes; where pages are larger it is cut in vain
)

// cutSIW is how many of n bytes at addr lie before the end of a page when siw
// would get the rest wrong, or 0.
func cutSIW(addr uint64, n uint32) uint32 {
	left := uint32(pageSIW - addr%pageSIW)
	if n > shortSIW || n <= left {
		return 0
	}
	return left
}

// fitSIW makes wrs[k], whose SGEs are the last of sges, one that siw executes, and
// says how many it has added behind it.
func (q *qp) fitSIW(k int, from *driver.SendWR) int {
	to := &q.wrs[k]
	if from.Opcode == driver.OpRead {
		fixReadSIW(to, from)
	}
	if len(from.SGEs) != 1 || from.Flags&driver.SendInline != 0 {
		return 0
	}
	s := from.SGEs[0]
	if to.Opcode != cverbs.OpRead {
		if cut := cutSIW(s.Addr, s.Length); cut > 0 {
			q.cutLast(cut)
			to.NumSGE = 2
		}
		return 0
	}
	key, cut := halfKey{q.qpn, from.WRID}, cutSIW(from.RemoteAddr, s.Length)
	if cut == 0 {
		q.dev.halved.forget(key) // of one that was not queued
		return 0
	}
	// The first half completes only when it is flushed, and the core allows for that:
	// siw may flush any READ twice. The second half ends after it.
	q.dev.halved.add(key, s.Length)
	q.cutLast(cut)
	q.wrs[k+1] = *to
	q.wrs[k+1].RemoteAddr += uint64(cut)
	to.Flags &^= uint32(driver.SendSignaled)
	return 1
}

// cutLast cuts the last SGE behind its first bytes.
func (q *qp) cutLast(cut uint32) {
	s := &q.sges[len(q.sges)-1]
	rest := cverbs.SGE{Addr: s.Addr + uint64(cut), Length: s.Length - cut, LKey: s.LKey}
	s.Length = cut
	q.sges = append(q.sges, rest)
}

// fixReadSIW makes a READ one that siw executes. It fails a fenced READ, whose
// answer comes and is placed after those of earlier READs in any case. And it
// answers a READ of no bytes with whatever its answer before had: a WRITE of no
// bytes does as little.
func fixReadSIW(to *cverbs.SendWR, from *driver.SendWR) {
	to.Flags &^= uint32(driver.SendFence)
	for i := range from.SGEs {
		if from.SGEs[i].Length > 0 {
			return
		}
	}
	to.Opcode = cverbs.OpWrite
}

// halfKey names a READ that is two of siw's.
type halfKey struct {
	qpn  uint32
	wrid uint64
}

// halves are the lengths of such READs that have not completed, of which the
// completion tells but half.
type halves struct {
	n  atomic.Int64 // of them
	mu sync.Mutex
	m  map[halfKey]uint32
}

func (h *halves) add(k halfKey, n uint32) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.m == nil {
		h.m = map[halfKey]uint32{}
	}
	h.m[k] = n
	h.n.Store(int64(len(h.m)))
}

// whole puts the length of the whole READ in its completion.
func (h *halves) whole(wc *driver.WC) {
	if h.n.Load() == 0 || wc.Status == driver.StatusSuccess && wc.Opcode != driver.OpRead {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	k := halfKey{wc.QPN, wc.WRID}
	n, ok := h.m[k]
	if ok && wc.Status == driver.StatusSuccess {
		wc.ByteLen = n
	}
	h.drop(k)
}

// forget forgets one.
func (h *halves) forget(k halfKey) {
	if h.n.Load() == 0 {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.drop(k)
}

// forgetAll forgets those of a queue pair.
func (h *halves) forgetAll(qpn uint32) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for k := range h.m {
		if k.qpn == qpn {
			h.drop(k)
		}
	}
}

func (h *halves) drop(k halfKey) {
	delete(h.m, k)
	h.n.Store(int64(len(h.m)))
}
