package conn

import (
	"context"
	"fmt"
	"time"

	"github.com/argonaut-rdma/argonaut/buffer"
	"github.com/argonaut-rdma/argonaut/conn/internal/wire"
	"github.com/argonaut-rdma/argonaut/verbs"
)

const (
	txSize       = 2 << 10 // bytes of registered memory of a send slot: headers, heads, small payloads
	maxTxHead    = txSize - wire.PacketLen - wire.RecordLen
	txChunk      = 128 << 10 // bytes of the buffers that slots are cut from
	controlSlots = 4         // slots that only packets without data use
	// dataReserve is how many credits data leaves, and noticeReserve how many a
	// packet leaves that carries no credits back: see PROTOCOL.md, Credits.
	dataReserve   = 2
	noticeReserve = 1
	postBatch     = 16
	maxSendSGE    = 16
)

// outgoing is a message of which only a part has found slots yet.
type outgoing struct {
	list *buffer.List // nil: none
	seg  int          // next segment
	off  int          // in it
	left int64        // bytes
	sent func()       // Message.Sent
}

// Send sends m. It takes m.Payload and borrows m.Head. It blocks while credits
// or send buffers are out, until ctx ends: then nothing was sent. nil means
// accepted, not delivered: whether it arrives is for the layer above to learn
// from the peer. Messages are sent in the order of acceptance; waiting Sends
// are accepted first come first served. Errors: ErrTooLarge, ErrInvalid (a
// payload that is not registered on the endpoint's PD), ctx's error, or why the connection ended.
func (c *Conn) Send(ctx context.Context, m Message) error {
	if err := c.check(&m); err != nil {
		return err
	}
	// A head that no send slot has room for gets a buffer of its own.
	var big buffer.RDMABuffer
	if n := len(m.Head); n > maxTxHead {
		var err error
		if big, err = c.getHead(ctx, n); err != nil {
			return err
		}
		copy(big.Bytes(), m.Head)
	}
	c.mu.Lock()
	c.deferring = true
	if c.waiters.empty() {
		ok, err := c.accept(&m, big)
		if ok || err != nil {
			c.unlock()
			return c.refused(err, big)
		}
	}
	begin := time.Now()
	defer func() { c.e.lat.sendWait.Observe(time.Since(begin)) }()
	c.stats.sendWaits.Add(1)
	w := c.waiters.push()
	c.deferred = true // what it waits for may wait for a doorbell
	c.unlock()
	for {
		var ctxErr error
		select {
		case <-w.ready:
		case <-c.life.Done():
		case <-ctx.Done():
			ctxErr = ctx.Err()
		}
		c.mu.Lock()
		c.deferring = true
		ok, err := false, ctxErr
		if ctxErr == nil && (c.waiters.head == w || c.Err() != nil || c.closing) {
			ok, err = c.accept(&m, big)
		}
		if ok || err != nil {
			c.waiters.remove(w)
			c.stall = stallAny // the next need not wait for what we have waited for
			c.wakeSender()     // its turn may have come, or its wake-up was ours
			if c.writable != 0 && c.waiters.empty() {
				c.kick(mailSettle)
			}
			c.unlock()
			return c.refused(err, big)
		}
		c.unlock()
	}
}

// TrySend is Send where that does not block, else it returns false and sends
// nothing: m.Payload stays the caller's, and Config.OnWritable tells when to try
// again.
func (c *Conn) TrySend(m Message) (bool, error) { return c.trySend(m, true) }

// TrySendDeferred is TrySend for who holds a lock that nobody else should wait for:
// m has its place, but what a software adapter does in its caller is left to
// Doorbell, which is to be called soon, without the lock.
func (c *Conn) TrySendDeferred(m Message) (bool, error) { return c.trySend(m, false) }

func (c *Conn) trySend(m Message, ring bool) (bool, error) {
	if err := c.check(&m); err != nil {
		return false, err
	}
	var big buffer.RDMABuffer
	if n := len(m.Head); n > maxTxHead {
		var ok bool
		if big, ok = c.e.arena.TryGet(n, c.e.sendOwner); !ok {
			return false, c.awaitHead(n)
		}
		copy(big.Bytes(), m.Head)
	}
	c.mu.Lock()
	c.deferring = true
	ok := false
	var err error
	switch {
	case !c.waiters.empty():
		c.writable = stallAny
	default:
		if ok, err = c.accept(&m, big); !ok && err == nil {
			c.writable |= c.stall
		}
	}
	c.deferred = c.deferred && ring
	c.unlock()
	if !ok && !big.IsZero() {
		big.Release()
	}
	return ok, err
}

// Doorbell has the device begin with what was sent by TrySendDeferred, if it has
// not. It does not block, and may be called at any time.
func (c *Conn) Doorbell() {
	if qp := c.bell.Load(); qp != nil { // else nothing can have been posted
		qp.Doorbell()
	}
}

// post posts wrs; the device begins with them at once, or, while c.deferring is set,
// when c.mu has been unlocked. With c.mu.
func (c *Conn) post(wrs []verbs.SendWR) (int, error) {
	if c.deferring {
		wrs[len(wrs)-1].Flags |= verbs.SendDeferred
		c.deferred = true
	}
	return c.qp.PostSend(wrs)
}

