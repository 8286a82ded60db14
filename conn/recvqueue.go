package conn

import (
	"fmt"
	"sync"

	"github.com/argonaut-rdma/argonaut/buffer"
	"github.com/argonaut-rdma/argonaut/verbs"
)

// Work request IDs: what the request is in the upper half, which one in the
// lower.
const (
	wrRecv    uint64 = iota << 32 // slot of a recvQueue
	wrSend                        // sequence number of a send slot
	wrControl                     // index of a control slot
	wrOp                          // index of a one-sided operation
	wrBind                        // the binding of a window

	wrKind  uint64 = 0xffffffff << 32
	wrIndex uint64 = 1<<32 - 1
)

// recvBatch is how many receives are posted in one call.
const recvBatch = 32

// recvQueue posts receive buffers, to the SRQ of a lane or to the receive queue
// of one QP, and knows which buffer each request names.
type recvQueue struct {
	pd   *verbs.PD
	post func([]verbs.RecvWR) (int, error)

	mu    sync.Mutex
	slots []buffer.RDMABuffer // by WR index; zero: free
	free  []uint32
	// Added, but not yet posted: batched for the sake of devices where a call
	// is dear. pendingOf[i] owes its peer the credit of wrs[i] once it is posted.
	wrs       [recvBatch]verbs.RecvWR
	sges      [recvBatch]verbs.SGE
	pendingOf [recvBatch]creditor
	pending   int
}

// creditor is the connection that a receive buffer is posted for.
type creditor struct {
	c       *Conn // nil: nobody is owed a credit
	control bool  // in place of one that a packet without data took
}

func newRecvQueue(pd *verbs.PD, depth int, post func([]verbs.RecvWR) (int, error)) *recvQueue {
	q := &recvQueue{pd: pd, post: post, slots: make([]buffer.RDMABuffer, depth), free: make([]uint32, depth)}
	for i := range q.free {
		q.free[i] = uint32(depth - 1 - i)
	}
	return q
}

// add takes b and will post it with the next flush.
func (q *recvQueue) add(b buffer.RDMABuffer, c creditor) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.free) == 0 {
		panic("conn: more receive buffers than the queue has entries")
	}
	i := q.free[len(q.free)-1]
	q.free = q.free[:len(q.free)-1]
	q.slots[i] = b
	b.RetainPosted()
	n := q.pending
	q.sges[n] = b.SGE(q.pd)
	q.wrs[n] = verbs.RecvWR{WRID: wrRecv | uint64(i), SGEs: q.sges[n : n+1]}
	q.pendingOf[n] = c
	q.pending++
	if q.pending == recvBatch {
		return q.flushLocked()
	}
	return nil
}

// flush posts what was added. On error the buffers that the device refused are
// released.
func (q *recvQueue) flush() error {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.flushLocked()
}

func (q *recvQueue) flushLocked() error {
	n := q.pending
	if n == 0 {
		return nil
	}
	q.pending = 0
	done, err := q.post(q.wrs[:n])
	for i := range n {
		c := q.pendingOf[i]
		q.pendingOf[i] = creditor{}
		if i < done {
			switch {
			case c.c == nil:
			case c.control:
				c.c.owedControl.Add(1)
			default:
				c.c.owed.Add(1)
			}
			continue
		}
		slot := uint32(q.wrs[i].WRID & wrIndex)
		q.slots[slot].ReleasePosted()
		q.slots[slot].Release()
		q.slots[slot] = buffer.RDMABuffer{}
		q.free = append(q.free, slot)
	}
	if err != nil {
		return fmt.Errorf("post receives: %w", err)
	}
	return nil
}

// take retires a request and returns its buffer, with the queue's reference.
func (q *recvQueue) take(wrid uint64) buffer.RDMABuffer {
	slot := uint32(wrid & wrIndex)
	q.mu.Lock()
	b := q.slots[slot]
	q.slots[slot] = buffer.RDMABuffer{}
	q.free = append(q.free, slot)
	q.mu.Unlock()
	b.ReleasePosted()
	return b
}

// posted is how many buffers the queue has.
func (q *recvQueue) posted() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.slots) - len(q.free)
}

// releaseAll gives back every buffer: the device has forgotten the queue.
func (q *recvQueue) releaseAll() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.pending = 0
	clear(q.pendingOf[:])
	for i, b := range q.slots {
		if !b.IsZero() {
			b.ReleasePosted()
			b.Release()
			q.slots[i] = buffer.RDMABuffer{}
			q.free = append(q.free, uint32(i))
		}
	}
}
