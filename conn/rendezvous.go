package conn

import (
	"errors"
	"time"

	"github.com/argonaut-rdma/argonaut/buffer"
	"github.com/argonaut-rdma/argonaut/conn/internal/wire"
	"github.com/argonaut-rdma/argonaut/verbs"
)

// rndvSend is a payload that the peer has to fetch.
type rndvSend struct {
	payload *buffer.List
	grants  []buffer.Grant
	sent    func()    // Message.Sent
	begun   time.Time // when it was announced
}

// rndvRing is the payloads that the peer has to fetch, oldest first.
type rndvRing struct {
	sends      []rndvSend // as many as the peer takes
	done, sent uint64     // numbers of the oldest, and of the next
	progress   time.Time  // when the peer last made any
	parked     bool       // the peer has said that it waits
	timer      *time.Timer
	running    bool // timer is
}

func (r *rndvRing) full() bool            { return r.sent-r.done == uint64(len(r.sends)) }
func (r *rndvRing) empty() bool           { return r.sent == r.done }
func (r *rndvRing) count() int            { return int(r.sent - r.done) }
func (r *rndvRing) at(n uint64) *rndvSend { return &r.sends[n%uint64(len(r.sends))] }

// putRTS adds a message whose payload the peer will fetch. With c.mu.
func (c *Conn) putRTS(s *sendSlot, m *Message, payload int64) error {
	r := &c.rndv
	d := r.at(r.sent)
	n := m.Payload.Segments()
	d.room(n)
	for i := range n {
		if err := c.key(&d.grants[i], m.Payload.At(i), verbs.AccessRemoteRead); err != nil {
			if live := revokeAll(d.grants[:i]); live != nil {
				c.fail(c.fault(FaultLocal, live)) // withdraw tries again
				err = errors.Join(err, live)
			}
			return err
		}
	}
	d.payload, d.sent = m.Payload, m.Sent
	wire.Record{Type: wire.RndvRTS, Head: uint32(len(m.Head)), Segments: uint16(n), Payload: uint64(payload)}.Put(s.grow(wire.RecordLen))
	copy(s.grow(len(m.Head)), m.Head)
	for i := range n {
		g := &d.grants[i]
		wire.Segment{Addr: g.Addr(), Len: uint32(g.Len()), RKey: g.RKey()}.Put(s.grow(wire.SegmentLen))
	}
	d.begun = time.Now()
	if r.empty() {
		r.progress = d.begun
	}
	r.sent++
	c.armRndv()
	return nil
}

// room makes sure that there are n grants.
func (d *rndvSend) room(n int) {
	for len(d.grants) < n {
		d.grants = append(d.grants, buffer.Grant{})
	}
}

// windows allocates the windows for the next rendezvous ahead, where grants are
// windows. false: the device has no more. With c.mu.
func (c *Conn) windows(n int) bool {
	if c.e.keys != buffer.KeyWindow {
		return true
	}
	d := c.rndv.at(c.rndv.sent)
	d.room(n)
	for i := range n {
		if d.grants[i].Window(c.e.pd) != nil {
			return false // withdraw gives up those that there are
		}
	}
	return true
}

