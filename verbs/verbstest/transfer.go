package verbstest

import (
	"github.com/stretchr/testify/require"

	"github.com/argonaut-rdma/argonaut/verbs"
	"github.com/argonaut-rdma/argonaut/verbs/driver"
)

var transferTests = []subtest{
	{"SendOneSGE", func(e *env) { e.sends(aligned, aligned) }},
	{"SendUnaligned", func(e *env) { e.sends(unaligned(67), unaligned(69)) }},
	{"SendManySGEs", func(e *env) { e.sends(e.many(65), e.many(71)) }},
	{"SendGatherOnly", func(e *env) { e.sends(e.many(65), aligned) }},
	{"SendScatterOnly", func(e *env) { e.sends(unaligned(65), e.many(66)) }},
	{"SendShorterThanReceive", sendShorter},
	{"WriteOneSGE", func(e *env) { e.writes(aligned, 64) }},
	{"WriteUnaligned", func(e *env) { e.writes(unaligned(67), 65) }},
	{"WriteManySGEs", func(e *env) { e.writes(e.many(65), 71) }},
	{"ReadOneSGE", func(e *env) { e.reads(aligned, 64) }},
	{"ReadUnaligned", func(e *env) { e.reads(unaligned(67), 65) }},
	{"ReadManySGEs", readMany},
	{"WriteThenRead", writeThenRead},
	{"ReadFencesWrite", readFencesWrite},
	{"ReadsBeyondORD", readsBeyondORD},
	{"BothWays", bothWays},
	{"ShortAcrossPages", shortAcrossPages},
	{"OneDevice", oneDevice},
	{"RandomMix", randomMix},
}

var aligned = layout{pieces: 1, start: 64}

func unaligned(start int) layout { return layout{pieces: 1, start: start} }

// many is as many SGEs as both ends have, up to 8, at odd addresses.
func (e *env) many(start int) layout {
	return layout{pieces: min(e.caps().MaxSGE, 8), start: start, gap: 3}
}

// topSize is the largest message tried.
func (e *env) topSize() int {
	c, top := e.caps(), uint64(64<<20)
	if e.quick() {
		top = 4 << 20
	}
	return int(min(top, c.MaxMsgSize, c.MaxMRSize-1024))
}

// sizes are the message lengths tried: around every border that a transport
// may have, and the largest.
func (e *env) sizes() []int {
	top := e.topSize()
	var out []int
	for _, n := range []int{
		0, 1, 2, 3, 4, 5, 7, 8, 63, 64, 65, 255, 256, 257, 1023, 1024, 1025, 1431, 1432, 1433, 1459, 1460, 1461,
		4095, 4096, 4097, 8999, 16384, 32767, 65472, 65519, 65535, 65536, 65537, 131071, 262145, 1<<20 - 1, 1 << 20, 1<<20 + 13,
	} {
		if n < top {
			out = append(out, n)
		}
	}
	return append(out, top)
}

// sends sends a message of every size from layout from into layout to.
func (e *env) sends(from, to layout) {
	p := e.pair(pairOpts{})
	if from.pieces == 1 && to.pieces == 1 {
		p.emptyWithoutSGE()
	}
	for i, n := range e.sizes() {
		seed, wrid := uint64(n)+1, uint64(i)
		src, dst := p.a.strip(n, from, 0), p.b.strip(n, to, accLocal)
		src.fill(seed)
		p.b.postRecv(verbs.RecvWR{WRID: wrid, SGEs: dst.sges()})
		p.a.post(signaled(wrid, driver.OpSend, src.sges()...))
		wc := p.b.rq.good(wrid, driver.OpRecv)
		require.EqualValues(e, n, wc.ByteLen)
		require.Equal(e, p.b.qp.QPN(), wc.QPN)
		require.False(e, wc.HasImm || wc.HasInv)
		require.NoError(e, dst.holds(n, seed), "%d bytes", n)
		wc = p.a.sq.good(wrid, driver.OpSend)
		require.Equal(e, p.a.qp.QPN(), wc.QPN)
		require.NoError(e, src.holds(n, seed), "the source changed")
		p.drop(src, dst)
	}
}

// emptyWithoutSGE sends an empty message that has no SGE at either end.
func (p pair) emptyWithoutSGE() {
	p.a.Helper()
	p.b.postRecv(verbs.RecvWR{WRID: 900})
	p.a.post(signaled(901, driver.OpSend))
	require.Zero(p.a, p.b.rq.good(900, driver.OpRecv).ByteLen)
	p.a.sq.good(901, driver.OpSend)
}

