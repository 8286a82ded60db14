package verbstest

import (
	"encoding/binary"
	"fmt"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/argonaut-rdma/argonaut/verbs"
	"github.com/argonaut-rdma/argonaut/verbs/driver"
)

var optionalTests = []subtest{
	{"Inline", inline},
	{"SendWithImmediate", sendWithImm},
	{"WriteWithImmediate", writeWithImm},
	{"FetchAdd", fetchAdd},
	{"CompareSwap", compareSwap},
	{"AtomicsOfMany", atomicsOfMany},
	{"AtomicViolations", atomicViolations},
	{"InvalidateOrdinaryKey", invalidateOrdinary},
	{"NotOfferedIsRefused", notOffered},
}

// inline sends from memory that is overwritten as soon as the post returned.
func inline(e *env) {
	e.need(e.caps().Inline && e.caps().MaxInline > 0, "the device has no inline sends")
	most := e.caps().MaxInline
	p := e.pair(pairOpts{inline: most, depth: 32})
	info, err := p.a.qp.Query()
	require.NoError(e, err)
	require.GreaterOrEqual(e, info.MaxInline, most)
	src, dst, remote := p.a.mem(most+64, 0), p.b.mem(32*most, accLocal), p.b.mem(most, accWrite)
	for _, n := range []int{0, 1, most / 2, most} {
		for i := range uint64(8) {
			p.b.postRecv(verbs.RecvWR{WRID: i, SGEs: []verbs.SGE{dst.sge(int(i)*most, most)}})
		}
		for i := range uint64(8) {
			fill(src.b[:n], i)
			wr := signaled(i, driver.OpSend, src.sge(0, n/3), src.sge(n/3, n-n/3))
			if n == 0 {
				wr.SGEs = nil
			}
			wr.Flags |= driver.SendInline
			p.a.post(wr)
			clear(src.b)
			require.Zero(e, src.mr.InFlight(), "inline data is copied: it is not in use after the post")
		}
		for i := range uint64(8) {
			require.EqualValues(e, n, p.b.rq.good(i, driver.OpRecv).ByteLen)
			require.NoError(e, isPattern(dst.b[int(i)*most:][:n], i))
			p.a.sq.good(i, driver.OpSend)
		}
		fill(src.b[:n], 77)
		wr := remote.to(signaled(9, driver.OpWrite, src.sge(0, n)), 0)
		wr.Flags |= driver.SendInline
		p.a.post(wr)
		clear(src.b)
		p.a.sq.good(9, driver.OpWrite)
		p.a.fence(p.b)
		require.NoError(e, isPattern(remote.b[:n], 77))
	}
	wr := signaled(1, driver.OpSend, src.sge(0, info.MaxInline/2), src.sge(0, info.MaxInline-info.MaxInline/2+1))
	wr.Flags |= driver.SendInline
	if info.MaxInline+1 <= len(src.b) {
		_, err = p.a.qp.PostSend([]verbs.SendWR{wr})
		require.ErrorIs(e, err, verbs.ErrInvalid)
	}
	rd := remote.to(signaled(1, driver.OpRead, src.sge(0, 1)), 0)
	rd.Flags |= driver.SendInline
	_, err = p.a.qp.PostSend([]verbs.SendWR{rd})
	require.ErrorIs(e, err, verbs.ErrInvalid, "a READ has no inline data")
}

const noImm, noAtomics = "the connection has no immediate data", "the connection has no atomics"

func sendWithImm(e *env) {
	p := e.pair(pairOpts{})
	e.need(p.a.qp.Features().Imm, noImm)
	src, dst := p.a.mem(70_000, 0), p.b.mem(70_000, accLocal)
	for i, n := range []int{0, 1, 100, 70_000} {
		fill(src.b, uint64(n))
		imm := uint32(0x01020304 * (i + 1))
		p.b.postRecv(verbs.RecvWR{WRID: 1, SGEs: []verbs.SGE{dst.sge(0, 70_000)}})
		wr := signaled(2, driver.OpSendWithImm, src.sge(0, n))
		wr.Imm = imm
		p.a.post(wr)
		wc := p.b.rq.good(1, driver.OpRecv)
		require.True(e, wc.HasImm)
		require.Equal(e, imm, wc.Imm)
		require.EqualValues(e, n, wc.ByteLen)
		require.NoError(e, isPattern(dst.b[:n], uint64(n)))
		p.a.sq.good(2, driver.OpSendWithImm)
	}
	p.a.fence(p.b)
}

