package messenger

import (
	"cmp"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/argonaut-rdma/argonaut/buffer"
)

// heldShards is how many lists of held messages there are, a power of two: they
// are added by pollers and released by handlers.
const heldShards = 16

// keepBufs is for how many buffers a Message keeps the memory of its entry.
const keepBufs = 64

// heldShard is a list of the received messages with a payload that have not been
// released: who keeps one keeps receive buffers of all peers.
type heldShard struct {
	mu    sync.Mutex
	first *Message
	_     [48]byte // neighbours in memory
}

// heldEntry is what a Message has in such a list. Guarded by in.mu; in is the
// message's owner's.
type heldEntry struct {
	in         *heldShard // nil: in none
	prev, next *Message
	from       *Connection
	typ        uint16
	tid        uint64
	at         time.Duration // when it came, after Messenger.started
	size       int64         // of the payload, bytes
	bufs       []buffer.RDMABuffer
}

// hold lists a message of c that goes to the user.
func (c *Connection) hold(m *Message) {
	if m.Data == nil {
		return
	}
	e := &m.held
	fresh := e.in == nil
	if fresh {
		e.in = &c.m.held[m.Seq%heldShards]
	}
	e.in.mu.Lock()
	defer e.in.mu.Unlock()
	e.from, e.typ, e.tid, e.at, e.size = c, m.Type, m.TID, time.Duration(c.m.ticked.Load()), m.Data.Len()
	e.bufs = e.bufs[:0]
	for i := range m.Data.Segments() {
		e.bufs = append(e.bufs, m.Data.At(i))
	}
	if !fresh { // received, and sent on to ourselves
		return
	}
	if e.next = e.in.first; e.next != nil {
		e.next.held.prev = m
	}
	e.in.first = m
}

// unhold takes a message that is being released off its list.
func (m *Message) unhold() {
	e := &m.held
	e.in.mu.Lock()
	if e.prev != nil {
		e.prev.held.next = e.next
	} else {
		e.in.first = e.next
	}
	if e.next != nil {
		e.next.held.prev = e.prev
	}
	e.in.mu.Unlock()
	clear(e.bufs)
	bufs := e.bufs[:0]
	if cap(bufs) > keepBufs {
		bufs = nil
	}
	*e = heldEntry{bufs: bufs}
}

// HeldMessage is a received message with a payload that has not been released.
type HeldMessage struct {
	Peer string
	Type uint16
	TID  uint64
	Data int64         // bytes of the payload
	Age  time.Duration // since it came, to a second or so

	from *Connection
	bufs []buffer.RDMABuffer
}

func (h *HeldMessage) String() string {
	return fmt.Sprintf("message of type %d from %s, tid %d, %d bytes, %v ago", h.Type, h.Peer, h.TID, h.Data, h.Age.Round(time.Second))
}

// Held lists the received messages with a payload that have not been released,
// the oldest first, at most some number: they hold receive memory. A message
// whose Data has been set to nil is listed until it is released, and its list no
// longer. The same is said of their buffers in what the arena reports, also
// after Close.
func (m *Messenger) Held(most int) []HeldMessage {
	all := m.heldMessages()
	slices.SortFunc(all, func(a, b HeldMessage) int { return cmp.Compare(b.Age, a.Age) })
	return all[:min(len(all), max(most, 0))]
}

func (m *Messenger) heldMessages() (all []HeldMessage) {
	now := time.Since(m.started)
	for i := range m.held {
		s := &m.held[i]
		s.mu.Lock()
		for x := s.first; x != nil; x = x.held.next {
			e := &x.held
			all = append(all, HeldMessage{
				Type: e.typ, TID: e.tid, Data: e.size, Age: max(0, now-e.at), from: e.from, bufs: slices.Clone(e.bufs),
			})
		}
		s.mu.Unlock()
	}
	for i := range all { // without the lock: a message may be released under that of its connection
		all[i].Peer = all[i].from.describe()
	}
	return all
}

// describe is the peer's name, with its address if that is known.
func (c *Connection) describe() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, as := range []AddrVec{c.addrs, c.dial} {
		if len(as) > 0 {
			return fmt.Sprintf("%v at %v", c.peer, as[0])
		}
	}
	return c.peer.String()
}

// describeTo makes the reports of an arena name the messages that hold its
// buffers.
func (m *Messenger) describeTo(a *buffer.Arena) {
	m.undescribe = append(m.undescribe, a.Describe(func(yield func(buffer.RDMABuffer, string)) {
		for _, h := range m.heldMessages() {
			what := h.String()
			for _, b := range h.bufs {
				yield(b, what)
			}
		}
	}))
}

// forgetHeld ends that for a messenger that is closed, unless messages are held: the
// arena then says whose they are.
func (m *Messenger) forgetHeld() {
	for i := range m.held {
		m.held[i].mu.Lock()
		held := m.held[i].first != nil
		m.held[i].mu.Unlock()
		if held {
			return
		}
	}
	for _, stop := range m.undescribe {
		stop()
	}
}
