package verbstest

import (
	"bytes"
	"strings"

	"github.com/stretchr/testify/require"

	"github.com/argonaut-rdma/argonaut/verbs"
	"github.com/argonaut-rdma/argonaut/verbs/driver"
)

// grantKind is a way to let one peer at one range of a region.
type grantKind struct {
	name     string
	has      func(c verbs.Caps) (bool, string)
	confines func(c verbs.Caps) (bool, string)
	make     func(x *end, m *memory, off, n int, acc verbs.Access) *grant
}

// grant is a window or scoped key.
type grant struct {
	rkey uint32
	end  func() error
	busy verbs.Kind // what the region and the QP name while the grant lives
}

const accBindable = driver.AccessLocalWrite | driver.AccessMWBind

var grantKinds = []grantKind{
	{
		name:     "Window",
		has:      func(c verbs.Caps) (bool, string) { return c.MW2, "the device has no memory windows" },
		confines: func(c verbs.Caps) (bool, string) { return c.MWConfines, "windows of the device do not confine" },
		make: func(x *end, m *memory, off, n int, acc verbs.Access) *grant {
			x.Helper()
			w, err := x.pd.AllocMW()
			require.NoError(x, err)
			x.later(phaseWindow, w.Close)
			require.NoError(x, x.qp.BindMW(w, m.mr, uint64(off), uint64(n), acc, 4711))
			x.sq.good(4711, driver.OpBindMW)
			require.True(x, w.Bound())
			return &grant{rkey: w.RKey(), end: w.Close, busy: verbs.KindMW}
		},
	},
	{
		name:     "ScopedKey",
		has:      func(c verbs.Caps) (bool, string) { return c.ScopedKeys, "the device has no scoped keys" },
		confines: func(verbs.Caps) (bool, string) { return true, "" },
		make: func(x *end, m *memory, off, n int, acc verbs.Access) *grant {
			x.Helper()
			k, err := m.mr.Scope(x.qp, uint64(off), uint64(n), acc)
			require.NoError(x, err)
			x.later(phaseWindow, k.Deregister)
			return &grant{rkey: k.RKey(), end: k.Deregister, busy: verbs.KindScopedMR}
		},
	},
}

var windowTests = func() (tests []subtest) {
	for _, k := range grantKinds {
		for _, tt := range []struct {
			name string
			run  func(e *env, k grantKind)
		}{
			{"Inside", grantInside}, {"HoldsRegionAndQP", grantHolds}, {"EndUnderWrites", grantEndUnderWrites},
			{"EndUnderReads", grantEndUnderReads}, {"OfOtherQP", grantOfOtherQP}, {"InvalidatedByPeer", grantInvalidated},
			{"InvalidatedWithPayload", grantInvalidatedWithPayload},
			{"ManyTimes", grantManyTimes}, {"Refusals", grantRefusals},
		} {
			tests = append(tests, subtest{k.name + tt.name, func(e *env) {
				e.need(k.has(e.caps()))
				if strings.HasPrefix(tt.name, "EndUnder") {
					e.need(k.confines(e.caps()))
				}
				tt.run(e, k)
			}})
		}
		for _, v := range grantViolations {
			tests = append(tests, subtest{k.name + v.name, func(e *env) {
				e.need(k.has(e.caps()))
				e.need(k.confines(e.caps()))
				grantViolated(e, k, v)
			}})
		}
	}
	return append(tests, subtest{"WindowRebound", windowRebound}, subtest{"WindowInvalidatedLocally", windowInvalidated})
}()

// The grant of these tests is [grantOff, grantOff+grantLen) of grantSize.
const grantOff, grantLen, grantSize = 1000, 5000, 20000

func (k grantKind) on(x *end, acc verbs.Access) (*memory, *grant) {
	x.Helper()
	m := x.mem(grantSize, accBindable)
	guardFill(m.b)
	return m, k.make(x, m, grantOff, grantLen, acc)
}

func (g *grant) at(m *memory, wr verbs.SendWR, off int) verbs.SendWR {
	wr.RemoteAddr, wr.RKey = m.addr(off), g.rkey
	return wr
}

