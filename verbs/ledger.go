package verbs

// uses counts, for one QP or SRQ, the SGEs of outstanding requests per memory
// region, indexed by MR.index. It is guarded by the lock of its queue, so that
// the data path shares no counter; a region's total is the sum over the queues
// of its PD.
type uses []use

type use struct {
	mr   *MR   // while n > 0
	n    int32 // SGEs in all
	recv int32 // of them, of receives
}

func (u *uses) add(m *MR, recv int32) {
	for int(m.index) >= len(*u) {
		*u = append(*u, use{})
	}
	e := &(*u)[m.index]
	e.mr = m
	e.n++
	e.recv += recv
}

func (u uses) drop(index uint32, recv int32) {
	e := &u[index]
	e.n--
	e.recv -= recv
	switch {
	case e.n < 0:
		panic("verbs: a request gave back memory that it did not hold")
	case e.n == 0:
		if e.mr.state.Load() != mrLive { // draining, or another Deregister is deciding meanwhile
			e.mr.poke()
		}
		e.mr = nil
	}
}

func (u uses) count(m *MR) int {
	send, recv := u.split(m)
	return send + recv
}

// split is count, apart for sends and receives.
func (u uses) split(m *MR) (send, recv int) {
	if int(m.index) < len(u) && u[m.index].mr == m {
		e := &u[m.index]
		return int(e.n - e.recv), int(e.recv)
	}
	return 0, 0
}

// entry is a request in the ledger.
type entry struct {
	wrid     uint64 // the caller's
	refs     uint16 // memory regions held
	op       Opcode
	live     bool // not yet retired
	signaled bool // the device completes it on success too
	asked    bool // the caller asked for that completion
}

// ring is the ledger of a send or receive queue, in posting order. Sequences
// count up for ever; head..tail may be outstanding. Its size is twice the depth,
// so that requests that ended without the caller's knowledge are remembered for
// a while. Where requests overtake each other it grows, so that a slow READ does
// not block the queue behind it.
type ring struct {
	buf   []entry
	refs  []uint32 // MR.index; perWR of them for each entry
	perWR int
	mask  uint64
	most  uint64 // entries that it may grow to
	depth int
	recv  int32 // 1: a receive queue

	base    uint64 // first sequence of this queue
	head    uint64 // everything before is retired
	tail    uint64 // next sequence
	scanned uint64 // no un-signalled request before it is outstanding
	told    uint64 // behind the last request whose completion the caller was given, or that is forgotten
	live    int    // outstanding
}

// overtaken is how many entries a ring grows to at most. A request that so many
// have overtaken is not going to end.
const overtaken = 1 << 16

func newRing(depth, perWR int, base uint64, inOrder bool) ring {
	size := 2
	for size < 2*depth {
		size *= 2
	}
	most := size
	if !inOrder {
		most = max(size, overtaken)
	}
	return ring{
		buf: make([]entry, size), refs: make([]uint32, size*perWR), perWR: perWR, mask: uint64(size - 1), most: uint64(most), depth: depth,
		base: base, head: base, tail: base, scanned: base, told: base,
	}
}

func (r *ring) full() bool { return r.live >= r.depth || r.tail-r.head >= r.most }

// grow doubles the ring.
func (r *ring) grow() {
	old, refs, was := r.buf, r.refs, r.mask
	r.buf, r.refs, r.mask = make([]entry, 2*len(old)), make([]uint32, 2*len(refs)), 2*was+1
	for s := r.head; s < r.tail; s++ {
		from, to := int(s&was), int(s&r.mask)
		r.buf[to] = old[from]
		copy(r.refs[to*r.perWR:(to+1)*r.perWR], refs[from*r.perWR:])
	}
}

// push adds a request and returns its sequence. The ring is not full.
func (r *ring) push(e entry) uint64 {
	if r.tail-r.head > r.mask {
		r.grow()
	}
	if r.tail-r.told > r.mask { // its entry may be taken back, but what it replaces is gone
		r.told = r.tail - r.mask
	}
	e.live, e.refs = true, 0
	seq := r.tail
	r.buf[seq&r.mask] = e
	r.tail++
	r.live++
	return seq
}

// hold makes the newest request hold m.
func (r *ring) hold(u *uses, m *MR) {
	i := (r.tail - 1) & r.mask
	e := &r.buf[i]
	r.refs[int(i)*r.perWR+int(e.refs)] = m.index
	e.refs++
	u.add(m, r.recv)
}

// unpush takes back the newest n requests, which the device did not accept.
func (r *ring) unpush(u uses, n int) {
	for range n {
		r.tail--
		r.retire(u, r.tail)
	}
	// A request between head and tail may have been taken back.
	r.head, r.scanned = min(r.head, r.tail), min(r.scanned, r.tail)
}

