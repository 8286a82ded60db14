package iwarp

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/argonaut-rdma/argonaut/verbs/driver"
	"github.com/argonaut-rdma/argonaut/verbs/iwarp/internal/wire"
)

// fuzzQP is a QP that looks connected to the receiver: one region with a known key, receives, and a READ that awaits
// its answer.
func fuzzQP(t testing.TB, par connParams) (e *end, around []byte, m driver.MR) {
	e = newEnd(t, endConfig{depth: 4})
	e.dev.stags.round = [4]uint32{} // keys have to be the same in every run
	e.dev.stags.mu.Lock()
	e.dev.stags.chunk(0).keys = [stagChunkLen]uint8{}
	e.dev.stags.next = 5
	e.dev.stags.mu.Unlock()
	around = bytes.Repeat([]byte{0x5a}, 3*4096)
	m = e.reg(around[4096:8192], driver.AccessLocalWrite|driver.AccessRemote|driver.AccessZeroBased)
	q := e.qp.(*queuePair)
	q.par = par
	q.sq.await = make([]uint64, 2)
	q.tx.responses.ring = make([]response, 4)
	q.rx.begin(rxHeader, int(par.framing)+wire.TaggedLen)
	for i := range uint64(3) {
		e.recv(i, sgeOf(m, int(i)*100, 50), sgeOf(m, int(i)*100+50, 50))
	}
	q.state.Store(uint32(driver.QPStateRTS))
	n, err := q.PostSend([]driver.SendWR{{Opcode: driver.OpRead, SGEs: []driver.SGE{sgeOf(m, 1000, 500)}, RemoteAddr: 1, RKey: 1}})
	require.NoError(t, err)
	require.Equal(t, 1, n)
	require.True(t, q.sq.pushAwait(0, 1))
	return e, around, m
}

// Whatever a peer sends, in whatever pieces: no panic, no byte outside the region, and every receive completes once.
func FuzzReceiver(f *testing.F) {
	par := connParams{framing: wire.Standard, maxULPDU: 1440, ird: 2, ord: 2}
	_, _, m := fuzzQP(f, par)
	stag, base := m.RKey(), m.Addr()
	add := func(segments ...[]byte) {
		var b []byte
		for _, s := range segments {
			b = append(b, s...)
		}
		for _, chunk := range []uint16{1, 13, 4096} {
			f.Add(b, chunk, false)
		}
	}
	send := func(msn, mo uint32, last bool, n int) []byte {
		return fpdu(wire.Header{Op: wire.OpSend, QN: wire.QNSend, MSN: msn, MO: mo, Last: last}, make([]byte, n))
	}
	read := make([]byte, wire.ReadReqLen)
	wire.PutReadReq(read, &wire.ReadReq{Length: 10, SrcSTag: stag, SrcTO: base})
	atomic := make([]byte, wire.AtomicReqLen)
	wire.PutAtomicReq(atomic, &wire.AtomicReq{STag: stag, TO: base, AddSwap: 1})
	add(send(1, 0, false, 60), send(1, 60, true, 40), send(2, 0, true, 0))
	add(send(1, 0, true, 101))
	add(fpdu(wire.Header{Tagged: true, Op: wire.OpWrite, STag: stag, TO: base + 7, Last: true}, make([]byte, 300)), send(1, 0, true, 3))
	add(fpdu(wire.Header{Op: wire.OpReadReq, QN: wire.QNReadReq, MSN: 1, Last: true}, read))
	add(fpdu(wire.Header{Op: wire.OpAtomicReq, QN: wire.QNReadReq, MSN: 1, Last: true}, atomic))
	add(fpdu(wire.Header{Tagged: true, Op: wire.OpReadResp, STag: stag, TO: base + 1000}, make([]byte, 200)),
		fpdu(wire.Header{Tagged: true, Op: wire.OpReadResp, STag: stag, TO: base + 1200, Last: true}, make([]byte, 300)))
	add(fpdu(wire.Header{Op: wire.OpImm, QN: wire.QNSend, MSN: 1, Last: true}, make([]byte, 8)))
	add(send(1, 0, false, 60), fpdu(wire.Header{Op: wire.OpImm, QN: wire.QNSend, MSN: 1, Last: true}, make([]byte, 8)))
	add(fpdu(wire.Header{Op: wire.OpTerminate, QN: wire.QNTerminate, MSN: 1, Last: true},
		wire.AppendTerminate(nil, &wire.Terminate{Code: wire.TermRDMAPAccess, HasDDP: true, DDP: wire.Header{QN: wire.QNReadReq, MSN: 1, Op: wire.OpReadReq}})))
	f.Fuzz(func(t *testing.T, b []byte, chunk uint16, jumbo bool) {
		p := par
		p.ours = true
		if jumbo {
			p.framing = wire.Jumbo
		}
		e, around, _ := fuzzQP(t, p)
		q := e.qp.(*queuePair)
		for alive := true; alive && len(b) > 0; {
			n := min(len(b), int(chunk)+1)
			alive = q.process(b[:n])
			b = b[n:]
		}
		if w := q.rx.recv; w != nil { // as the receiver goroutine ends
			q.rx.recv = nil
			q.recvDone(w, driver.WC{Status: driver.StatusWRFlushErr}, false)
		}
		q.fail(failure{kind: failLocal})
		guard := bytes.Repeat([]byte{0x5a}, 4096)
		require.Equal(t, guard, around[:4096])
		require.Equal(t, guard, around[8192:])
		seen := map[uint64]int{}
		wcs := make([]driver.WC, 16)
		n, err := e.rcq.Poll(wcs)
		require.NoError(t, err)
		for _, wc := range wcs[:n] {
			seen[wc.WRID]++
		}
		require.Equal(t, map[uint64]int{0: 1, 1: 1, 2: 1}, seen)
		n, err = e.scq.Poll(wcs)
		require.NoError(t, err)
		require.LessOrEqual(t, n, 1)
	})
}
