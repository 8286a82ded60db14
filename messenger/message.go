package messenger

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/argonaut-rdma/argonaut/buffer"
)

// Priorities of messages, Ceph's values. Of what waits to be sent on one
// connection, PriorityHigh and above go first, the highest before others; below
// that each priority gets a share of the bytes that is proportional to it, so
// that none starves. Order is kept within a priority.
const (
	PriorityLow     = 64
	PriorityDefault = 127
	PriorityHigh    = 196
	PriorityHighest = 255
)

// ReservedTypes and above are message types of the messenger's own.
const ReservedTypes = 0xff00

// Message is one message, sent or received: a type, some small parts and a
// payload. It is reference counted: the last Release gives back Data, the
// throttles and the Message itself, which is used again; nothing of it may be
// touched afterwards. Its fields must not be changed once it has been sent.
type Message struct {
	Type          uint16 // below ReservedTypes
	Priority      uint16
	Version       uint16 // of the encoding of this type
	CompatVersion uint16
	// TID matches a reply to its request. Call sets it.
	TID uint64
	// Seq is the position in the session of a received message.
	Seq uint64
	// Front and Middle are copied when they are sent and when received. Of a
	// received message they are valid until the last Release.
	Front, Middle []byte
	// Data is the payload, nil for none. The message owns the
	// list: the last Release releases it, unless the field has been set to nil
	// by who wants to keep it.
	Data *buffer.List
	// Trace is the trace that the message belongs to. Of a received message it is
	// what the peer, of this project, has sent: an answer to it, or what is sent on
	// its account, is given its own.
	Trace TraceContext
	// Conn is where a received message came from, nil before it is sent.
	Conn *Connection

	counts   atomic.Int64    // references, plus oneSend for each of them that Send has been given
	flags    uint8           // of a received message: header flags of our own
	deadline time.Time       // of a received call, zero for none
	budget   budget          // what the throttles gave; returned with the last reference
	own      []byte          // memory of Front, and of a received Middle, kept for the next use
	serving  bool            // a call, and in Conn.serving as callTID; set before it is dispatched
	callTID  uint64          // TID when it came: Call on another connection gives a message its own
	stopped  atomic.Bool     // of a call being served: nobody waits for the answer
	ctx      context.Context // of a call being served, once somebody has asked; Conn.mu guards it and cancel
	cancel   context.CancelFunc
	done     func()        // called with the last reference
	debt     *debt         // of a received call whose caller is told if it is not answered
	begun    time.Duration // latencies.now when its first bytes were there, 0: not measured
	arrived  time.Duration // likewise, when it had been received
	held     heldEntry     // of a received message with a payload
	placed   bool          // Data is in memory that the peer was granted, or that a pull waited for
}

// oneSend counts in Message.counts; the low half are the references. One word, so
// that who gives one of his references to Send sees it among them whatever others
// do with theirs.
const oneSend = 1 << 32

// refsIn is the references in a value of Message.counts.
func refsIn(counts int64) int32 { return int32(counts) }

// keepFront is the largest front buffer that a released Message keeps, bytes.
const keepFront = 64 << 10

// minFront is the least front buffer that a Message has, bytes.
const minFront = 256

var messages = sync.Pool{New: func() any { return new(Message) }}

// NewMessage returns a reference to an empty message of type t and default
// priority. Front is an empty slice with memory of the message's own:
//
//	m.Front = append(m.Front, ...)
//
// allocates nothing up to 256 bytes; see Grow for more.
func NewMessage(t uint16) *Message {
	m := messages.Get().(*Message)
	m.counts.Store(1)
	m.Type, m.Priority, m.Version, m.CompatVersion = t, PriorityDefault, 1, 1
	m.Grow(0)
	return m
}