// revokeAll revokes grants; those that it could not revoke stay live.
func revokeAll(gs []buffer.Grant) error {
	var errs []error
	for i := range gs {
		if err := gs[i].Revoke(); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// finish withdraws the keys and gives the payload back.
func (d *rndvSend) finish() error {
	if d.payload == nil {
		return nil
	}
	if err := revokeAll(d.grants[:d.payload.Segments()]); err != nil {
		return err // the keys hold references of their own
	}
	d.payload.Release()
	d.payload = nil
	if d.sent != nil {
		d.sent()
		d.sent = nil
	}
	return nil
}

// rndvDone: the peer has fetched n payloads since the connection was made.
func (c *Conn) rndvDone(n uint64) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	r := &c.rndv
	if n > r.sent {
		return c.protocol("DONE %d of %d", n, r.sent)
	}
	c.keys.heard = max(c.keys.heard, n) // a later DONE may have been handled first
	c.finishRndv()
	if !r.empty() {
		r.progress = time.Now()
	}
	return nil
}

// finishRndv gives back the payloads that the peer has fetched, but for those
// whose windows are not known to be bound yet. With c.mu.
func (c *Conn) finishRndv() {
	r := &c.rndv
	for ; r.done < c.keys.heard; r.done++ {
		err := r.at(r.done).finish()
		if errors.Is(err, verbs.ErrBusy) && c.keys.binds > 0 {
			return // bindCompleted comes here again
		}
		if err != nil {
			c.fail(c.fault(FaultLocal, err))
			return
		}
		c.e.lat.rendezvous.Observe(time.Since(r.at(r.done).begun))
		c.stats.rendezvousSent.Add(1)
	}
}

// peerParked: the peer waits with our rendezvous, or goes on.
func (c *Conn) peerParked(on bool) {
	if on == c.rx.parked {
		return
	}
	c.rx.parked = on
	c.mu.Lock()
	c.rndv.parked = on
	c.rndv.progress = time.Now()
	if !on && !c.rndv.empty() {
		c.armRndv()
	}
	c.mu.Unlock()
}

// armRndv makes sure that the timer runs. With c.mu.
func (c *Conn) armRndv() {
	r := &c.rndv
	d := c.e.cfg.RendezvousTimeout
	if d < 0 || r.running || r.parked {
		return
	}
	r.running = true
	if r.timer == nil {
		r.timer = time.AfterFunc(d, c.rndvTimeout)
		return
	}
	r.timer.Reset(d)
}

// rndvTimeout runs on a goroutine of the timer. It ends at once.
func (c *Conn) rndvTimeout() {
	c.mu.Lock()
	defer c.mu.Unlock()
	r := &c.rndv
	r.running = false
	if r.empty() || r.parked || c.Err() != nil {
		return // armed again when it matters
	}
	left := c.e.cfg.RendezvousTimeout - time.Since(r.progress)
	if left <= 0 {
		c.fail(c.fault(FaultPath, errRndvTimeout))
		return
	}
	r.running = true
	r.timer.Reset(left)
}

// canFetch reports whether the peer may send by rendezvous.
func (c *Conn) canFetch() bool {
	return c.e.features&c.peer.Features&wire.FeatureRendezvous != 0
}

// rendezvous is a message whose payload we fetch. false: no memory yet.
func (c *Conn) rendezvous(p *packet, head, segs []byte, payload uint64) (bool, error) {
	if !c.canFetch() {
		return false, c.protocol("RTS that was not agreed on")
	}
	if err := wire.CheckSegments(segs, payload); err != nil {
		return false, err
	}
	l := c.rx.list
	c.rx.list = nil
	if l == nil {
		var ok bool
		if l, ok = c.e.sinks.TryGetList(int64(payload), c.e.sinkOwner); !ok {
			c.e.stats.memoryWaits.Add(1)
			c.rx.gate = gateMemory
			c.e.lists.ask(request{c: c, kind: askList, n: int64(payload)})
			return false, nil
		}
	}
	p.refs++
	n := c.rx.entries.push(entry{pkt: p, head: head, payload: l})
	seq := c.rx.rts
	c.rx.rts++
	c.mu.Lock()
	defer c.mu.Unlock()
	// Told, not fetched: the peer counts those that it has not heard of.
	if c.rx.rts-c.told > uint64(c.e.cfg.Rendezvous) {
		return false, c.protocol("more rendezvous at a time than agreed on")
	}
	o := c.ops.get()
	o.read, o.rendezvous, o.seq, o.entry, o.begun = true, true, seq, n, time.Now()
	o.list, o.left = l, l.Len()
	for ; len(segs) > 0; segs = segs[wire.SegmentLen:] {
		s := wire.ParseSegment(segs)
		o.remote = append(o.remote, remoteRange{s.Addr, uint64(s.Len), s.RKey})
	}
	c.startOp(o)
	return true, nil
}

// rndvFetched: the payload of entry n, of the peer's rendezvous seq, is there.
// The peer is told how many are done, so an earlier one that is not holds later
// ones back.
func (c *Conn) rndvFetched(seq, n uint64) {
	ring := &c.rx.fetched
	ring[seq%maxRendezvous] = true
	c.mu.Lock()
	for ring[c.fetched%maxRendezvous] {
		ring[c.fetched%maxRendezvous] = false
		c.fetched++
	}
	c.mu.Unlock()
	c.stats.rendezvousReceived.Add(1)
	c.rx.entries.at(n).ready = true
	c.deliverReady()
	c.checkBye()
}
