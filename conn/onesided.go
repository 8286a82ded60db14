package conn

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/argonaut-rdma/argonaut/buffer"
	"github.com/argonaut-rdma/argonaut/verbs"
)

// maxOpBytes is the most that one work request moves, where the device allows
// more: a bound on what is lost when a connection is cut, not a tuning knob.
const maxOpBytes = 64 << 20

// remoteRange is a piece of the peer's memory.
type remoteRange struct {
	addr, n uint64
	rkey    uint32
}

// op is a one-sided transfer: a Read or Write of the user, or the READ of a
// rendezvous.
type op struct {
	index      uint32
	read       bool
	rendezvous bool
	seq, entry uint64        // number of the rendezvous, and of its entry
	begun      time.Time     // of the rendezvous
	list       *buffer.List  // local side: with posted references, and for a user's op a list of its own
	remote     []remoteRange // peer's side
	progress                 // of posting
	posted     int           // requests on the QP
	over       chan struct{} // capacity 1: a user's op has completed
	abandoned  bool          // nobody waits
	once       bool          // the peer's key ends with it
	next       *op           // free, or waiting for the queue
}

// progress is how far the requests of an op have been posted.
type progress struct {
	seg, off int    // next local piece
	rseg     int    // next remote piece
	roff     uint64 // in it
	left     int64  // bytes to post
}

// opTable is the one-sided transfers of a connection.
type opTable struct {
	all        []*op // by index
	free       *op
	head, tail *op // with requests still to be posted, in order
	posted     int // requests on the QP
	failed     int // that have come back without success
	sges       []verbs.SGE
}

func (t *opTable) get() *op {
	o := t.free
	if o == nil {
		o = &op{index: uint32(len(t.all)), over: make(chan struct{}, 1)}
		t.all = append(t.all, o)
		return o
	}
	t.free = o.next
	o.next = nil
	return o
}

func (t *opTable) put(o *op) {
	*o = op{index: o.index, over: o.over, remote: o.remote[:0], next: t.free}
	t.free = o
}

// startOp queues o and posts what fits, once the connection is open. With c.mu.
func (c *Conn) startOp(o *op) {
	o.list.RetainPosted()
	if c.ops.tail != nil {
		c.ops.tail.next = o
	} else {
		c.ops.head = o
	}
	c.ops.tail = o
	c.pumpOps()
}

// pumpOps posts one-sided requests as the queue has room for them. With c.mu.
func (c *Conn) pumpOps() {
	t := &c.ops
	for c.open && t.head != nil && t.posted < c.e.cfg.OpDepth && c.Err() == nil {
		o := t.head
		before := o.progress
		wr := c.nextRequest(o)
		n, err := c.post(wr)
		if n == 0 {
			// It stays queued as it was, and is given back when the connection is.
			o.progress = before
			c.postFailed(err)
			return
		}
		o.posted++
		t.posted++
		if o.left == 0 {
			t.head = o.next
			if t.head == nil {
				t.tail = nil
			}
			o.next = nil
		}
	}
}

// nextRequest makes the next work request of o: as many local pieces as one
// request takes, of one remote piece.
func (c *Conn) nextRequest(o *op) []verbs.SendWR {
	t := &c.ops
	r := &o.remote[o.rseg]
	wr := verbs.SendWR{
		WRID: wrOp | uint64(o.index), Opcode: verbs.OpWrite, Flags: verbs.SendSignaled,
		RemoteAddr: r.addr + o.roff, RKey: r.rkey,
	}
	most := c.maxSGE
	if o.read {
		wr.Opcode = verbs.OpRead
		most = min(most, c.e.readSGE)
	}
	t.sges = t.sges[:0]
	room := min(r.n-o.roff, c.e.maxOp)
	for room > 0 && o.left > 0 && len(t.sges) < most {
		b := o.list.At(o.seg)
		n := min(uint64(b.Len()-o.off), room, uint64(o.left))
		t.sges = append(t.sges, b.Slice(o.off, o.off+int(n)).SGE(c.e.pd))
		if o.off += int(n); o.off == b.Len() {
			o.seg++
			o.off = 0
		}
		o.roff += n
		o.left -= int64(n)
		room -= n
	}
	if o.roff == r.n {
		o.rseg++
		o.roff = 0
	}
	wr.SGEs = t.sges
	c.tx.wrs[0] = wr
	return c.tx.wrs[:1]
}