// grantInside writes and reads all of the range and its ends.
func grantInside(e *env, k grantKind) {
	p := e.pair(pairOpts{})
	m, g := k.on(p.b, driver.AccessRemoteWrite|driver.AccessRemoteRead)
	src, sink := p.a.mem(grantLen, 0), p.a.sink(grantLen)
	for i, r := range [][2]int{{0, grantLen}, {0, 1}, {grantLen - 1, 1}, {7, 1000}, {grantLen, 0}} {
		off, n := r[0], r[1]
		fill(src.b[:n], uint64(i))
		clear(sink.b)
		p.a.post(g.at(m, signaled(1, driver.OpWrite, src.sge(0, n)), grantOff+off))
		p.a.sq.good(1, driver.OpWrite)
		p.a.post(g.at(m, signaled(2, driver.OpRead, sink.sge(0, n)), grantOff+off))
		p.a.sq.good(2, driver.OpRead)
		require.NoError(e, isPattern(sink.b[:n], uint64(i)))
		require.NoError(e, isPattern(m.b[grantOff+off:][:n], uint64(i)))
	}
	require.NoError(e, untouched(m.b[:grantOff]))
	require.NoError(e, untouched(m.b[grantOff+grantLen:]))
	require.NoError(e, g.end())
	require.NoError(e, g.end(), "once more")
	p.a.fence(p.b)
}

var grantViolations = []struct {
	name string
	op   verbs.Opcode
	acc  verbs.Access
	off  int
	n    int
}{
	{"BeforeStart", driver.OpWrite, driver.AccessRemoteWrite, grantOff - 100, 100},
	{"AcrossStart", driver.OpWrite, driver.AccessRemoteWrite, grantOff - 1, 100},
	{"AcrossEnd", driver.OpWrite, driver.AccessRemoteWrite, grantOff + grantLen - 99, 100},
	{"PastEnd", driver.OpWrite, driver.AccessRemoteWrite, grantOff + grantLen, 1},
	{"ReadAcrossEnd", driver.OpRead, driver.AccessRemoteRead, grantOff + grantLen - 99, 100},
	{"ReadPastEnd", driver.OpRead, driver.AccessRemoteRead, grantOff + grantLen + 10, 100},
	{"WriteWithoutRight", driver.OpWrite, driver.AccessRemoteRead, grantOff, 100},
	{"ReadWithoutRight", driver.OpRead, driver.AccessRemoteWrite, grantOff, 100},
}

func grantViolated(e *env, k grantKind, v struct {
	name string
	op   verbs.Opcode
	acc  verbs.Access
	off  int
	n    int
}) {
	p := e.pair(pairOpts{})
	m, g := k.on(p.b, v.acc)
	local := p.a.sink(v.n)
	guardFill(local.b)
	wr := g.at(m, signaled(1, v.op, local.sge(0, v.n)), v.off)
	p.violated(&target{env: e, b: p.b, good: m, release: g.end}, wr, driver.StatusRemAccessErr, true)
	require.NoError(e, untouched(local.b))
	require.NoError(e, untouched(m.b))
}

// grantHolds checks that the region and the QP are not closed under a grant.
func grantHolds(e *env, k grantKind) {
	p := e.pair(pairOpts{})
	m, g := k.on(p.b, driver.AccessRemoteWrite)
	e.busy(m.mr.Deregister(), g.busy)
	e.busy(closeQP(p.b.qp), g.busy)
	src := p.a.mem(100, 0)
	p.a.post(g.at(m, signaled(1, driver.OpWrite, src.sge(0, 100)), grantOff))
	p.a.sq.good(1, driver.OpWrite)
	p.a.fence(p.b)
	require.NoError(e, g.end())
	require.NoError(e, m.mr.Deregister())
	require.NoError(e, closeQP(p.b.qp))
}