// unlock unlocks c.mu, and then has the device begin with what was posted while
// c.deferring was set.
func (c *Conn) unlock() {
	ring := c.deferred
	c.deferring, c.deferred = false, false
	c.mu.Unlock()
	if ring {
		c.Doorbell()
	}
}

// check refuses what can not be sent.
func (c *Conn) check(m *Message) error {
	if n := len(m.Head); n > c.MaxHead() {
		return fmt.Errorf("%w: a head of %d bytes, the peer takes %d", ErrTooLarge, n, c.MaxHead())
	}
	if m.Payload == nil {
		return nil
	}
	if m.Payload.Len() > c.MaxMessage() {
		return fmt.Errorf("%w: a payload of %d bytes, the peer takes %d", ErrTooLarge, m.Payload.Len(), c.MaxMessage())
	}
	return c.ours(m.Payload, 0)
}

// refused releases big when err says that it was not used.
func (c *Conn) refused(err error, big buffer.RDMABuffer) error {
	if err != nil && !big.IsZero() {
		big.Release()
	}
	return err
}

// over is why nothing is accepted any more, or nil. With c.mu.
func (c *Conn) over() error {
	if err := c.Err(); err != nil {
		return err
	}
	if c.closing {
		return ErrClosed
	}
	return nil
}

// accept takes m, and big, when there is room for it, and posts what can be
// posted; else c.stall is what there is no room in. With c.mu.
func (c *Conn) accept(m *Message, big buffer.RDMABuffer) (bool, error) {
	if err := c.over(); err != nil {
		return false, err
	}
	var payload int64
	if m.Payload != nil {
		payload = m.Payload.Len()
	}
	segs := 0
	if c.canRndv && payload > c.eagerMax && big.IsZero() {
		segs = m.Payload.Segments()
		if wire.PacketLen+wire.RecordLen+len(m.Head)+segs*wire.SegmentLen > txSize {
			segs = 0 // too many pieces: eagerly, then
		}
	}
	if segs > 0 && c.rndv.full() {
		c.stall = stallRndv
		return false, nil
	}
	if segs > 0 && (!c.canKey(m.Payload, segs) || !c.windows(segs)) {
		segs = 0 // no keys for it, now or ever
	}
	if c.out.list != nil || (c.tx.free() == 0 && !c.joinable(m, payload, segs, big)) {
		c.stall = stallSlots
		return false, nil
	}
	var s *sendSlot
	fresh := false
	if c.joinable(m, payload, segs, big) {
		s = c.tx.at(c.tx.built - 1)
		c.stats.coalesced.Add(1)
	} else {
		s, fresh = c.newSlot(), true
	}
	switch {
	case segs > 0:
		if err := c.putRTS(s, m, payload); err != nil {
			if fresh {
				c.tx.built--
			}
			return false, err
		}
	default:
		c.putMsg(s, m, payload, big)
	}
	s.messages++
	c.stats.messagesSent.Add(1)
	c.stats.bytesSent.Add(uint64(len(m.Head)) + uint64(payload))
	c.pump()
	return true, nil
}

// joinable reports whether all of m fits into the packet that was built last
// and is not yet posted. With c.mu.
func (c *Conn) joinable(m *Message, payload int64, segs int, big buffer.RDMABuffer) bool {
	if c.tx.built == c.tx.posted || !big.IsZero() {
		return false
	}
	s := c.tx.at(c.tx.built - 1)
	if s.sealed {
		return false
	}
	mem, sges := wire.RecordLen+len(m.Head)+segs*wire.SegmentLen, 0
	if !s.openTx {
		sges++
	}
	wireLen := mem
	switch {
	case segs > 0:
	case payload <= int64(c.e.cfg.CopyBreak):
		mem += int(payload)
		wireLen = mem
	default:
		sges += m.Payload.Segments()
		wireLen += int(min(payload, 1<<30))
	}
	return s.used+mem <= len(s.mem) && s.size+wireLen <= c.packetMax && len(s.sges)+sges <= c.maxSGE
}

// newSlot starts a packet in a free slot. With c.mu.
func (c *Conn) newSlot() *sendSlot {
	s := c.tx.at(c.tx.built)
	c.tx.built++
	s.start()
	return s
}

// putMsg adds an eager message, or as much of it as the packet has room for.
func (c *Conn) putMsg(s *sendSlot, m *Message, payload int64, big buffer.RDMABuffer) {
	wire.Record{Type: wire.Msg, Head: uint32(len(m.Head)), Payload: uint64(payload)}.Put(s.grow(wire.RecordLen))
	if big.IsZero() {
		copy(s.grow(len(m.Head)), m.Head)
	} else {
		s.gather(big.Slice(0, len(m.Head)), c.e.pd)
		big.Release()
	}
	if m.Payload == nil {
		s.notify(m.Sent)
		return
	}
	if payload <= int64(c.e.cfg.CopyBreak) && s.used+int(payload) <= len(s.mem) && s.size+int(payload) <= c.packetMax {
		m.Payload.CopyTo(s.grow(int(payload)))
		c.stats.copiedOut.Add(uint64(payload))
		m.Payload.Release()
		s.notify(m.Sent)
		return
	}
	c.out = outgoing{list: m.Payload, left: payload, sent: m.Sent}
	c.fillSlot(s)
}

