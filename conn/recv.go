package conn

import (
	"github.com/argonaut-rdma/argonaut/buffer"
	"github.com/argonaut-rdma/argonaut/conn/internal/wire"
	"github.com/argonaut-rdma/argonaut/verbs"
)

// rxState is the receiving side of a connection. It belongs to the poller.
type rxState struct {
	started  bool // the first packet has come
	promote  bool // Promote has been called
	promoted bool // and all buffers have been given, or are waited for
	dead     bool // no callback any more, and nothing is handled
	parked   bool // the peer has parked our rendezvous
	reaped   bool // everything has been given back; guarded by poller.mu
	touched  bool // in poller.touched
	credits  int  // came with this batch's packets

	in       packetQueue // packets not yet handled, the first perhaps in part
	gate     gate        // why in is not handled
	admitted bool        // Admit has said yes to the message at the front of in
	waiting  int         // packets done with that wait for a buffer to post instead

	entries entryQueue          // messages not yet delivered: behind a READ, or in part
	part    *buffer.List        // payload so far of the last entry
	left    uint64              // bytes of it that are still to come
	short   gathering           // its last bytes, if they came in short parts
	rts     uint64              // rendezvous that the peer has asked for
	fetched [maxRendezvous]bool // by number modulo: payload is there, but not that of an earlier one
	list    *buffer.List        // memory for the rendezvous at the front of in, if it had to be waited for
	bye     bool                // the peer has said goodbye
	byeDone bool                // and all that came before it has been delivered

	// Guarded by poller.mu: from the supplier.
	bufs      []buffer.RDMABuffer
	gotList   *buffer.List
	supplyErr error
}

// gate is why incoming packets are parked.
type gate uint8

const (
	gateOpen   gate = iota
	gateAdmit       // Admit said no
	gateMemory      // no memory for a payload
)

// packet is a received SEND, alive as long as a message in it is not delivered.
type packet struct {
	b    buffer.RDMABuffer // the receive buffer, with the queue's reference
	n    int               // bytes
	off  int               // handled so far
	refs int               // entries with their head in it, and 1 while it is being handled
	up   bool              // payload in it was handed up
	data bool              // it held more than credits and notices
	next *packet
}

// packetQueue is a FIFO of packets.
type packetQueue struct{ head, tail *packet }

func (q *packetQueue) push(p *packet) {
	if q.tail != nil {
		q.tail.next = p
	} else {
		q.head = p
	}
	q.tail = p
}

func (q *packetQueue) pop() *packet {
	p := q.head
	q.head = p.next
	if q.head == nil {
		q.tail = nil
	}
	p.next = nil
	return p
}

// entry is a message that can not be delivered yet.
type entry struct {
	pkt     *packet
	head    []byte // in pkt
	payload *buffer.List
	ready   bool
}

// entryQueue is a FIFO of entries whose places are numbered.
type entryQueue struct {
	q     []entry
	first uint64 // number of q[0]
	start int    // index of the first that is not popped
}

func (e *entryQueue) empty() bool { return e.start == len(e.q) }

func (e *entryQueue) push(x entry) uint64 {
	if e.start > 0 && e.start == len(e.q) {
		e.first += uint64(e.start)
		e.q, e.start = e.q[:0], 0
	}
	e.q = append(e.q, x)
	return e.first + uint64(len(e.q)-1)
}

func (e *entryQueue) at(n uint64) *entry { return &e.q[n-e.first] }
func (e *entryQueue) front() *entry      { return &e.q[e.start] }
func (e *entryQueue) back() *entry       { return &e.q[len(e.q)-1] }

func (e *entryQueue) pop() {
	e.q[e.start] = entry{}
	if e.start++; e.start >= 64 && e.start*2 >= len(e.q) {
		n := copy(e.q, e.q[e.start:])
		clear(e.q[n:])
		e.q = e.q[:n]
		e.first += uint64(e.start)
		e.start = 0
	}
}