// drop deregisters what one round used: there is no in-flight use left.
func (p pair) drop(ss ...strip) {
	p.a.Helper()
	for _, s := range ss {
		if p.a.caps.DeregBarrier && p.b.caps.DeregBarrier {
			require.NoError(p.a, s.mem.mr.Deregister())
		}
	}
}

func sendShorter(e *env) {
	p := e.pair(pairOpts{})
	for i, n := range []int{0, 1, 100, 4095, 70001} {
		src, dst := p.a.strip(n, aligned, 0), p.b.strip(n+777, e.many(65), accLocal)
		src.fill(uint64(n))
		p.b.postRecv(verbs.RecvWR{WRID: uint64(i), SGEs: dst.sges()})
		p.a.post(signaled(uint64(i), driver.OpSend, src.sges()...))
		require.EqualValues(e, n, p.b.rq.good(uint64(i), driver.OpRecv).ByteLen)
		require.NoError(e, dst.holds(n, uint64(n)), "%d bytes into %d", n, n+777)
		p.a.sq.good(uint64(i), driver.OpSend)
	}
}

// writes writes a message of every size from layout from to an address off
// bytes into remote memory.
func (e *env) writes(from layout, off int) {
	p := e.pair(pairOpts{})
	for i, n := range e.sizes() {
		seed, wrid := uint64(n)+3, uint64(i)
		src, dst := p.a.strip(n, from, 0), p.b.strip(n, unaligned(off), accWrite)
		src.fill(seed)
		p.a.post(dst.mem.to(signaled(wrid, driver.OpWrite, src.sges()...), off))
		p.a.sq.good(wrid, driver.OpWrite)
		p.a.fence(p.b)
		require.NoError(e, dst.holds(n, seed), "%d bytes", n)
		require.NoError(e, src.holds(n, seed), "the source changed")
		p.drop(src, dst)
	}
}

// reads reads a message of every size from off bytes into remote memory into
// layout to.
func (e *env) reads(to layout, off int) {
	p := e.pair(pairOpts{})
	for i, n := range e.sizes() {
		seed, wrid := uint64(n)+5, uint64(i)
		src, dst := p.b.strip(n, unaligned(off), accRead), p.a.strip(n, to, sinkAccess(p.a.caps))
		src.fill(seed)
		p.a.post(src.mem.to(signaled(wrid, driver.OpRead, dst.sges()...), off))
		require.EqualValues(e, n, p.a.sq.good(wrid, driver.OpRead).ByteLen)
		require.NoError(e, dst.holds(n, seed), "%d bytes", n)
		require.NoError(e, src.holds(n, seed), "the source changed")
		p.drop(src, dst)
	}
}

func readMany(e *env) {
	k := min(e.caps().MaxReadSGE, 8)
	e.need(k > 1, "a READ has one SGE on this device")
	e.reads(layout{pieces: k, start: 67, gap: 5}, 65)
}

// writeThenRead reads back what a WRITE posted just before it has written: the
// READ sees it without a wait between them.
func writeThenRead(e *env) {
	p := e.pair(pairOpts{})
	const n = 300_001
	src, remote, back := p.a.strip(n, aligned, 0), p.b.strip(n, unaligned(65), accRemote), p.a.strip(n, aligned, sinkAccess(p.a.caps))
	for i := range uint64(e.short(50)) {
		src.fill(i)
		p.a.post(
			remote.mem.to(verbs.SendWR{WRID: 2 * i, Opcode: driver.OpWrite, Flags: driver.SendSignaled, SGEs: src.sges()}, 65),
			remote.mem.to(signaled(2*i+1, driver.OpRead, back.sges()...), 65))
		p.a.sq.good(2*i, driver.OpWrite)
		p.a.sq.good(2*i+1, driver.OpRead)
		require.NoError(e, back.holds(n, i), "round %d", i)
	}
}

// readFencesWrite overwrites with a fenced WRITE what a READ posted before it
// reads: the READ sees the old bytes only.
func readFencesWrite(e *env) {
	p := e.pair(pairOpts{})
	const n = 1 << 20
	src, remote, back := p.a.strip(n, aligned, 0), p.b.strip(n, aligned, accRemote), p.a.strip(n, aligned, sinkAccess(p.a.caps))
	remote.fill(0)
	for i := range uint64(e.short(50)) {
		src.fill(i + 1)
		wr := remote.mem.to(signaled(2*i+1, driver.OpWrite, src.sges()...), 64)
		wr.Flags |= driver.SendFence
		p.a.post(remote.mem.to(signaled(2*i, driver.OpRead, back.sges()...), 64), wr)
		p.a.sq.good(2*i, driver.OpRead)
		require.NoError(e, back.holds(n, i), "round %d", i)
		p.a.sq.good(2*i+1, driver.OpWrite)
		p.a.fence(p.b)
	}
}

