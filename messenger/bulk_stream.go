package messenger

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"maps"
	"sync"

	"github.com/argonaut-rdma/argonaut/buffer"
)

const (
	// pullChunk is how much is asked for in one frame, bytes.
	pullChunk = 4 << 20
	// rdmaChunk is how much is asked for, or pushed, in one frame on RDMA, where
	// the poller copies it to where it belongs, bytes.
	rdmaChunk = 256 << 10
	// maxPulls bounds the pulls of a peer that are being answered at a time.
	maxPulls = 256
	// maxAsked bounds ours that have not been answered: the peer counts an answer
	// off only when it has been sent, which may be behind its arrival.
	maxAsked = maxPulls / 2
)

// The first byte of the front of a pulled, or pushed, frame.
const (
	pulledOK       = 0
	pulledStale    = 1
	pulledTooLarge = 2
)

// streamBulk is one-sided access as frames, on a stream, and on RDMA in secure
// mode, where READ and WRITE would show the bytes, and for the grants of an adapter
// that can not confine its keys: a grant is an entry in a table of
// the link, a pull is a question and an answer, a push is a message whose data
// is read straight into the granted buffers.
type streamBulk struct {
	l      *link
	epoch  uint32
	framed bool  // grants say so: on RDMA others do not
	chunk  int64 // bytes of one frame, at most
	most   int   // grants in one frame, at most

	mu      sync.Mutex
	ended   bool
	live    map[uint32]*streamGrant
	lastKey uint32
	serving int // pulls being answered
	pulls   map[uint64]*pull
	lastTID uint64
	asked   chan struct{} // has one for each of pulls, until the link ends; capacity maxAsked; made by the first
}

// streamGrant is a grant in the table. It is there, and holds a reference to its
// buffer, until it has been revoked and is not busy.
type streamGrant struct {
	g    Grant
	buf  buffer.RDMABuffer
	busy int             // transfers in progress
	gone bool            // revoked: no new transfers
	idle []chan struct{} // closed when gone and not busy
}

// pull waits for the answer to a pull, or a push. dst is a share of the caller's
// list, until a reader has taken it; nil for a push.
type pull struct {
	dst     *buffer.List
	placing bool  // a reader has dst, and has not placed everything yet
	n       int64 // bytes
	ch      chan error
}

func (b *streamBulk) init(l *link, framed bool, chunk int64) {
	b.l, b.epoch, b.framed, b.chunk, b.most = l, l.m.nextEpoch(), framed, chunk, MaxGrants
}

// limit has frames be no larger than both sides take: so many bytes of data, and
// of head. It is called before the link is open.
func (b *streamBulk) limit(data int64, head int) {
	b.chunk = max(1, min(b.chunk, data))
	b.most = max(1, min(b.most, (head-headOverhead-grantsHead)/GrantLen)) // one that is too large even so fails for it
}

// part is how many of the left bytes from off of gs on go in one frame.
func (b *streamBulk) part(gs []Grant, off uint64, left int64) int64 {
	left = min(left, b.chunk)
	var covered uint64 // by what is behind off
	most := b.most
	for _, g := range gs {
		if off >= g.Len {
			off -= g.Len
			continue
		}
		covered += g.Len - off
		off = 0
		if most--; most == 0 || covered >= uint64(left) {
			return int64(min(covered, uint64(left)))
		}
	}
	return left // out of range: said by slice
}

// fail ends a pull or push of ours, if it still waits.
func (b *streamBulk) fail(tid uint64, err error) {
	if p := b.take(tid); p != nil {
		p.finish(err)
	}
}

// post queues a question of ours that p waits for the answer of, nil for none. It
// takes m. What does not fit does not leave.
func (b *streamBulk) post(m *Message, p *pull) error {
	c := b.l.owner.Load()
	if err := c.fits(b.l, m); err != nil {
		if p != nil {
			b.fail(m.TID, err)
		}
		m.Release()
		return err
	}
	if err := c.queueOwn(b.l, m); err != nil {
		m.Release()
		return err
	}
	return nil
}

func (b *streamBulk) canGrant() bool { return b.l.own&featureGrants != 0 }

