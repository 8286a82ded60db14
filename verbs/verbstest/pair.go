package verbstest

import (
	"context"
	"fmt"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/argonaut-rdma/argonaut/verbs"
	"github.com/argonaut-rdma/argonaut/verbs/driver"
)

// pairOpts says how the ends of a pair are made. Zero: 16 work requests each
// way, the largest number of SGEs the device has up to 8, no SRQ, no inline.
type pairOpts struct {
	depth  int
	sges   int
	inline int
	srq    int              // depth of an SRQ at each end; 0: none
	same   bool             // both ends on one device
	param  driver.ConnParam // of both ends
	before func(a, b *end)  // before the connection is made: receives go here
	with   func(x *end, c *verbs.QPConfig)
}

// end is one end of a connection.
type end struct {
	*env
	name   string
	dev    *verbs.Device
	caps   verbs.Caps
	pd     *verbs.PD
	sq, rq *queue
	srq    *verbs.SRQ
	qp     *verbs.QP
	events chan verbs.Event // of the QP and the SRQ; what does not fit is dropped
}

// pair is two connected ends: a dialed, b accepted.
type pair struct{ a, b *end }

// pair makes a connected pair.
func (e *env) pair(o pairOpts) pair {
	e.Helper()
	da := e.dialer()
	db := da
	if !o.same {
		db = e.acceptor()
	}
	p := pair{e.end("a", da, o), e.end("b", db, o)}
	if o.before != nil {
		o.before(p.a, p.b)
	}
	p.connect(o.param)
	return p
}

// end makes one end that is not yet connected.
func (e *env) end(name string, d *verbs.Device, o pairOpts) *end {
	e.Helper()
	x := &end{env: e, name: name, dev: d, caps: d.Caps(), events: make(chan verbs.Event, 64)}
	x.pd = e.allocPD(d)
	x.attach(o)
	return x
}

// sibling makes another end with the device, PD, queues and SRQ of x.
func (x *end) sibling(name string, o pairOpts) *end {
	x.Helper()
	y := *x
	y.name, y.events = name, make(chan verbs.Event, 64)
	y.qp = nil
	y.attach(o)
	return &y
}

// attach makes what x does not have yet: queues, SRQ, QP.
func (x *end) attach(o pairOpts) {
	x.Helper()
	depth := o.depth
	if depth == 0 {
		depth = 16
	}
	sges := o.sges
	if sges == 0 {
		sges = min(x.caps.MaxSGE, 8)
	}
	if x.sq == nil {
		x.sq = x.queue(x.dev, depth)
		x.rq = x.queue(x.dev, max(depth, o.srq))
	}
	onEvent := func(ev verbs.Event) {
		select {
		case x.events <- ev:
		default:
		}
	}
	if o.srq > 0 && x.srq == nil {
		var err error
		x.srq, err = x.pd.CreateSRQ(verbs.SRQConfig{MaxWR: o.srq, MaxSGE: min(sges, x.caps.MaxSRQSGE), OnEvent: onEvent})
		require.NoError(x, err)
		x.later(phaseSRQ, func() error { _, err := x.srq.Close(); return err })
	}
	c := verbs.QPConfig{
		SendCQ: x.sq.cq, RecvCQ: x.rq.cq, SRQ: x.srq, MaxSendWR: depth, MaxRecvWR: depth,
		MaxSendSGE: sges, MaxRecvSGE: sges, MaxInline: o.inline, OnEvent: onEvent,
	}
	if x.srq != nil {
		c.MaxRecvWR, c.MaxRecvSGE = 0, 0
	}
	if o.with != nil {
		o.with(x, &c)
	}
	qp, err := x.pd.CreateQP(c)
	require.NoError(x, err)
	x.qp = qp
	x.later(phaseQP, func() error { _, err := qp.Close(); return err })
}

// connect connects the ends and has the dialer say something: on iWARP the send
// queue of the acceptor stands still until then.
func (p pair) connect(param driver.ConnParam) {
	p.a.Helper()
	require.NoError(p.a, p.tryConnect(p.a.ctx, param))
	p.a.fence(p.b)
}

func (p pair) tryConnect(ctx context.Context, param driver.ConnParam) error {
	l, err := p.b.dev.Listen(ctx, p.b.cfg.ListenAddr)
	if err != nil {
		return err
	}
	addr := p.b.cfg.dialAddr(p.b.T, l.Addr())
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		r, err := l.Accept(ctx)
		if err != nil {
			return fmt.Errorf("accept: %w", err)
		}
		if err := r.Accept(ctx, p.b.qp, param); err != nil {
			return fmt.Errorf("accepting the request: %w", err)
		}
		return nil
	})
	g.Go(func() error {
		if _, err := p.a.qp.Connect(ctx, addr, param); err != nil {
			return fmt.Errorf("connect: %w", err)
		}
		return nil
	})
	err = g.Wait()
	if cerr := l.Close(); err == nil {
		err = cerr
	}
	return err
}

// mem registers n zero bytes in the PD of x.
func (x *end) mem(n int, acc verbs.Access) *memory {
	x.Helper()
	return x.reg(x.pd, n, acc)
}

// sink is memory that READs may land in.
func (x *end) sink(n int) *memory {
	x.Helper()
	return x.mem(n, sinkAccess(x.caps))
}

func (x *end) post(wrs ...verbs.SendWR) {
	x.Helper()
	n, err := x.qp.PostSend(wrs)
	require.NoError(x, err)
	require.Equal(x, len(wrs), n)
}

func (x *end) postRecv(wrs ...verbs.RecvWR) {
	x.Helper()
	post := x.qp.PostRecv
	if x.srq != nil {
		post = x.srq.PostRecv
	}
	n, err := post(wrs)
	require.NoError(x, err)
	require.Equal(x, len(wrs), n)
}

// event waits for an event of x of the given type; others are passed over.
func (x *end) event(t driver.EventType) verbs.Event {
	x.Helper()
	for {
		select {
		case ev := <-x.events:
			if ev.Type == t {
				return ev
			}
		case <-x.ctx.Done():
			x.Fatalf("no %v at %s", t, x.name)
		}
	}
}

// gone waits until the connection of x is gone.
func (x *end) gone() {
	x.Helper()
	select {
	case <-x.qp.Disconnected():
	case <-x.ctx.Done():
		x.Fatalf("the connection of %s is not gone", x.name)
	}
}

// fence returns when everything that x has sent before has been placed and
// completed at peer: on every device a SEND comes after what was posted before
// it, and its receive completion after their placement. peer has no receive
// posted, x nothing that is not completed.
func (x *end) fence(peer *end) {
	x.Helper()
	peer.postRecv(verbs.RecvWR{WRID: fenceID})
	x.post(verbs.SendWR{WRID: fenceID, Opcode: driver.OpSend, Flags: driver.SendSignaled})
	peer.rq.spun(fenceID, driver.OpRecv)
	x.sq.spun(fenceID, driver.OpSend)
}

const fenceID = 0xfe9ce

func signaled(wrid uint64, op verbs.Opcode, sges ...verbs.SGE) verbs.SendWR {
	return verbs.SendWR{WRID: wrid, Opcode: op, Flags: driver.SendSignaled, SGEs: sges}
}

func (m *memory) to(wr verbs.SendWR, off int) verbs.SendWR {
	wr.RemoteAddr, wr.RKey = m.addr(off), m.mr.RKey()
	return wr
}
