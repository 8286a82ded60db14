package messenger

import "time"

// ring is a queue that keeps its memory.
type ring[T any] struct {
	buf  []T
	head int
	n    int
}

func (r *ring[T]) push(v T) {
	if r.n == len(r.buf) {
		grown := make([]T, max(8, 2*len(r.buf)))
		for i := range r.n {
			grown[i] = r.buf[(r.head+i)%len(r.buf)]
		}
		r.buf, r.head = grown, 0
	}
	r.buf[(r.head+r.n)%len(r.buf)] = v
	r.n++
}

func (r *ring[T]) pop() (v T, ok bool) {
	if r.n == 0 {
		return v, false
	}
	var zero T
	v, r.buf[r.head] = r.buf[r.head], zero
	r.head = (r.head + 1) % len(r.buf)
	r.n--
	return v, true
}

func (r *ring[T]) peek() *T {
	if r.n == 0 {
		return nil
	}
	return &r.buf[r.head]
}

// at is the i-th from the head.
func (r *ring[T]) at(i int) *T { return &r.buf[(r.head+i)%len(r.buf)] }

// entryKind is what an entry of the send queue is.
type entryKind uint8

const (
	entryMessage entryKind = iota
	entryKeepalive
	entryKeepaliveAck
	entryAck
)

// entry waits to be sent: a message, or a control frame.
type entry struct {
	kind  entryKind
	m     *Message
	size  int64
	since time.Time     // queued; or the stamp of a keepalive
	seq   uint64        // of a message that has been sent before, else 0
	bound bool          // only makes sense on the present transport
	begun time.Duration // latencies.now when it was sent, 0: not measured
	purpose
	// crc is the payload's checksum, if it has been computed.
	crc    uint32
	summed bool
	sealed bool // it has been encoded for a transport in secure mode
}

// purpose is what one sending of a message is for. It is not the message's own:
// a received one may be sent on.
type purpose struct {
	flags    uint8     // flagCall, flagReply
	deadline time.Time // of a call, zero for none
	now      bool      // do not wait for room
}

// sendQueue is what waits to be sent on one connection: control frames, then
// messages of PriorityHigh and above, the highest first, then the others, each
// priority with a share that is proportional to it; in order within a priority.
type sendQueue struct {
	control  ring[entry]
	levels   []level // by priority, descending; kept when empty
	messages int
	bytes    int64
	floor    uint64 // what the level that was served last had spent
}

type level struct {
	priority uint16
	ring     ring[entry]
	// spent is what has been sent, divided by the priority: the one that has
	// spent least goes next.
	spent uint64
}

// minCost is what the smallest message costs its priority, bytes.
const minCost = 4 << 10

// cost is what a message spends of its level.
func (l *level) cost(size int64) uint64 {
	return uint64(max(size, minCost)) << 8 / uint64(max(1, l.priority))
}

func (q *sendQueue) empty() bool { return q.control.n == 0 && q.messages == 0 }

func (q *sendQueue) push(e entry) {
	if e.kind != entryMessage {
		q.control.push(e)
		return
	}
	i := 0
	for i < len(q.levels) && q.levels[i].priority > e.m.Priority {
		i++
	}
	if i == len(q.levels) || q.levels[i].priority != e.m.Priority {
		q.levels = append(q.levels, level{})
		copy(q.levels[i+1:], q.levels[i:])
		q.levels[i] = level{priority: e.m.Priority}
	}
	if l := &q.levels[i]; l.ring.n == 0 { // no credit for having been idle
		l.spent = max(l.spent, q.floor)
	}
	q.levels[i].ring.push(e)
	q.messages++
	q.bytes += e.size
}

// dropBound takes out what is bound to the transport.
func (q *sendQueue) dropBound() (dropped []*Message) {
	return q.drop(func(e *entry) bool { return e.bound })
}

// drop takes out the messages that are to be.
func (q *sendQueue) drop(which func(*entry) bool) (dropped []*Message) {
	for i := range q.levels {
		r := &q.levels[i].ring
		for range r.n {
			e, _ := r.pop()
			if !which(&e) {
				r.push(e)
				continue
			}
			q.messages--
			q.bytes -= e.size
			dropped = append(dropped, e.m)
		}
	}
	return dropped
}

func (q *sendQueue) pop() (entry, bool) {
	if e, ok := q.control.pop(); ok {
		return e, true
	}
	var next *level
	for i := range q.levels {
		l := &q.levels[i]
		if l.ring.n == 0 {
			continue
		}
		if next == nil || l.spent < next.spent {
			next = l
		}
		if l.priority >= PriorityHigh {
			break
		}
	}
	if next == nil {
		return entry{}, false
	}
	e, _ := next.ring.pop()
	q.messages--
	q.bytes -= e.size
	if next.priority < PriorityHigh {
		q.floor = next.spent
		next.spent += next.cost(e.size)
	}
	return e, true
}

// oldest is when the message that has waited longest was queued.
func (q *sendQueue) oldest() (t time.Time) {
	for i := range q.levels {
		if e := q.levels[i].ring.peek(); e != nil && (t.IsZero() || e.since.Before(t)) {
			t = e.since
		}
	}
	return t
}
