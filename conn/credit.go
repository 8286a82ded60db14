package conn

import (
	"github.com/argonaut-rdma/argonaut/conn/internal/wire"
	"github.com/argonaut-rdma/argonaut/verbs"
)

// settle is what the poller does once per batch with a connection that the
// batch has touched: it books the credits that came and the sends that
// completed, posts what that allows, and wakes senders. See also pumpControl.
func (c *Conn) settle() {
	if c.Err() != nil {
		c.drainProgress()
	}
	c.mu.Lock()
	c.deferring = true
	c.credits += c.rx.credits
	c.rx.credits = 0
	if c.credits > int(c.peer.Most) && c.Err() == nil {
		c.unlock()
		c.fail(c.protocol("%d credits of %d receive buffers", c.credits, c.peer.Most))
		return
	}
	if c.credits > int(c.peer.Credits) {
		c.rationed = false
	}
	c.pump()
	c.wakeSender()
	call := c.writable&c.there() != 0 && c.waiters.empty() && c.Err() == nil && c.handed
	if call {
		c.writable = 0
	}
	bye := c.open && c.sentBye && c.rx.byeDone
	c.unlock()
	if bye {
		c.endGracefully()
	}
	if call && c.e.cfg.OnWritable != nil && !c.rx.dead {
		c.e.cfg.OnWritable(c)
	}
}

// pumpControl posts a packet without data when something has to be said that no
// data packet has said: credits, payloads fetched, parking, the dialer's
// greeting, goodbye. With c.mu.
func (c *Conn) pumpControl() {
	owed := int(c.owed.Load())
	half := c.e.cfg.Credits / 2
	if c.staged.Load() {
		half = c.e.cfg.StagedCredits / 2
	}
	credits := owed > 0 && owed >= min(half, max(c.outstanding()-1, 1)) || owed+int(c.owedControl.Load()) >= half
	bye := c.byeDue()
	if !credits && c.fetched == c.told && c.parkedNow == c.toldPark && !c.greet && !bye && len(c.keys.invs) == 0 {
		return
	}
	reserve := noticeReserve
	if owed > 0 || c.rationed {
		reserve = 0
	}
	if c.credits <= reserve {
		return // the peer's next packet brings some: see PROTOCOL.md
	}
	i := 0
	for c.tx.controlBusy[i] {
		if i++; i == controlSlots {
			return // until a completion
		}
	}
	s := &c.tx.control[i]
	s.start()
	if c.fetched != c.told {
		wire.Record{Type: wire.Done, Payload: c.fetched}.Put(s.grow(wire.RecordLen))
	}
	if bye {
		wire.Record{Type: wire.Goodbye}.Put(s.grow(wire.RecordLen))
	}
	c.putHeader(s)
	c.tx.wrs[0] = verbs.SendWR{
		WRID: wrControl | uint64(i), Opcode: verbs.OpSend, Flags: verbs.SendSignaled, SGEs: s.sges,
	}
	if len(c.keys.invs) > 0 {
		c.tx.wrs[0].Opcode, c.tx.wrs[0].InvalidateRKey = verbs.OpSendWithInv, c.keys.invs[0]
	}
	n, err := c.post(c.tx.wrs[:1])
	if n == 0 {
		c.postFailed(err)
		return
	}
	if len(c.keys.invs) > 0 {
		c.keys.invs = c.keys.invs[1:]
	}
	c.tx.controlBusy[i] = true
	c.credits--
	c.told = c.fetched
	c.greet = false
	if bye {
		c.sentBye = true
		c.kick(mailSettle) // the peer may have said it already, and this need not be the poller
	}
	c.stats.packetsSent.Add(1)
	c.stats.creditUpdates.Add(1)
}

// Promote gives the peer of a connection that was accepted with
// Config.StagedCredits the others of Config.Credits, as soon as there is memory
// for their buffers. It does not block, and does nothing the second time or where
// there are none to give.
func (c *Conn) Promote() {
	c.known.Store(true)
	c.kick(mailPromote)
}

// promoted posts the receive buffers that were held back, as if the peer had
// filled them and they had been taken up. It runs on the poller.
func (c *Conn) promoted() {
	c.rx.promote = true
	if !c.rx.started || c.rx.dead || c.rx.promoted || !c.staged.Load() { // the queue pair may not be there before the first packet
		return
	}
	c.rx.promoted = true
	n := c.e.cfg.Credits - c.e.cfg.StagedCredits
	missing := c.l.enlarge(c, n)
	c.owed.Add(int32(n - missing)) // the queue has had buffers for these
	for range missing {
		b, ok := c.e.arena.TryGet(c.e.cfg.RecvSize, c.e.recvOwner)
		if !ok {
			c.await()
			continue
		}
		c.repost(b, false)
	}
	c.allGiven()
	c.p.touch(c)
}

// allGiven ends the time of few credits, unless buffers for the others are still
// waited for: until then each that was taken is to be given back soon.
func (c *Conn) allGiven() {
	if c.rx.promoted && c.rx.waiting == 0 {
		c.staged.Store(false)
	}
}

// outstanding is how many receive buffers the peer may think it can use:
// those that we have, but for those that it has filled and not got back. With
// c.mu.
func (c *Conn) outstanding() int {
	return c.e.cfg.Credits - int(c.used.Load())
}

// byeDue reports whether goodbye is to be said: all has been sent, fetched and
// acknowledged. With c.mu.
func (c *Conn) byeDue() bool {
	return c.closing && !c.sentBye && c.tx.posted == c.tx.built && c.out.list == nil && c.rndv.empty() && len(c.keys.invs) <= 1
}