// writeWithImm consumes a receive without touching its memory.
func writeWithImm(e *env) {
	p := e.pair(pairOpts{})
	e.need(p.a.qp.Features().Imm, noImm)
	src, dst, inbox := p.a.mem(70_000, 0), p.b.mem(70_000, accWrite), p.b.mem(64, accLocal)
	guardFill(inbox.b)
	for i, n := range []int{0, 1, 100, 70_000} {
		fill(src.b, uint64(n))
		p.b.postRecv(verbs.RecvWR{WRID: 1, SGEs: []verbs.SGE{inbox.sge(0, 64)}})
		wr := dst.to(signaled(2, driver.OpWriteWithImm, src.sge(0, n)), 0)
		wr.Imm = uint32(i) + 7
		p.a.post(wr)
		wc := p.b.rq.good(1, driver.OpRecvWriteImm)
		require.True(e, wc.HasImm)
		require.EqualValues(e, i+7, wc.Imm)
		require.EqualValues(e, n, wc.ByteLen)
		require.NoError(e, isPattern(dst.b[:n], uint64(n)))
		p.a.sq.good(2, driver.OpWriteWithImm)
	}
	require.NoError(e, untouched(inbox.b))
}

const accAtomic = accRemote | driver.AccessRemoteAtomic

func fetchAdd(e *env) {
	p := e.pair(pairOpts{})
	e.need(p.a.qp.Features().Atomics, noAtomics)
	word, result := p.b.mem(64, accAtomic), p.a.mem(64, accLocal)
	expect := uint64(40)
	binary.NativeEndian.PutUint64(word.b[16:], expect)
	for i, add := range []uint64{2, 0, 1 << 63, ^uint64(0)} {
		wr := word.to(signaled(uint64(i), driver.OpFetchAdd, result.sge(8, 8)), 16)
		wr.CompareAdd = add
		p.a.post(wr)
		require.EqualValues(e, 8, p.a.sq.good(uint64(i), driver.OpFetchAdd).ByteLen)
		require.Equal(e, expect, binary.NativeEndian.Uint64(result.b[8:]))
		expect += add
		p.a.fence(p.b)
		require.Equal(e, expect, binary.NativeEndian.Uint64(word.b[16:]))
	}
	_, err := p.a.qp.PostSend([]verbs.SendWR{word.to(signaled(1, driver.OpFetchAdd, result.sge(0, 4)), 16)})
	require.ErrorIs(e, err, verbs.ErrInvalid, "four bytes")
	_, err = p.a.qp.PostSend([]verbs.SendWR{word.to(signaled(1, driver.OpFetchAdd, result.sge(0, 8)), 4)})
	require.ErrorIs(e, err, verbs.ErrInvalid, "not on a multiple of 8")
}

func compareSwap(e *env) {
	p := e.pair(pairOpts{})
	e.need(p.a.qp.Features().Atomics, noAtomics)
	word, result := p.b.mem(64, accAtomic), p.a.mem(64, accLocal)
	now := uint64(5)
	binary.NativeEndian.PutUint64(word.b, now)
	for i, tt := range []struct{ compare, swap uint64 }{{5, 6}, {5, 7}, {6, ^uint64(0)}, {^uint64(0), 0}} {
		wr := word.to(signaled(uint64(i), driver.OpCompareSwap, result.sge(0, 8)), 0)
		wr.CompareAdd, wr.Swap = tt.compare, tt.swap
		p.a.post(wr)
		p.a.sq.good(uint64(i), driver.OpCompareSwap)
		require.Equal(e, now, binary.NativeEndian.Uint64(result.b))
		if now == tt.compare {
			now = tt.swap
		}
		p.a.fence(p.b)
		require.Equal(e, now, binary.NativeEndian.Uint64(word.b))
	}
}

// atomicsOfMany has several connections count in one word.
func atomicsOfMany(e *env) {
	const n = 4
	per := e.short(500)
	p0 := e.pair(pairOpts{})
	e.need(p0.a.qp.Features().Atomics, noAtomics)
	pairs := []pair{p0}
	for range n - 1 {
		p := pair{e.end("a", e.dialer(), pairOpts{}), p0.b.sibling("b", pairOpts{with: func(x *end, c *verbs.QPConfig) {
			x.sq, x.rq = x.queue(x.dev, 16), x.queue(x.dev, 16)
			c.SendCQ, c.RecvCQ = x.sq.cq, x.rq.cq
		}})}
		p.connect(driver.ConnParam{})
		pairs = append(pairs, p)
	}
	word := p0.b.mem(8, accAtomic)
	var g errgroup.Group
	seen := make([]map[uint64]bool, n)
	for i, p := range pairs {
		result := p.a.mem(8, accLocal)
		seen[i] = map[uint64]bool{}
		g.Go(func() error {
			wr := word.to(signaled(1, driver.OpFetchAdd, result.sge(0, 8)), 0)
			wr.CompareAdd = 1
			for range per {
				if _, err := p.a.qp.PostSend([]verbs.SendWR{wr}); err != nil {
					return err
				}
				wc, err := p.a.sq.wait(e.ctx)
				if err != nil {
					return err
				}
				if err := good(wc, 1, driver.OpFetchAdd); err != nil {
					return err
				}
				seen[i][binary.NativeEndian.Uint64(result.b)] = true
			}
			return nil
		})
	}
	require.NoError(e, g.Wait())
	all := map[uint64]bool{}
	for _, s := range seen {
		for v := range s {
			require.False(e, all[v], "two atomics got the same value")
			all[v] = true
		}
	}
	require.Len(e, all, n*per)
}