// received handles a receive that completed. It takes b.
func (c *Conn) received(b buffer.RDMABuffer, wc *verbs.WC) {
	if c.rx.dead {
		c.l.drop(b, c)
		return
	}
	c.stats.packetsReceived.Add(1)
	h, err := c.header(b, wc)
	if err != nil {
		c.l.drop(b, c)
		c.fail(c.fault(FaultPeer, err))
		return
	}
	n := int(wc.ByteLen)
	if why, ok := wire.IsClose(b.Bytes()[wire.PacketLen:n]); ok { // before what is parked, too
		c.l.drop(b, c)
		c.fail(closedBy(why))
		return
	}
	c.rx.credits += int(h.Credits)
	if !c.rx.started {
		c.start()
	}
	c.peerParked(h.Parked)
	p := c.p.newPacket()
	*p = packet{b: b, n: n, off: wire.PacketLen, refs: 1}
	if c.rx.gate != gateOpen && c.notices(b.Bytes()[wire.PacketLen:n]) {
		c.unref(p)
		return
	}
	c.rx.in.push(p)
	if c.rx.gate == gateOpen {
		c.parse()
	}
}

// header is that of the packet that has come into b, which may be none: a write
// with immediate data takes a receive, too, and its length is that of the write.
func (c *Conn) header(b buffer.RDMABuffer, wc *verbs.WC) (wire.Packet, error) {
	if wc.Opcode == verbs.OpRecvWriteImm || int64(wc.ByteLen) > int64(b.Len()) {
		return wire.Packet{}, c.protocol("%v of %d bytes", wc.Opcode, wc.ByteLen)
	}
	if !c.rx.started && !c.greeted() {
		return wire.Packet{}, c.protocol("a packet before the dialer's first")
	}
	h, err := wire.ParsePacket(b.Bytes()[:wc.ByteLen])
	switch {
	case err != nil:
	case h.Epoch != c.epoch:
		err = c.protocol("a packet of epoch 0x%x, this is 0x%x", h.Epoch, c.epoch)
	case int(c.used.Add(1)) > c.e.cfg.Credits:
		err = c.protocol("more packets than it has credits for")
	}
	return h, err
}

// greeted reports whether the acceptor may speak: the dialer's first packet is out,
// and what the handshake has set is there to be read.
func (c *Conn) greeted() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.greet
}

// notices handles the DONE records of a packet that is about to be parked, and
// reports whether it holds nothing else. They have no place in the order. Were
// they kept behind what is parked, a peer that only answers us would run out of
// credits to return ours with, we could not even say that we live, and what it
// has fetched would stay ours.
func (c *Conn) notices(b []byte) bool {
	only := true
	for len(b) > 0 {
		r, n, err := wire.ParseRecord(b)
		if err == nil && r.Type == wire.Done {
			err = c.rndvDone(r.Payload)
			if err != nil {
				c.fail(c.fault(FaultPeer, err))
			}
		} else {
			only = false
		}
		if err != nil {
			return false // said when it is its turn, if not just now
		}
		b = b[n:]
	}
	return only
}

// start is the acceptor's first packet: it may send from now on, if the device
// has told already that the connection is there.
func (c *Conn) start() {
	c.rx.started = true
	if c.dialer {
		return
	}
	c.first.Stop()
	c.mu.Lock()
	c.spoken = true
	c.open = c.ready
	c.mu.Unlock()
	if c.rx.promote {
		c.promoted()
	}
}

// parse handles incoming packets until there is none, or the gate closes.
func (c *Conn) parse() {
	for c.rx.in.head != nil && !c.rx.dead && c.Err() == nil {
		p := c.rx.in.head
		b := p.b.Bytes()
		for p.off < p.n {
			r, n, err := wire.ParseRecord(b[p.off:p.n])
			if err == nil && c.rx.bye && r.Type != wire.Done {
				err = c.protocol("%v after goodbye", r.Type)
			}
			if err != nil {
				c.fail(c.fault(FaultPeer, err))
				return
			}
			open, err := c.record(p, r, b[p.off+wire.RecordLen:p.off+n])
			if err != nil {
				c.fail(c.fault(FaultPeer, err))
				return
			}
			if !open {
				c.parked()
				return
			}
			p.off += n
			if c.Err() != nil {
				return // a callback closed it
			}
		}
		c.rx.in.pop()
		c.unref(p)
	}
	c.checkBye()
}