func grantEndUnderWrites(e *env, k grantKind) {
	const n = 256 << 10
	for round := range e.short(40) {
		p := e.pair(pairOpts{depth: 8})
		m := p.b.mem(n, accBindable)
		g := k.make(p.b, m, 0, n, driver.AccessRemoteWrite)
		s := p.a.streamTo(driver.OpWrite, m.addr(0), g.rkey, n)
		for m.peek(round*n/40) == 0 {
			e.yield()
		}
		require.NoError(e, g.end())
		snapshot := append([]byte(nil), m.b...)
		s.end(p)
		require.NoError(e, sameBytes(m.b, snapshot), "memory changed after the grant had ended")
	}
}

func grantEndUnderReads(e *env, k grantKind) {
	const n = 256 << 10
	for range e.short(40) {
		p := e.pair(pairOpts{depth: 8})
		m := p.b.mem(n, accBindable)
		for i := range m.b {
			m.b[i] = 1
		}
		g := k.make(p.b, m, 0, n, driver.AccessRemoteRead)
		s := p.a.streamTo(driver.OpRead, m.addr(0), g.rkey, n)
		for s.completed.Load() < 3 {
			e.yield()
		}
		require.NoError(e, g.end())
		for i := range m.b {
			m.b[i] = poison
		}
		s.end(p)
		require.Negative(e, bytes.IndexByte(s.mem.b, poison), "a byte was read after the grant had ended")
	}
}

// grantOfOtherQP uses a grant over a connection it was not made for.
func grantOfOtherQP(e *env, k grantKind) {
	p := e.pair(pairOpts{})
	m, g := k.on(p.b, driver.AccessRemoteWrite)
	q := pair{e.end("a", e.dialer(), pairOpts{}), p.b.sibling("b", pairOpts{with: func(x *end, c *verbs.QPConfig) {
		x.sq, x.rq = x.queue(x.dev, 16), x.queue(x.dev, 16)
		c.SendCQ, c.RecvCQ = x.sq.cq, x.rq.cq
	}})}
	q.connect(driver.ConnParam{})
	src := q.a.mem(100, 0) // zeros
	q.violated(&target{env: e, b: q.b, good: m}, g.at(m, signaled(1, driver.OpWrite, src.sge(0, 100)), grantOff), driver.StatusRemAccessErr, false)
	require.NoError(e, untouched(m.b))
	// The connection that it was made for is not concerned.
	p.a.post(g.at(m, signaled(1, driver.OpWrite, p.a.mem(100, 0).sge(0, 100)), grantOff))
	p.a.sq.good(1, driver.OpWrite)
	p.a.fence(p.b)
}

// grantInvalidated has the peer end the grant with its last message.
func grantInvalidated(e *env, k grantKind) {
	p := e.pair(pairOpts{})
	e.need(p.a.qp.Features().SendInv, "the connection has no send with invalidate")
	m, g := k.on(p.b, driver.AccessRemoteWrite)
	src := p.a.mem(100, 0)
	guardFill(src.b)
	p.b.postRecv(verbs.RecvWR{WRID: 3})
	inv := signaled(2, driver.OpSendWithInv)
	inv.InvalidateRKey = g.rkey
	p.a.post(g.at(m, signaled(1, driver.OpWrite, src.sge(0, 100)), grantOff), inv)
	p.a.sq.good(1, driver.OpWrite)
	p.a.sq.good(2, driver.OpSendWithInv)
	wc := p.b.rq.good(3, driver.OpRecv)
	require.True(e, wc.HasInv)
	require.Equal(e, g.rkey, wc.InvalidatedRKey)
	clear(src.b)
	p.violated(&target{env: e, b: p.b, good: m, release: g.end}, g.at(m, signaled(1, driver.OpWrite, src.sge(0, 100)), grantOff), driver.StatusRemAccessErr, false)
	require.NoError(e, untouched(m.b))
}