func (r *ring) retire(u uses, seq uint64) {
	i := seq & r.mask
	e := &r.buf[i]
	for _, index := range r.refs[int(i)*r.perWR : int(i)*r.perWR+int(e.refs)] {
		u.drop(index, r.recv)
	}
	e.live = false
	r.live--
}

// verdict is what a completion turned out to be.
type verdict uint8

const (
	vOK    verdict = iota
	vLate          // of an earlier owner of the index
	vStale         // of a request that is not outstanding
)

// find returns the sequence that the 40 bits of a wr_id stand for.
func (r *ring) find(low uint64) (uint64, verdict) {
	back := (r.tail - low) & seqMask
	switch {
	case back > r.tail-r.base:
		return 0, vLate
	case back == 0 || back > r.tail-r.head || !r.buf[(r.tail-back)&r.mask].live:
		return 0, vStale
	}
	return r.tail - back, vOK
}

// complete retires the request seq, which is outstanding, and the un-signalled
// ones before it: their success needs no completion, and had they failed, theirs
// would have come first. A READ or an atomic is always signalled, so a later
// completion never retires it. told says that the caller is given the completion.
func (r *ring) complete(u uses, seq uint64, told bool) {
	for s := max(r.scanned, r.head); s < seq; s++ {
		if e := &r.buf[s&r.mask]; e.live && !e.signaled {
			r.retire(u, s)
		}
	}
	r.scanned = max(r.scanned, seq)
	r.retire(u, seq)
	if told {
		r.told = max(r.told, seq+1)
	}
	for r.head < r.tail && !r.buf[r.head&r.mask].live {
		r.head++
	}
}

// orphans empties the ring: the requests outstanding, and those that ended
// behind the last completion that the caller was given, in posting order.
func (r *ring) orphans(u uses, dst []Orphan, recv bool) []Orphan {
	for s := min(r.head, r.told); s < r.tail; s++ {
		e := &r.buf[s&r.mask]
		if e.live || s >= r.told {
			dst = append(dst, Orphan{e.wrid, recv})
		}
		if e.live {
			r.retire(u, s)
		}
	}
	r.head, r.told = r.tail, r.tail
	return dst
}

// slots is the ledger of an SRQ, whose entries complete in any order.
type slots struct {
	tab   []slot
	refs  []uint32 // MR.index; perWR of them for each slot
	perWR int
	free  []uint32
	live  int
}

type slot struct {
	wrid uint64
	gen  uint32 // of the next or current use
	refs uint16
	live bool
}

func newSlots(depth, perWR int, gen uint64) slots {
	s := slots{
		tab: make([]slot, depth), refs: make([]uint32, depth*perWR), perWR: perWR, free: make([]uint32, depth),
	}
	for i := range s.tab {
		s.tab[i].gen = uint32(gen) & genMask
		s.free[i] = uint32(depth - 1 - i)
	}
	return s
}

// take uses a slot and returns it with its generation: the low bits of a wr_id.
// There is a free slot.
func (s *slots) take(wrid uint64) (i uint32, low uint64) {
	i = s.free[len(s.free)-1]
	s.free = s.free[:len(s.free)-1]
	e := &s.tab[i]
	e.wrid, e.refs, e.live = wrid, 0, true
	s.live++
	return i, uint64(e.gen)<<slotBits | uint64(i)
}

func (s *slots) hold(u *uses, i uint32, m *MR) {
	e := &s.tab[i]
	s.refs[int(i)*s.perWR+int(e.refs)] = m.index
	e.refs++
	u.add(m, 1)
}

// find returns the slot that the low bits of a wr_id stand for.
func (s *slots) find(low uint64) (uint32, verdict) {
	i, gen := uint32(low&slotMask), uint32(low>>slotBits)
	if int(i) >= len(s.tab) || !s.tab[i].live || s.tab[i].gen != gen {
		return 0, vStale
	}
	return i, vOK
}

func (s *slots) retire(u uses, i uint32) {
	e := &s.tab[i]
	for _, index := range s.refs[int(i)*s.perWR : int(i)*s.perWR+int(e.refs)] {
		u.drop(index, 1)
	}
	e.live = false
	e.gen = (e.gen + 1) & genMask
	s.live--
	s.free = append(s.free, i)
}

// orphans empties the table.
func (s *slots) orphans(u uses) (dst []Orphan) {
	for i := range s.tab {
		if s.tab[i].live {
			dst = append(dst, Orphan{s.tab[i].wrid, true})
			s.retire(u, uint32(i))
		}
	}
	return dst
}

// nextGen is a generation that no slot has had.
func (s *slots) nextGen(first uint64) uint64 {
	var most uint64
	for i := range s.tab {
		most = max(most, (uint64(s.tab[i].gen)-first)&genMask)
	}
	return first + most + 1
}