func atomicViolations(e *env) {
	e.need(e.caps().Atomics, "the device has no atomics")
	for name, tt := range map[string]struct {
		aim    func(t *target) (uint32, uint64)
		status verbs.WCStatus
		event  bool
	}{
		"no right": {func(t *target) (uint32, uint64) { return t.good.mr.RKey(), t.good.addr(0) }, driver.StatusRemAccessErr, true},
		"past end": {func(t *target) (uint32, uint64) { m := t.b.mem(64, accAtomic); return m.mr.RKey(), m.addr(64) }, driver.StatusRemAccessErr, true},
	} {
		p, t := e.victims(pairOpts{})
		e.need(p.a.qp.Features().Atomics, noAtomics)
		rkey, addr := tt.aim(t)
		result := p.a.mem(8, accLocal)
		guardFill(result.b)
		wr := verbs.SendWR{WRID: 1, Opcode: driver.OpFetchAdd, Flags: driver.SendSignaled, SGEs: []verbs.SGE{result.sge(0, 8)}, RemoteAddr: addr, RKey: rkey, CompareAdd: 1}
		e.Log(name)
		p.violated(t, wr, tt.status, tt.event)
		require.NoError(e, untouched(result.b))
	}
}

// invalidateOrdinary invalidates the key of an ordinary region: a violation,
// and the region stays.
func invalidateOrdinary(e *env) {
	p, t := e.victims(pairOpts{})
	e.need(p.a.qp.Features().SendInv, "the connection has no send with invalidate")
	wr := signaled(1, driver.OpSendWithInv)
	wr.InvalidateRKey = t.good.mr.RKey()
	inbox := p.b.mem(8, accLocal)
	p.b.postRecv(verbs.RecvWR{WRID: 0, SGEs: []verbs.SGE{inbox.sge(0, 8)}})
	p.a.post(wr)
	require.NotEqual(e, driver.StatusSuccess, p.b.rq.next().Status)
	if p.a.caps.RemoteViolationOnWR {
		p.a.sq.next() // rxe acknowledges the message before it looks at the key
		require.NoError(e, closeQP(p.a.qp))
	}
	p.a.gone()
	p.b.gone()
	require.True(e, t.good.mr.Live())
	// The region serves other connections still.
	q := pair{e.end("a", e.dialer(), pairOpts{}), p.b.sibling("b", pairOpts{with: func(x *end, c *verbs.QPConfig) {
		x.sq, x.rq = x.queue(x.dev, 16), x.queue(x.dev, 16)
		c.SendCQ, c.RecvCQ = x.sq.cq, x.rq.cq
	}})}
	q.connect(driver.ConnParam{})
	src := q.a.mem(100, 0)
	q.a.post(t.good.to(signaled(5, driver.OpWrite, src.sge(0, 100)), 0))
	q.a.sq.good(5, driver.OpWrite)
	back := q.a.sink(100)
	q.a.post(t.good.to(signaled(6, driver.OpRead, back.sge(0, 100)), 0))
	q.a.sq.good(6, driver.OpRead)
}

// notOffered asks for what the connection lacks.
func notOffered(e *env) {
	p := e.pair(pairOpts{})
	f := p.a.qp.Features()
	m, remote := p.a.mem(8, accLocal), p.b.mem(8, accAtomic&^e.notAtomic())
	for _, tt := range []struct {
		op verbs.Opcode
		ok bool
	}{
		{driver.OpSendWithImm, f.Imm}, {driver.OpWriteWithImm, f.Imm}, {driver.OpFetchAdd, f.Atomics}, {driver.OpCompareSwap, f.Atomics},
		{driver.OpSendWithInv, f.SendInv},
	} {
		if tt.ok {
			continue
		}
		n, err := p.a.qp.PostSend([]verbs.SendWR{remote.to(signaled(1, tt.op, m.sge(0, 8)), 0)})
		require.ErrorIs(e, err, verbs.ErrNotSupported, fmt.Sprint(tt.op))
		require.Zero(e, n)
	}
	p.a.fence(p.b)
}

// notAtomic is the right that devices without atomics do not give.
func (e *env) notAtomic() verbs.Access {
	if e.caps().Atomics {
		return 0
	}
	return driver.AccessRemoteAtomic
}