// grantInvalidatedWithPayload has the message that ends a grant carry something, in
// every form that a SEND has. The solicited one, and no other, is announced to who
// has armed for those.
func grantInvalidatedWithPayload(e *env, k grantKind) {
	const n = 48
	o := pairOpts{}
	if e.caps().Inline {
		o.inline = min(e.caps().MaxInline, n)
	}
	p := e.pair(o)
	e.need(p.a.qp.Features().SendInv, "the connection has no send with invalidate")
	m, src, inbox := p.b.mem(4096, accBindable), p.a.mem(100_000, 0), p.b.mem(100_000, accLocal)
	many := min(p.a.caps.MaxSGE, 4)
	pieces := make([]verbs.SGE, many)
	for i := range pieces {
		pieces[i] = src.sge(i*1001, 1001)
	}
	for name, form := range map[string]struct {
		sges  []verbs.SGE
		n     int
		flags driver.SendFlags
		ok    bool
	}{
		"one SGE":            {[]verbs.SGE{src.sge(0, n)}, n, 0, true},
		"long":               {[]verbs.SGE{src.sge(0, 100_000)}, 100_000, 0, true},
		"many SGEs":          {pieces, many * 1001, 0, true},
		"inline":             {[]verbs.SGE{src.sge(0, o.inline)}, o.inline, driver.SendInline, o.inline > 0},
		"empty":              {nil, 0, 0, true},
		"solicited, one SGE": {[]verbs.SGE{src.sge(0, n)}, n, driver.SendSolicited, true},
	} {
		if !form.ok {
			continue
		}
		g := k.make(p.b, m, 0, 4096, driver.AccessRemoteWrite)
		fill(src.b, uint64(form.n))
		guardFill(inbox.b)
		p.b.postRecv(verbs.RecvWR{WRID: 3, SGEs: []verbs.SGE{inbox.sge(0, 100_000)}})
		inv := signaled(2, driver.OpSendWithInv, form.sges...)
		inv.Flags |= form.flags
		inv.InvalidateRKey = g.rkey
		if e.caps().Solicited {
			require.NoError(e, p.b.rq.cq.ReqNotify(true))
		}
		p.a.post(inv)
		if e.caps().Solicited && form.flags&driver.SendSolicited != 0 {
			cq, err := p.b.rq.ch.Wait(e.ctx)
			require.NoError(e, err, name)
			require.Equal(e, p.b.rq.cq, cq, name)
		}
		p.a.sq.spun(2, driver.OpSendWithInv)
		wc := p.b.rq.spun(3, driver.OpRecv)
		p.b.rq.quiet()
		require.True(e, wc.HasInv, name)
		require.Equal(e, g.rkey, wc.InvalidatedRKey, name)
		require.EqualValues(e, form.n, wc.ByteLen, name)
		require.NoError(e, isPattern(inbox.b[:form.n], uint64(form.n)), name)
		require.NoError(e, untouched(inbox.b[form.n:]), name)
		require.NoError(e, g.end(), name)
	}
}

// grantManyTimes grants, lets the peer write, and revokes, again and again: a
// key that has gone is not used for the next one.
func grantManyTimes(e *env, k grantKind) {
	p := e.pair(pairOpts{})
	m := p.b.mem(4096, accBindable)
	src := p.a.mem(4096, 0)
	last := uint32(0)
	for i := range uint64(e.short(2000)) {
		g := k.make(p.b, m, 0, 4096, driver.AccessRemoteWrite)
		require.NotEqual(e, last, g.rkey)
		require.NotEqual(e, m.mr.LKey(), g.rkey)
		last = g.rkey
		if i%16 == 0 {
			fill(src.b, i)
			p.a.post(g.at(m, signaled(1, driver.OpWrite, src.sge(0, 4096)), 0))
			p.a.sq.good(1, driver.OpWrite)
			p.a.fence(p.b)
			require.NoError(e, isPattern(m.b, i))
		}
		require.NoError(e, g.end())
	}
}