// checkBye answers the peer's goodbye once all that came before is delivered.
func (c *Conn) checkBye() {
	if !c.rx.bye || c.rx.byeDone || !c.rx.entries.empty() {
		return
	}
	c.rx.byeDone = true
	c.mu.Lock()
	c.closing = true // what was accepted is still sent, then our goodbye
	c.waiters.wakeAll()
	c.mu.Unlock()
	c.p.touch(c)
}

// record handles one record with its body: the head, and then the payload or
// the segments. false: the gate is closed, and the record is still to be
// handled.
func (c *Conn) record(p *packet, r wire.Record, body []byte) (bool, error) {
	if c.rx.part != nil && r.Type != wire.Frag && r.Type != wire.Done {
		return false, c.protocol("%v within a message", r.Type)
	}
	switch r.Type {
	case wire.Msg, wire.RndvRTS:
		p.data = true
		if r.Payload > uint64(c.e.cfg.MaxMessage) {
			return false, c.protocol("%v of %d bytes", r.Type, r.Payload)
		}
		head, rest := body[:r.Head:r.Head], body[r.Head:]
		if c.e.cfg.Admit != nil && !c.rx.admitted {
			if !c.e.cfg.Admit(c, head, int64(r.Payload)) {
				c.rx.gate = gateAdmit
				return false, nil
			}
			c.rx.admitted = true
		}
		var open bool
		var err error
		if r.Type == wire.Msg {
			open = true
			c.eager(p, head, rest, r.Payload)
		} else {
			open, err = c.rendezvous(p, head, rest, r.Payload)
		}
		c.rx.admitted = c.rx.admitted && !open
		return open, err
	case wire.Frag:
		p.data = true
		if c.rx.part == nil || r.Payload != c.rx.left {
			return false, c.protocol("FRAG of %d bytes where %d are missing", r.Payload, c.rx.left)
		}
		c.fragment(p, body)
		return true, nil
	case wire.Done:
		return true, c.rndvDone(r.Payload)
	case wire.Close:
		return false, c.protocol("%v among other records", r.Type)
	default: // ParseRecord lets no other type through
		c.rx.bye = true
		return true, nil
	}
}

// eager is a message whose payload, or the first part of it, is part.
func (c *Conn) eager(p *packet, head, part []byte, payload uint64) {
	var l *buffer.List
	if len(part) > 0 {
		l = c.handUp(p, part)
	}
	if uint64(len(part)) == payload {
		if c.rx.entries.empty() {
			c.deliver(head, l)
			return
		}
		p.refs++
		c.rx.entries.push(entry{pkt: p, head: head, payload: l, ready: true})
		return
	}
	if l == nil {
		l = buffer.NewList()
	}
	p.refs++
	c.rx.entries.push(entry{pkt: p, head: head, payload: l})
	c.rx.part = l
	c.rx.left = payload - uint64(len(part))
}

// fragment is a further part of the last message.
func (c *Conn) fragment(p *packet, part []byte) {
	c.addPart(p, part)
	if c.rx.left -= uint64(len(part)); c.rx.left > 0 {
		return
	}
	c.rx.short.end(c.rx.part)
	c.rx.part = nil
	c.rx.entries.back().ready = true
	c.deliverReady()
}

// handUp makes a list of part of a packet.
func (c *Conn) handUp(p *packet, part []byte) *buffer.List {
	return buffer.NewList(c.handUpBuffer(p, part))
}