// readsBeyondORD posts many more READs than may be outstanding on the wire.
func readsBeyondORD(e *env) {
	const reads, n = 64, 5001
	p := e.pair(pairOpts{depth: reads, param: driver.ConnParam{IRD: 2, ORD: 2}})
	src, dst := p.b.mem(reads*n, accRead), p.a.sink(reads*n)
	fill(src.b, 7)
	for round := range uint64(e.short(20)) {
		clear(dst.b)
		wrs := make([]verbs.SendWR, reads)
		for i := range wrs {
			wrs[i] = src.to(signaled(round*reads+uint64(i), driver.OpRead, dst.sge(i*n, n)), i*n)
		}
		p.a.post(wrs...)
		for i := range wrs {
			p.a.sq.good(wrs[i].WRID, driver.OpRead)
			require.NoError(e, sameBytes(dst.b[i*n:(i+1)*n], src.b[i*n:(i+1)*n]))
		}
	}
}

func oneDevice(e *env) {
	p := e.pair(pairOpts{same: true})
	const n = 100_003
	src, dst := p.a.strip(n, aligned, 0), p.b.strip(n, aligned, accWrite)
	src.fill(1)
	p.a.post(dst.mem.to(signaled(1, driver.OpWrite, src.sges()...), 64))
	p.a.sq.good(1, driver.OpWrite)
	p.a.fence(p.b)
	require.NoError(e, dst.holds(n, 1))
	p.b.fence(p.a)
}

// shortAcrossPages moves payload of a few bytes that lies in two pages, of which
// some devices make copies. What is sent comes behind long messages, so that a
// device is not done with it when the post returns.
func shortAcrossPages(e *env) {
	p := e.pair(pairOpts{depth: 64})
	page := p.a.caps.PageSize
	long := p.a.mem(1<<20, 0)
	src, window, inbox := p.a.mem(3*page, 0), p.b.mem(64*64, accWrite), p.b.mem(64*64, accLocal)
	source, sink := p.b.mem(3*page, accRead), p.a.sink(64*64)
	fill(src.b, 1)
	fill(source.b, 2)
	border := func(m *memory) int { return 2*page - int(m.addr(0)%uint64(page)) } // where a page of m begins
	from, at := border(src), border(source)
	far := p.b.mem(1<<20, accWrite)
	for _, n := range []int{2, 5, 20, 31, 32, 33, 48} {
		cuts := []int{1, n / 2, n - 1}
		var wrs []verbs.SendWR
		for i := range uint64(4) { // more than the device's own buffers take
			wrs = append(wrs, far.to(signaled(100+i, driver.OpWrite, long.sge(0, len(long.b))), 0))
		}
		for i, cut := range cuts {
			p.b.postRecv(verbs.RecvWR{WRID: uint64(i), SGEs: []verbs.SGE{inbox.sge(64*i, n)}})
			wrs = append(wrs,
				window.to(signaled(uint64(200+i), driver.OpWrite, src.sge(from-cut, n)), 64*i),
				signaled(uint64(300+i), driver.OpSend, src.sge(from-cut, n)),
				source.to(signaled(uint64(400+i), driver.OpRead, sink.sge(64*i, n)), at-cut))
		}
		p.a.post(wrs...)
		left := map[uint64]bool{}
		for i := range wrs {
			left[wrs[i].WRID] = true
		}
		for range wrs {
			wc := p.a.sq.next()
			require.Equal(e, driver.StatusSuccess, wc.Status)
			require.True(e, left[wc.WRID], "a completion more of %d", wc.WRID)
			delete(left, wc.WRID)
			if wc.Opcode == driver.OpRead {
				require.EqualValues(e, n, wc.ByteLen)
			}
		}
		for i := range cuts {
			require.EqualValues(e, n, p.b.rq.good(uint64(i), driver.OpRecv).ByteLen)
		}
		p.a.fence(p.b)
		for i, cut := range cuts {
			require.NoError(e, sameBytes(window.b[64*i:][:n], src.b[from-cut:][:n]), "WRITE of %d bytes, %d in the first page", n, cut)
			require.NoError(e, sameBytes(inbox.b[64*i:][:n], src.b[from-cut:][:n]), "SEND of %d bytes, %d in the first page", n, cut)
			require.NoError(e, sameBytes(sink.b[64*i:][:n], source.b[at-cut:][:n]), "READ of %d bytes, %d in the first page", n, cut)
		}
	}
}