func (b *streamBulk) has(g Grant) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	e := b.live[g.RKey]
	return e != nil && e.g == g
}

func (b *streamBulk) grants() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.live)
}

func (b *streamBulk) grant(_ context.Context, l *buffer.List, write bool) ([]Grant, error) {
	if !b.canGrant() {
		return nil, fmt.Errorf("%w: the peer does not know pull and push", ErrNotSupported)
	}
	if l.Segments() > MaxGrants {
		return nil, fmt.Errorf("%w: %d buffers, at most %d in one list", ErrInvalid, l.Segments(), MaxGrants)
	}
	var random [4]byte
	rand.Read(random[:])
	base := uint64(binary.LittleEndian.Uint32(random[:])) << 16 // no meaning, and not 0
	gs := make([]Grant, 0, l.Segments())
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ended {
		return nil, b.reset()
	}
	if b.live == nil {
		b.live = map[uint32]*streamGrant{}
	}
	for i := range l.Segments() {
		buf := l.At(i).Retain()
		b.lastKey++
		g := Grant{Addr: base, Len: uint64(buf.Len()), RKey: b.lastKey, Epoch: b.epoch, Write: write, Framed: b.framed}
		base += g.Len
		b.live[g.RKey] = &streamGrant{g: g, buf: buf}
		gs = append(gs, g)
	}
	return gs, nil
}

func (b *streamBulk) revoke(ctx context.Context, gs []Grant) error {
	var waits []chan struct{}
	b.mu.Lock()
	for _, g := range gs {
		e := b.live[g.RKey]
		if e == nil || e.g != g {
			continue
		}
		if e.busy > 0 {
			ch := make(chan struct{})
			e.idle = append(e.idle, ch)
			waits = append(waits, ch)
		}
		e.gone = true
		b.settle(e)
	}
	b.mu.Unlock()
	for _, ch := range waits {
		select {
		case <-ch:
		case <-ctx.Done():
			return fmt.Errorf("a transfer through the grant goes on: %w", ctx.Err())
		}
	}
	return nil
}

// settle takes e out of the table, if it has been revoked and is not busy. b.mu is
// held.
func (b *streamBulk) settle(e *streamGrant) {
	if !e.gone || e.busy > 0 {
		return
	}
	delete(b.live, e.g.RKey)
	e.buf.Release()
	for _, ch := range e.idle {
		close(ch)
	}
	e.idle = nil
}

// end revokes all grants, of which those that are busy stay for revoke to wait for,
// and fails all pulls: one whose answer is being placed when that is over.
func (b *streamBulk) end() {
	b.mu.Lock()
	b.ended = true
	for _, e := range b.live {
		e.gone = true
		b.settle(e)
	}
	pulls := b.pulls
	b.pulls = nil
	maps.DeleteFunc(pulls, func(_ uint64, p *pull) bool { return p.placing })
	b.mu.Unlock()
	for _, p := range pulls {
		p.finish(b.reset())
	}
}

// finish ends a pull that has been taken out of the table.
func (p *pull) finish(err error) {
	if p.dst != nil {
		p.dst.Release()
		p.dst = nil
	}
	p.ch <- err
}

// resolve turns grants that the peer sent into a list over the granted buffers,
// and marks them busy until done is called. nil: one of them is not live, or
// out of its range.
func (b *streamBulk) resolve(gs []Grant, write bool) (list *buffer.List, done func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	used := make([]*streamGrant, 0, len(gs))
	for _, g := range gs {
		e := b.live[g.RKey]
		if e == nil || e.gone || g.Epoch != b.epoch || e.g.Write != write ||
			g.Addr < e.g.Addr || g.Len > e.g.Len || g.Addr-e.g.Addr > e.g.Len-g.Len {
			return nil, nil
		}
		used = append(used, e)
	}
	list = buffer.NewList()
	for i, e := range used {
		at := int(gs[i].Addr - e.g.Addr)
		list.Append(e.buf.Retain().Slice(at, at+int(gs[i].Len)))
		e.busy++
	}
	return list, func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		for _, e := range used {
			e.busy--
			b.settle(e)
		}
	}
}