func grantRefusals(e *env, k grantKind) {
	p := e.pair(pairOpts{})
	m := p.b.mem(100, accBindable)
	other := e.reg(e.allocPD(p.b.dev), 100, accBindable)
	try := func(m *memory, off, n uint64, acc verbs.Access) error {
		if k.name == "ScopedKey" {
			_, err := m.mr.Scope(p.b.qp, off, n, acc)
			return err
		}
		w, err := p.b.pd.AllocMW()
		require.NoError(e, err)
		err = p.b.qp.BindMW(w, m.mr, off, n, acc, 1)
		require.NoError(e, w.Close())
		return err
	}
	require.ErrorIs(e, try(m, 0, 101, driver.AccessRemoteRead), verbs.ErrInvalid, "past the end")
	require.ErrorIs(e, try(m, 100, 1, driver.AccessRemoteRead), verbs.ErrInvalid, "behind the end")
	require.ErrorIs(e, try(m, ^uint64(0), 2, driver.AccessRemoteRead), verbs.ErrInvalid, "overflow")
	require.ErrorIs(e, try(other, 0, 1, driver.AccessRemoteRead), verbs.ErrInvalid, "another PD")
	require.ErrorIs(e, try(p.b.mem(100, driver.AccessMWBind), 0, 1, driver.AccessRemoteWrite), verbs.ErrInvalid, "no local write")
	require.Zero(e, p.b.dev.Stats().ScopedMRs+p.b.dev.Stats().MWs)
	p.a.fence(p.b)
}

// windowRebound binds a window again: the old key ends with that.
func windowRebound(e *env) {
	k := grantKinds[0]
	e.need(k.has(e.caps()))
	p := e.pair(pairOpts{})
	m := p.b.mem(grantSize, accBindable)
	guardFill(m.b)
	w, err := p.b.pd.AllocMW()
	require.NoError(e, err)
	e.later(phaseWindow, w.Close)
	require.NoError(e, p.b.qp.BindMW(w, m.mr, 0, 100, driver.AccessRemoteWrite, 1))
	p.b.sq.good(1, driver.OpBindMW)
	old := w.RKey()
	p.b.invalidate(w, old)
	require.NoError(e, p.b.qp.BindMW(w, m.mr, 200, 100, driver.AccessRemoteWrite, 2))
	p.b.sq.good(2, driver.OpBindMW)
	require.NotEqual(e, old, w.RKey())
	src := p.a.mem(100, 0)
	guardFill(src.b)
	now := &grant{rkey: w.RKey(), end: w.Close}
	p.a.post(now.at(m, signaled(1, driver.OpWrite, src.sge(0, 100)), 200))
	p.a.sq.good(1, driver.OpWrite)
	p.violated(&target{env: e, b: p.b, good: m, release: w.Close}, (&grant{rkey: old}).at(m, signaled(1, driver.OpWrite, src.sge(0, 100)), 0), driver.StatusRemAccessErr, false)
	require.NoError(e, untouched(m.b))
}

// invalidate posts the local invalidation of a window's key.
func (x *end) invalidate(w *verbs.MW, rkey uint32) {
	x.Helper()
	wr := signaled(4712, driver.OpLocalInvalidate)
	wr.InvalidateRKey = rkey
	x.post(wr)
	x.sq.good(4712, driver.OpLocalInvalidate)
	require.False(x, w.Bound())
}

func windowInvalidated(e *env) {
	k := grantKinds[0]
	e.need(k.has(e.caps()))
	p := e.pair(pairOpts{})
	m := p.b.mem(grantSize, accBindable)
	guardFill(m.b)
	w, err := p.b.pd.AllocMW()
	require.NoError(e, err)
	e.later(phaseWindow, w.Close)
	require.NoError(e, p.b.qp.BindMW(w, m.mr, 0, 100, driver.AccessRemoteWrite, 1))
	p.b.sq.good(1, driver.OpBindMW)
	e.busy(m.mr.Deregister(), verbs.KindMW)
	rkey := w.RKey()
	p.b.invalidate(w, rkey)
	src := p.a.mem(100, 0)
	p.violated(&target{env: e, b: p.b, good: m}, (&grant{rkey: rkey}).at(m, signaled(1, driver.OpWrite, src.sge(0, 100)), 0), driver.StatusRemAccessErr, false)
	require.NoError(e, untouched(m.b))
	require.NoError(e, m.mr.Deregister())
}
