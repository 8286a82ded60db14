package conn

import (
	"context"
	"fmt"

	"github.com/argonaut-rdma/argonaut/buffer"
	"github.com/argonaut-rdma/argonaut/conn/internal/wire"
	"github.com/argonaut-rdma/argonaut/verbs"
)

// sendSlot is one SEND: under construction, waiting to be posted, or posted.
type sendSlot struct {
	mem  []byte    // of one of txRing.chunks
	base verbs.SGE // mem, as registered

	used     int  // bytes of mem in use
	size     int  // bytes of the packet
	openTx   bool // the last SGE ends at mem[used]
	sealed   bool // no record can follow
	messages int
	sges     []verbs.SGE
	posted   []buffer.RDMABuffer // payload that sges name, each with a posted reference
	sent     []func()            // Message.Sent of payloads that end here
	wait     bool                // the completion is wanted soon
	signaled bool
}

// txRing is the send slots of a connection: those in [retired, posted) are on
// the QP, those in [posted, built) are under construction or wait for credits.
type txRing struct {
	chunks                 []buffer.RDMABuffer // what the slots are cut from, posted as long as the connection lives
	slots                  []sendSlot
	retired, posted, built uint64 // a WR has the low half
	unsignaled             int    // posted since the last one that was signalled
	signaled               int    // posted with a completion to come

	control     [controlSlots]sendSlot
	controlBusy [controlSlots]bool

	wrs [postBatch]verbs.SendWR
}

func (r *txRing) at(seq uint64) *sendSlot { return &r.slots[seq%uint64(len(r.slots))] }
func (r *txRing) free() int               { return len(r.slots) - int(r.built-r.retired) }

// start makes s an empty packet. The header is encoded when it is posted.
func (s *sendSlot) start() {
	s.used, s.size = wire.PacketLen, wire.PacketLen
	s.openTx, s.sealed, s.wait = true, false, false
	s.messages = 0
	s.sges = append(s.sges[:0], verbs.SGE{MR: s.base.MR, Offset: s.base.Offset, Length: wire.PacketLen})
	s.posted = s.posted[:0]
}

// grow adds n bytes of the slot's own memory to the packet and returns them.
func (s *sendSlot) grow(n int) []byte {
	if !s.openTx {
		s.sges = append(s.sges, verbs.SGE{MR: s.base.MR, Offset: s.base.Offset + uint64(s.used)})
		s.openTx = true
	}
	s.sges[len(s.sges)-1].Length += uint32(n)
	b := s.mem[s.used : s.used+n]
	s.used += n
	s.size += n
	return b
}

// gather adds b to the packet, with a posted reference of the slot's own.
func (s *sendSlot) gather(b buffer.RDMABuffer, pd *verbs.PD) {
	b.RetainPosted()
	s.posted = append(s.posted, b)
	s.sges = append(s.sges, b.SGE(pd))
	s.size += b.Len()
	s.openTx = false
	s.wait = true
}

func (s *sendSlot) releasePayload() {
	for _, b := range s.posted {
		b.ReleasePosted()
	}
	clear(s.posted)
	s.posted = s.posted[:0]
	for _, f := range s.sent {
		f()
	}
	clear(s.sent)
	s.sent = s.sent[:0]
}

// notify has f called when the slot's request has completed, soon. f may be nil.
func (s *sendSlot) notify(f func()) {
	if f != nil {
		s.sent = append(s.sent, f)
		s.wait = true
	}
}

// newTx cuts the send slots out of registered memory.
func (c *Conn) newTx(ctx context.Context, depth int) error {
	r := &c.tx
	slots := make([]sendSlot, depth-controlSlots)
	for i := range depth {
		if i%(txChunk/txSize) == 0 {
			b, err := c.e.arena.Get(ctx, min(txChunk, (depth-i)*txSize), c.e.sendOwner)
			if err != nil {
				return fmt.Errorf("send buffers: %w", err)
			}
			// Posted for the life of the connection, like its receive
			// buffers: what the account calls held is somebody's payload.
			b.RetainPosted()
			b.Release()
			r.chunks = append(r.chunks, b)
		}
		chunk := r.chunks[len(r.chunks)-1]
		off := i % (txChunk / txSize) * txSize
		part := chunk.Slice(off, off+txSize)
		s := sendSlot{mem: part.Bytes(), base: part.SGE(c.e.pd)}
		s.sges = make([]verbs.SGE, 0, c.maxSGE)
		if i < controlSlots {
			r.control[i] = s
			continue
		}
		s.posted = make([]buffer.RDMABuffer, 0, c.maxSGE)
		slots[i-controlSlots] = s
	}
	// OnAccept has handed the Conn out: somebody may be sending.
	c.mu.Lock()
	r.slots = slots
	c.mu.Unlock()
	return nil
}

// release gives back everything that the ring holds: the device has forgotten
// the QP. With c.mu.
func (r *txRing) release() {
	for ; r.retired != r.built; r.retired++ {
		r.at(r.retired).releasePayload()
	}
	r.posted = r.built
	for _, b := range r.chunks {
		b.ReleasePosted()
	}
	r.chunks = nil
}