// destination is the memory that the data of a push or a pulled frame goes to.
// nil: there is none, the data is to be dropped.
func (b *streamBulk) destination(kind uint16, tid uint64, front []byte, n int64) (*buffer.List, func()) {
	if kind == typePulled {
		b.mu.Lock()
		defer b.mu.Unlock()
		p := b.pulls[tid]
		if p == nil || p.dst == nil || p.n != n {
			return nil, nil
		}
		dst := p.dst
		p.dst, p.placing = nil, true
		return dst, func() { b.placed(p) }
	}
	gs, _, err := DecodeGrants(nil, front)
	if err != nil || GrantsLen(gs) != uint64(n) {
		return nil, nil
	}
	return b.resolve(gs, true)
}

// placed ends the placing of an answer, which is handled next if the link has not
// ended.
func (b *streamBulk) placed(p *pull) {
	b.mu.Lock()
	p.placing = false
	ended := b.ended
	b.mu.Unlock()
	if ended {
		p.finish(b.reset())
	}
}

// receiveOwn handles a message of our own, whose data has been placed. It takes
// m.
func (l *link) receiveOwn(m *Message) {
	b := l.t.frames()
	switch {
	case m.Type == typeCancel:
		l.owner.Load().cancelServing(m.TID)
		m.Release()
	case m.Type == typeRefused && l.own&featureRefusals != 0:
		ok := l.owner.Load().callRefused(m)
		m.Release()
		if !ok {
			l.fail("read", fmt.Errorf("%w: malformed refusal of a call", ErrProtocol))
		}
	case m.Type == typePull && b != nil:
		b.servePull(m)
	case m.Type == typePulled && b != nil:
		b.pulled(m)
	case m.Type == typePush && b != nil:
		b.servePush(m)
	case m.Type == typePushed && b != nil:
		b.pushed(m)
	default:
		t := m.Type
		m.Release()
		l.fail("read", fmt.Errorf("%w: message of reserved type %#x", ErrProtocol, t))
	}
}

// servePull answers a pull with the granted bytes, which are not copied.
func (b *streamBulk) servePull(m *Message) {
	gs, _, err := DecodeGrants(nil, m.Front)
	tid := m.TID
	m.Release()
	if err != nil || GrantsLen(gs) > pullChunk {
		b.l.fail("read", fmt.Errorf("%w: pull of %d bytes: %w", ErrProtocol, GrantsLen(gs), err))
		return
	}
	if !b.serve() {
		return
	}
	r := NewMessage(typePulled)
	r.TID = tid
	list, done := b.resolve(gs, false)
	r.done = func() {
		if done != nil {
			done()
		}
		b.served()
	}
	switch {
	case list == nil:
		b.l.m.n.badGrants.Add(1)
		r.Front = append(r.Front, pulledStale)
	case b.l.t.fits(headOverhead+1, list.Len()) != nil: // the peer has asked for more than it takes
		list.Release()
		r.Front = append(r.Front, pulledTooLarge)
	default:
		r.Front = append(r.Front, pulledOK)
		r.Data = list
	}
	if b.l.owner.Load().queueOwn(b.l, r) != nil {
		r.Release()
	}
}

// serve counts an answer that is being made; a peer that asks for too many at a
// time is at fault.
func (b *streamBulk) serve() bool {
	b.mu.Lock()
	ok := b.serving < maxPulls
	if ok {
		b.serving++
	}
	b.mu.Unlock()
	if !ok {
		b.l.fail("read", fmt.Errorf("%w: more than %d pulls and pushes at a time", ErrProtocol, maxPulls))
	}
	return ok
}

func (b *streamBulk) served() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.serving--
}

// servePush says whether the bytes of a push have been placed.
func (b *streamBulk) servePush(m *Message) {
	tid, placed := m.TID, m.placed
	m.Release()
	if !placed {
		b.l.m.n.badGrants.Add(1)
	}
	if b.l.own&featurePushed == 0 || !b.serve() {
		return
	}
	r := NewMessage(typePushed)
	r.TID = tid
	r.done = b.served
	status := byte(pulledOK)
	if !placed {
		status = pulledStale
	}
	r.Front = append(r.Front, status)
	if b.l.owner.Load().queueOwn(b.l, r) != nil {
		r.Release()
	}
}
