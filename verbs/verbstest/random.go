package verbstest

import (
	"encoding/binary"
	"math/rand/v2"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/argonaut-rdma/argonaut/verbs"
	"github.com/argonaut-rdma/argonaut/verbs/driver"
)

const (
	randomDepth = 32
	randomMost  = 300_000 // bytes of one message
	randomBatch = 8
)

// randomTraffic posts batches of requests of every kind, size, shape and flag,
// drawn at random, and holds each against what it has to do.
type randomTraffic struct {
	pair
	r      *rand.Rand
	most   int     // bytes of one message
	inline int     // bytes
	src    *memory // a slot for each request of a batch
	sink   *memory // likewise, for READs and results of atomics
	inbox  *memory // likewise, for receives
	window *memory // likewise, for WRITEs
	source *memory // READs come from here
	word   *memory // atomics
	count  uint64  // in word
	kinds  []verbs.Opcode
}

// drawn is one request and what it should do.
type drawn struct {
	wr   verbs.SendWR
	slot int
	n    int
	off  int // of a READ in source
	seed uint64
	old  uint64 // of an atomic
}

func randomMix(e *env) {
	seed := uint64(time.Now().UnixNano())
	e.Logf("seed %d", seed)
	t := &randomTraffic{r: rand.New(rand.NewPCG(seed, 0)), most: randomMost, inline: min(e.caps().MaxInline, 256)}
	t.pair = e.pair(pairOpts{depth: randomDepth, inline: t.inline})
	a, b, size := t.a, t.b, randomBatch*randomMost
	t.src, t.sink = a.mem(size, 0), a.sink(size)
	t.inbox, t.window, t.source = b.mem(size, accLocal), b.mem(size, accWrite), b.mem(randomMost, accRead)
	fill(t.source.b, seed)
	t.kinds = []verbs.Opcode{driver.OpSend, driver.OpWrite, driver.OpRead}
	f := a.qp.Features()
	if f.Imm {
		t.kinds = append(t.kinds, driver.OpSendWithImm, driver.OpWriteWithImm)
	}
	if f.Atomics {
		t.word = b.mem(8, accAtomic)
		t.kinds = append(t.kinds, driver.OpFetchAdd)
	}
	for range e.short(600) {
		t.batch()
	}
}

// length is drawn so that every order of magnitude is as likely.
func (t *randomTraffic) length() int {
	top := 1 << t.r.IntN(20)
	return min(t.r.IntN(top+1), t.most)
}

// pieces cuts [0, n) of a slot into SGEs.
func (t *randomTraffic) pieces(m *memory, slot, n, most int) []verbs.SGE {
	var out []verbs.SGE
	off := slot * t.most
	for k := 1 + t.r.IntN(most); k > 1 && n > 0; k-- {
		c := t.r.IntN(n + 1)
		out = append(out, m.sge(off, c))
		off, n = off+c, n-c
	}
	return append(out, m.sge(off, n))
}

func (t *randomTraffic) draw(slot int) drawn {
	a := t.a
	d := drawn{slot: slot, n: t.length(), seed: t.r.Uint64()}
	d.wr = verbs.SendWR{WRID: uint64(slot), Opcode: t.kinds[t.r.IntN(len(t.kinds))], Imm: t.r.Uint32()}
	switch d.wr.Opcode {
	case driver.OpRead:
		d.off = t.r.IntN(t.most - d.n + 1)
		d.wr = t.source.to(d.wr, d.off)
		d.wr.SGEs = t.pieces(t.sink, slot, d.n, min(a.caps.MaxReadSGE, 4))
	case driver.OpFetchAdd:
		d.n, d.old = 8, t.count
		d.wr.CompareAdd = t.r.Uint64()
		t.count += d.wr.CompareAdd
		d.wr = t.word.to(d.wr, 0)
		d.wr.SGEs = []verbs.SGE{t.sink.sge(slot*t.most, 8)}
	default:
		fill(t.src.b[slot*t.most:][:d.n], d.seed)
		d.wr = t.window.to(d.wr, slot*t.most)
		d.wr.SGEs = t.pieces(t.src, slot, d.n, min(a.caps.MaxSGE, 4))
		if d.n <= t.inline && t.r.IntN(2) == 0 {
			d.wr.Flags |= driver.SendInline
		}
	}
	for _, f := range []verbs.SendFlags{driver.SendSignaled, driver.SendFence, driver.SendSolicited} {
		if t.r.IntN(3) == 0 {
			d.wr.Flags |= f
		}
	}
	if !d.receives() {
		d.wr.Flags &^= driver.SendSolicited // it raises nothing
	}
	if d.wr.Opcode == driver.OpRead && !a.caps.InOrderCompletions {
		d.wr.Flags |= driver.SendSignaled // no later completion tells that it has ended
	}
	return d
}

