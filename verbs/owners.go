package verbs

import "sync/atomic"

// A wr_id given to the driver is never a pointer and never the caller's number:
//
//	63..62 queue kind | 61..40 owner | 39..0 sequence (send, receive)
//	                                 | 39..20 generation, 19..0 slot (SRQ)
//
// The owner is an index into the device's table of QPs and SRQs. Sequences and
// generations go on from where the last owner of an index stopped, so that a
// completion of a queue that is gone never names a request of its successor.
const (
	kindNone = iota // a wr_id of 0 is nobody's
	kindSend
	kindRecv
	kindSRQ
)

const (
	ownerBits = 22
	seqBits   = 40
	slotBits  = 20
	seqMask   = 1<<seqBits - 1
	slotMask  = 1<<slotBits - 1
	genMask   = 1<<(seqBits-slotBits) - 1
)

func wrID(kind int, owner uint32, low uint64) uint64 {
	return uint64(kind)<<62 | uint64(owner)<<seqBits | low&seqMask
}

func splitWRID(id uint64) (kind int, owner uint32, low uint64) {
	return int(id >> 62), uint32(id>>seqBits) & (1<<ownerBits - 1), id & seqMask
}

// owner is one entry of the table. One of qp and srq is set while it is taken.
type owner struct {
	qp   atomic.Pointer[QP]
	srq  atomic.Pointer[SRQ]
	next uint64 // first sequence or generation of the next owner; guarded by Device.mu
}

// owners is read without a lock by Poll, and changed under Device.mu.
type owners struct {
	tab  atomic.Pointer[[]*owner]
	free []uint32 // first freed, first used again
}

// at returns the entry i or nil.
func (t *owners) at(i uint32) *owner {
	if tab := t.tab.Load(); tab != nil && int(i) < len(*tab) {
		return (*tab)[i]
	}
	return nil
}

// take returns the index of a free entry, or false when there are 4 M owners.
func (t *owners) take() (uint32, *owner, bool) {
	var tab []*owner
	if p := t.tab.Load(); p != nil {
		tab = *p
	}
	if len(t.free) == 0 {
		n := len(tab)
		if n >= 1<<ownerBits {
			return 0, nil, false
		}
		grown := make([]*owner, max(16, 2*n))
		copy(grown, tab)
		fresh := make([]owner, len(grown)-n)
		for i := range fresh {
			grown[n+i] = &fresh[i]
			t.free = append(t.free, uint32(n+i))
		}
		t.tab.Store(&grown)
		tab = grown
	}
	i := t.free[0]
	t.free = t.free[1:]
	return i, tab[i], true
}

// give frees an entry; its successor starts at next.
func (t *owners) give(i uint32, next uint64) {
	o := (*t.tab.Load())[i]
	o.qp.Store(nil)
	o.srq.Store(nil)
	o.next = next
	t.free = append(t.free, i)
}