// Grow makes room for n bytes in the message's own memory and sets Front to an
// empty slice of it.
func (m *Message) Grow(n int) {
	if m.own == nil || cap(m.own) < n || len(m.Middle) > 0 { // that of a received one is behind Front
		m.own = make([]byte, 0, max(n, minFront))
	}
	m.Front = m.own[:0]
}

// growParts sets Front and Middle to n and k bytes of the message's own memory, one
// behind the other, which hold anything.
func (m *Message) growParts(n, k int) {
	m.Grow(n + k)
	b := m.own[:n+k]
	if m.Front = b[:n]; k > 0 {
		m.Front, m.Middle = b[:n:n], b[n:]
	}
}

// Retain takes another reference and returns m.
func (m *Message) Retain() *Message {
	if refsIn(m.counts.Add(1)) <= 1 {
		panic("messenger: Retain of a released Message")
	}
	return m
}

// sending notes that Send has been given a reference.
func (m *Message) sending() {
	if refsIn(m.counts.Load()) <= 0 {
		panic("messenger: Send of a Message that has been released, or sent: Send takes it")
	}
	if n := m.counts.Add(oneSend); n>>32 > int64(refsIn(n)) {
		m.unsend()
		panic("messenger: Send of a Message that is being sent: Send takes it, Retain gives another reference")
	}
}

// unsend notes that a reference that Send was given is another's again.
func (m *Message) unsend() { m.counts.Add(-oneSend) }

// sent gives back the reference that Send was given.
func (m *Message) sent() {
	m.unsend()
	m.Release()
}

// Release gives a reference back.
func (m *Message) Release() {
	switch n := refsIn(m.counts.Add(-1)); {
	case n > 0:
		return
	case n < 0:
		panic("messenger: Message released more often than retained")
	}
	if m.held.in != nil {
		m.unhold()
	}
	if m.debt != nil {
		m.debt.abandon(m.late())
	}
	if m.serving {
		m.Conn.served(m)
	}
	if m.Data != nil {
		m.Data.Release()
	}
	if m.done != nil {
		m.done()
	}
	m.budget.release()
	own := m.own[:0]
	if cap(own) > keepFront {
		own = nil
	}
	m.Type, m.Priority, m.Version, m.CompatVersion = 0, 0, 0, 0
	m.counts.Store(0)
	m.TID, m.Seq, m.flags = 0, 0, 0
	m.Front, m.Middle, m.Data, m.Conn, m.Trace = nil, nil, nil, nil, TraceContext{}
	m.deadline, m.budget, m.own = time.Time{}, budget{}, own
	m.done, m.placed, m.debt, m.begun, m.arrived = nil, false, nil, 0, 0
	messages.Put(m)
}

// Deadline is when the caller stops waiting for the reply, if the message is a
// call that carries one.
func (m *Message) Deadline() (time.Time, bool) { return m.deadline, !m.deadline.IsZero() }

// Reply sends r as the answer to m, a received message, on m's connection. It
// takes r, borrows m, and sets r.TID. Otherwise as Connection.Send. After an
// error another answer, or Refuse, may be tried; where none is, a caller whose answer
// was too large is told so (ReasonTooLarge).
func (m *Message) Reply(ctx context.Context, r *Message) error {
	r.TID = m.TID
	_, err := m.Conn.enqueue(ctx, r, purpose{flags: flagReply})
	switch {
	case m.debt == nil:
	case err == nil:
		m.debt.open.Store(false)
	case errors.Is(err, ErrTooLarge):
		m.debt.tooLarge.Store(true)
	}
	return err
}

// late reports whether who has called does not wait for the answer any more.
func (m *Message) late() bool {
	return m.serving && (m.stopped.Load() || m.Conn.ctx.Err() != nil) || !m.deadline.IsZero() && !time.Now().Before(m.deadline)
}

// size is what the throttles count: front, middle and data, in bytes.
func (m *Message) size() int64 {
	n := int64(len(m.Front) + len(m.Middle))
	if m.Data != nil {
		n += m.Data.Len()
	}
	return n
}