// fillSlot adds payload of c.out to s until that or the packet is full.
func (c *Conn) fillSlot(s *sendSlot) {
	o := &c.out
	for o.left > 0 && s.size < c.packetMax && len(s.sges) < c.maxSGE {
		b := o.list.At(o.seg)
		n := min(b.Len()-o.off, c.packetMax-s.size)
		s.gather(b.Slice(o.off, o.off+n), c.e.pd)
		o.off += n
		o.left -= int64(n)
		if o.off == b.Len() {
			o.seg++
			o.off = 0
		}
	}
	if o.left > 0 {
		s.sealed = true
		return
	}
	o.list.Release()
	s.notify(o.sent)
	*o = outgoing{}
}

// fill gives slots to the message that is under way. With c.mu.
func (c *Conn) fill() {
	for c.out.list != nil && c.tx.free() > 0 {
		s := c.newSlot()
		wire.Record{Type: wire.Frag, Payload: uint64(c.out.left)}.Put(s.grow(wire.RecordLen))
		c.fillSlot(s)
	}
}

// pump posts what credits and queues allow. With c.mu.
func (c *Conn) pump() {
	if !c.open || c.Err() != nil {
		return
	}
	c.fill()
	r := &c.tx
	reserve := dataReserve
	if c.rationed {
		reserve = 0
	}
	for r.posted != r.built && c.credits > reserve {
		n := 0
		for ; n < postBatch && r.posted+uint64(n) != r.built && c.credits-n > reserve; n++ {
			seq := r.posted + uint64(n)
			r.wrs[n] = c.finish(r.at(seq), wrSend|seq&wrIndex, seq)
		}
		done, err := c.post(r.wrs[:n])
		r.posted += uint64(done)
		c.credits -= done
		c.greet = c.greet && done == 0
		c.stats.packetsSent.Add(uint64(done))
		for i := range n - done {
			if r.at(r.posted + uint64(i)).signaled {
				r.signaled--
			}
		}
		if err != nil {
			c.postFailed(err)
			return
		}
	}
	c.pumpControl()
	c.pumpOps()
}

// finish makes the work request of a slot that is about to be posted.
func (c *Conn) finish(s *sendSlot, wrid uint64, seq uint64) verbs.SendWR {
	r := &c.tx
	if c.fetched != c.told && !s.sealed && s.openTx && s.used+wire.RecordLen <= len(s.mem) && s.size+wire.RecordLen <= c.packetMax {
		wire.Record{Type: wire.Done, Payload: c.fetched}.Put(s.grow(wire.RecordLen))
		c.told = c.fetched
	}
	c.putHeader(s)
	wr := verbs.SendWR{WRID: wrid, Opcode: verbs.OpSend, SGEs: s.sges}
	r.unsignaled++
	s.signaled = s.wait || r.unsignaled >= len(r.slots)/4 || seq+1 == r.retired+uint64(len(r.slots))
	if s.signaled {
		wr.Flags = verbs.SendSignaled
		r.unsignaled = 0
		r.signaled++
	}
	return wr
}

// putHeader encodes the packet header, with all credits that are owed.
func (c *Conn) putHeader(s *sendSlot) {
	n := c.owed.Swap(0) + c.owedControl.Swap(0)
	c.used.Add(-n)
	wire.Packet{Epoch: c.epoch, Credits: uint16(n), Parked: c.parkedNow}.Put(s.mem)
	c.toldPark = c.parkedNow
}

// postFailed deals with a post that was refused. With c.mu.
func (c *Conn) postFailed(err error) {
	if isQPState(err) {
		// The QP went to ERR: why, the poller will learn.
		c.kick(mailGone)
		return
	}
	c.fail(c.fault(FaultLocal, err))
}

// retire gives back the slots up to seq, which a completion has retired. With
// c.mu.
func (c *Conn) retire(seq uint32) bool {
	r := &c.tx
	n := uint64(seq - uint32(r.retired))
	if n >= r.posted-r.retired {
		return false
	}
	for end := r.retired + n + 1; r.retired != end; r.retired++ {
		s := r.at(r.retired)
		s.releasePayload()
		if s.signaled {
			r.signaled--
		}
	}
	return true
}

// wakeSender wakes the first waiting Send if what it waits for is there. With
// c.mu.
func (c *Conn) wakeSender() {
	if c.waiters.head != nil && c.stall&c.there() != 0 {
		c.waiters.head.wake()
	}
}

// there is what a Send need not wait for now. With c.mu.
func (c *Conn) there() (s stall) {
	if !c.rndv.full() {
		s |= stallRndv
	}
	if c.out.list == nil && c.tx.free() > 0 {
		s |= stallSlots
	}
	return s
}
