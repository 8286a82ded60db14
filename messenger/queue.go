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
	since time.Time // queued; or the stamp of a keepalive
	seq   uint64    // of a message that has been sent before, else 0
	bound bool      // only makes sense on the present transport
	purpose
	// crc is the payload's checksum, if it has been computed.
	crc    uint32
	summed bool
}

// purpose is what one sending of a message is for. It is not the message's own:
// a received one may be sent on.
type purpose struct {
	flags    uint8     // flagCall, flagReply
	deadline time.Time // of a call, zero for none
	now      bool      // do not wait for room
}

// sendQueue is what waits to be sent on one connection: control frames, then
// messages by priority, the highest first, in order within a priority.
type sendQueue struct {
	control  ring[entry]
	levels   []level // by priority, descending; kept when empty
	messages int
	bytes    int64
}

type level struct {
	priority uint16
	ring     ring[entry]
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
	q.levels[i].ring.push(e)
	q.messages++
	q.bytes += e.size
}

// dropBound takes out what is bound to the transport.
func (q *sendQueue) dropBound() (dropped []*Message) {
	for i := range q.levels {
		r := &q.levels[i].ring
		for range r.n {
			e, _ := r.pop()
			if !e.bound {
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
	for i := range q.levels {
		if e, ok := q.levels[i].ring.pop(); ok {
			q.messages--
			q.bytes -= e.size
			return e, true
		}
	}
	return entry{}, false
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
