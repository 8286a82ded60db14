package iwarp

import "sync/atomic"

// response is an answer that is due to the peer.
type response struct {
	atomic   bool
	sinkSTag uint32
	sinkTO   uint64
	src      [1]sge // of a READ; its reg is nil when no byte is asked for
	id       uint32 // of an atomic
	value    uint64
}

// responseQueue holds the answers that are due, in order: one writer, the receiver; one reader at a time, the holder of
// tx.mu. It has twice IRD entries: the peer may ask again as soon as it has an answer, before we know that the answer
// is out.
type responseQueue struct {
	ring []response
	head atomic.Uint64 // answers before it are out
	next atomic.Uint64 // answers before it are being sent
	tail atomic.Uint64
}

// put adds an answer; false when the peer asked for more than IRD at a time.
func (r *responseQueue) put(x *response) bool {
	t := r.tail.Load()
	if t-r.head.Load() == uint64(len(r.ring)) {
		return false
	}
	r.ring[t%uint64(len(r.ring))] = *x
	r.tail.Store(t + 1)
	return true
}

func (r *responseQueue) pending() bool { return r.head.Load() != r.tail.Load() }

// take returns the next answer to send, nil if there is none. It stays in place until free.
func (r *responseQueue) take() *response {
	n := r.next.Load()
	if n == r.tail.Load() {
		return nil
	}
	r.next.Store(n + 1)
	return &r.ring[n%uint64(len(r.ring))]
}

// free gives up the oldest answer taken: it is out.
func (r *responseQueue) free() {
	h := r.head.Load()
	r.ring[h%uint64(len(r.ring))].src[0].reg = nil
	r.head.Store(h + 1)
}