// opCompleted: one request of op i is over. It runs on the poller.
func (c *Conn) opCompleted(i uint32) {
	c.moved.Add(1)
	c.mu.Lock()
	o := c.ops.all[i]
	c.ops.posted--
	o.posted--
	if o.left > 0 || o.posted > 0 {
		c.mu.Unlock()
		return
	}
	o.list.ReleasePosted()
	if o.rendezvous {
		seq, n := o.seq, o.entry
		c.e.lat.fetch.Observe(time.Since(o.begun))
		c.ops.put(o)
		c.mu.Unlock()
		c.rndvFetched(seq, n)
		return
	}
	o.list.Release()
	o.list = nil
	if o.once {
		c.keys.invs = append(c.keys.invs, o.remote[0].rkey) // settle sends it
	}
	if o.abandoned {
		c.ops.put(o)
	} else {
		o.over <- struct{}{}
	}
	c.mu.Unlock()
}

// opFailed: one request of op i has come back without success. The QP is going
// down; the payload is given back when it is gone.
func (c *Conn) opFailed(i uint32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ops.posted--
	c.ops.failed++
	c.ops.all[i].posted--
}

// releaseOps gives back the local side of everything: the device has forgotten
// the QP. With c.mu.
func (c *Conn) releaseOps() {
	for _, o := range c.ops.all {
		if o.list == nil {
			continue
		}
		o.list.ReleasePosted()
		if !o.rendezvous { // else it is an entry's
			o.list.Release()
		}
		o.list = nil
	}
	c.ops.head, c.ops.tail = nil, nil
}

// Read fills dst, which it borrows, from the peer's memory granted by src, from
// offset off on. It blocks until all bytes are there, or until ctx ends: then
// the transfer goes on and may still write to dst's buffers, which stay
// referenced until it is over. Errors: ErrStaleGrant, ErrInvalid (out of the
// grant's range, or not a read grant), ctx's error, or why the connection ended:
// a grant that the peer has revoked ends the connection.
func (c *Conn) Read(ctx context.Context, dst *buffer.List, src Grant, off uint64) error {
	if src.Write {
		return fmt.Errorf("%w: the grant is for writing", verbs.ErrInvalid)
	}
	if c.e.caps.ReadSinkNeedsRemoteWrite && c.ours(dst, c.e.sinkRights()) != nil {
		return fmt.Errorf("%w: %s reads only into remotely writable memory: give it some of Config.Exposed", ErrNotSupported, c.e.caps.Name)
	}
	return c.transfer(ctx, true, dst, src, off)
}

// Write writes src, which it borrows, to the peer's memory granted by dst, from
// offset off on. It blocks until the transport has taken all bytes, which is
// not yet that they are placed; what is sent on this Conn afterwards arrives
// after them. When ctx ends first the transfer goes on, and src's buffers stay
// referenced until it is over. Errors as Read.
func (c *Conn) Write(ctx context.Context, dst Grant, off uint64, src *buffer.List) error {
	if !dst.Write {
		return fmt.Errorf("%w: the grant is for reading", verbs.ErrInvalid)
	}
	return c.transfer(ctx, false, src, dst, off)
}

// refused marks the end of a connection with a transfer under way as the peer's
// refusal of it, if it is the peer's device that has ended it.
func refused(err error) error {
	var f *FaultError
	if errors.As(err, &f) && f.Kind == FaultPeer && !errors.Is(err, ErrProtocol) && !errors.Is(err, ErrViolation) {
		return fmt.Errorf("%w: %w", ErrAccess, err)
	}
	return err
}

func (c *Conn) transfer(ctx context.Context, read bool, l *buffer.List, g Grant, off uint64) error {
	n := uint64(l.Len())
	switch {
	case g.Epoch != c.epoch:
		return ErrStaleGrant
	case off > g.Len || n > g.Len-off:
		return fmt.Errorf("%w: bytes %d to %d of a grant of %d", verbs.ErrInvalid, off, off+n, g.Len)
	case n == 0:
		return c.Err()
	}
	need := verbs.Access(0)
	if read {
		need = c.e.sinkRights()
	}
	if err := c.ours(l, need); err != nil {
		return err
	}
	c.mu.Lock()
	if err := c.Err(); err != nil {
		c.mu.Unlock()
		return err
	}
	if g.Once && (c.qp == nil || !c.qp.Features().SendInv) {
		c.mu.Unlock()
		return fmt.Errorf("%w: a grant for one transfer, and no send with invalidate to end it with", ErrNotSupported)
	}
	o := c.ops.get()
	o.read, o.list, o.left = read, l.Share(), l.Len()
	o.once = g.Once
	o.remote = append(o.remote, remoteRange{g.Addr + off, n, g.RKey})
	c.startOp(o)
	c.mu.Unlock()
	if read {
		c.stats.oneSidedReads.Add(1)
	} else {
		c.stats.oneSidedWrites.Add(1)
	}

	var err error
	select {
	case <-o.over:
	case <-ctx.Done():
		err = ctx.Err()
	case <-c.life.Done():
		err = refused(c.Err())
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil {
		select {
		case <-o.over: // meanwhile: whether it succeeded is not known here
		default:
			o.abandoned = true
			return err
		}
	}
	c.ops.put(o)
	return err
}