// handUpBuffer makes a buffer of part of a packet: a view of the receive
// buffer, or a copy if it is short.
func (c *Conn) handUpBuffer(p *packet, part []byte) buffer.RDMABuffer {
	if len(part) <= c.e.cfg.CopyBreak {
		if b, ok := c.e.arena.TryGet(len(part), c.e.recvOwner); ok {
			copy(b.Bytes(), part)
			c.stats.copiedIn.Add(uint64(len(part)))
			return b
		}
	}
	p.up = true
	// part is a piece of p.b: its place follows from what is behind it.
	off := p.b.Len() - cap(part)
	return p.b.Slice(off, off+len(part)).Retain()
}

// deliver hands a message up. It takes l.
func (c *Conn) deliver(head []byte, l *buffer.List) {
	n := uint64(len(head))
	if l != nil {
		n += uint64(l.Len())
	}
	c.stats.messagesReceived.Add(1)
	c.stats.bytesReceived.Add(n)
	if c.e.cfg.OnMessage != nil {
		c.e.cfg.OnMessage(c, Message{Head: head, Payload: l})
	} else if l != nil {
		l.Release()
	}
}

// deliverReady hands up what is complete, in order.
func (c *Conn) deliverReady() {
	for !c.rx.entries.empty() && c.rx.entries.front().ready && !c.rx.dead && c.Err() == nil {
		e := *c.rx.entries.front()
		c.rx.entries.pop()
		c.deliver(e.head, e.payload)
		c.unref(e.pkt)
	}
}

// unref gives up one use of p. With the last, its buffer is posted again, or
// another one if it was handed up.
func (c *Conn) unref(p *packet) {
	if p.refs--; p.refs > 0 {
		return
	}
	b, up, data := p.b, p.up, p.data
	c.p.freePacket(p)
	if up {
		b.Release()
		var ok bool
		if b, ok = c.e.arena.TryGet(c.e.cfg.RecvSize, c.e.recvOwner); !ok {
			if c.rx.dead {
				c.l.forgo()
				return
			}
			c.await()
			return
		}
	}
	c.repost(b, !data)
}

// await has the supplier bring a receive buffer.
func (c *Conn) await() {
	c.rx.waiting++
	c.e.stats.memoryWaits.Add(1)
	c.e.supplier.ask(request{c: c, kind: askRecv, n: int64(c.e.cfg.RecvSize)})
}

// repost posts b, which it takes, as a receive of the connection.
func (c *Conn) repost(b buffer.RDMABuffer, control bool) {
	if c.rx.dead {
		c.l.drop(b, c)
		return
	}
	if err := c.rq.add(b, creditor{c, control}); err != nil {
		c.recvFailed(err)
	}
	c.p.touch(c)
}

// recvFailed ends the connection whose receives could not be posted: all that
// share the queue, as those of others are in the same call.
func (c *Conn) recvFailed(err error) {
	if c.rq == c.l.rq {
		c.l.failAll(err)
		return
	}
	if isQPState(err) {
		c.kick(mailGone)
		return
	}
	c.fail(c.fault(FaultLocal, err))
}

// parked takes note that the gate has closed.
func (c *Conn) parked() {
	c.isParked.Store(true)
	c.stats.parks.Add(1)
	c.tellParked(true)
}

// reopen handles parked packets again.
func (c *Conn) reopen() {
	if c.rx.dead {
		return
	}
	c.rx.gate = gateOpen
	c.parse()
	if c.rx.gate == gateOpen {
		c.isParked.Store(false)
		c.tellParked(false)
	}
}

// Progress is for who watches the peer for silence, as frames can be long in
// coming in order: behind a payload that is being fetched, or while it is we who
// do not take them. moved counts the requests for the peer's memory that have
// completed (64 MiB of a payload each, at most); parked is true while messages
// of the peer wait for Admit or for arena memory. Any goroutine may call it.
func (c *Conn) Progress() (moved uint64, parked bool) { return c.moved.Load(), c.isParked.Load() }

// tellParked lets the peer know that its rendezvous wait for us, or go on: their
// timeout stands still meanwhile.
func (c *Conn) tellParked(on bool) {
	if !c.canFetch() {
		return
	}
	c.mu.Lock()
	c.parkedNow = on
	c.mu.Unlock()
	c.p.touch(c)
}