func (d *drawn) receives() bool {
	switch d.wr.Opcode {
	case driver.OpSend, driver.OpSendWithImm, driver.OpWriteWithImm:
		return true
	}
	return false
}

// batch posts some requests and waits for all they do.
func (t *randomTraffic) batch() {
	e := t.a.env
	var ds []drawn
	var wrs []verbs.SendWR
	for slot := range 1 + t.r.IntN(randomBatch) {
		d := t.draw(slot)
		if d.receives() {
			t.b.postRecv(verbs.RecvWR{WRID: uint64(slot), SGEs: t.pieces(t.inbox, slot, d.n+t.r.IntN(t.most-d.n+1), 4)})
		}
		ds, wrs = append(ds, d), append(wrs, d.wr)
	}
	last := &wrs[len(wrs)-1]
	last.Flags |= driver.SendSignaled | driver.SendFence // it tells the end of all
	ds[len(ds)-1].wr = *last
	for i := 0; i < len(wrs); { // in one post or several
		k := 1 + t.r.IntN(len(wrs)-i)
		t.a.post(wrs[i : i+k]...)
		i += k
	}
	for i := range ds {
		if d := &ds[i]; d.receives() {
			t.received(d)
		}
	}
	t.completed(ds)
	t.a.fence(t.b)
	for i := range ds {
		d := &ds[i]
		if d.wr.Opcode == driver.OpWrite || d.wr.Opcode == driver.OpWriteWithImm {
			require.NoError(e, isPattern(t.window.b[d.slot*t.most:][:d.n], d.seed), "%+v", d)
		}
	}
}

func (t *randomTraffic) received(d *drawn) {
	e := t.a.env
	wc := t.b.rq.next()
	require.Equal(e, driver.StatusSuccess, wc.Status, "%+v", d)
	require.EqualValues(e, d.slot, wc.WRID)
	require.EqualValues(e, d.n, wc.ByteLen)
	imm := d.wr.Opcode != driver.OpSend
	require.Equal(e, imm, wc.HasImm)
	if imm {
		require.Equal(e, d.wr.Imm, wc.Imm)
	}
	if d.wr.Opcode == driver.OpWriteWithImm {
		require.Equal(e, driver.OpRecvWriteImm, wc.Opcode)
		return
	}
	require.Equal(e, driver.OpRecv, wc.Opcode)
	require.NoError(e, isPattern(t.inbox.b[d.slot*t.most:][:d.n], d.seed), "%+v", d)
}

// completed takes the completions of the signalled ones and looks at what the
// READs and atomics among them have brought: the last is fenced, so all are over
// when it is.
func (t *randomTraffic) completed(ds []drawn) {
	e := t.a.env
	left := map[uint64]*drawn{}
	for i := range ds {
		if ds[i].wr.Flags&driver.SendSignaled != 0 {
			left[uint64(ds[i].slot)] = &ds[i]
		}
	}
	for len(left) > 0 {
		wc := t.a.sq.next()
		d := left[wc.WRID]
		require.NotNil(e, d, "a completion of a request that is not signalled: %+v", wc)
		require.NoError(e, good(wc, wc.WRID, d.wr.Opcode), "%+v", d)
		delete(left, wc.WRID)
	}
	for i := range ds {
		d := &ds[i]
		got := t.sink.b[d.slot*t.most:][:d.n]
		switch d.wr.Opcode {
		case driver.OpRead:
			require.NoError(e, sameBytes(got, t.source.b[d.off:][:d.n]), "%+v", d)
		case driver.OpFetchAdd:
			require.Equal(e, d.old, binary.NativeEndian.Uint64(got), "%+v", d)
		}
	}
}
