package iwarp

import (
	"bytes"
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/argonaut-rdma/argonaut/verbs/driver"
	"github.com/argonaut-rdma/argonaut/verbs/iwarp/internal/wire"
)

// prompt is far less than any timeout of the provider.
const prompt = 500 * time.Millisecond

func deregisterPromptly(t *testing.T, m driver.MR) {
	t.Helper()
	begin := time.Now()
	require.NoError(t, m.Deregister())
	require.Less(t, time.Since(begin), prompt)
}

// A peer that has stopped in the middle of a WRITE delays nobody; the rest of it, when it comes, does not land.
func TestDeregisterUnderStoppedWrite(t *testing.T) {
	for _, size := range []int{2000, 60000} { // in bulk, and straight into memory
		e := strictEnd(t)
		mem := make([]byte, 64<<10)
		m, err := e.pd.RegMR(mem, driver.AccessLocalWrite|driver.AccessRemoteWrite)
		require.NoError(t, err)
		p, _ := dialPeer(t, e, v2Hello())
		b := fpdu(wire.Header{Tagged: true, Last: true, Op: wire.OpWrite, STag: m.RKey(), TO: m.Addr()}, bytes.Repeat([]byte{1}, size))
		_, err = p.c.Write(b[:size/2])
		require.NoError(t, err)
		require.Eventually(t, func() bool { return e.dev.Stats().BytesIn == int64(size/2) }, testTimeout, time.Millisecond)
		deregisterPromptly(t, m)
		placed := bytes.Count(mem, []byte{1})
		require.LessOrEqual(t, placed, size/2)
		_, err = p.c.Write(b[size/2:])
		require.NoError(t, err)
		require.Equal(t, wire.TermDDPInvalidSTag, p.terminated().Code)
		require.Equal(t, placed, bytes.Count(mem, []byte{1}), "bytes landed after Deregister")
	}
}

// A READ whose memory goes away while the peer does not take the answer: the connection is reset, and what the peer got
// is a part of the answer.
func TestDeregisterCutsReadResponse(t *testing.T) {
	e := strictEnd(t)
	m, err := e.pd.RegMR(bytes.Repeat([]byte{7}, 32<<20), driver.AccessRemoteRead)
	require.NoError(t, err)
	p, _ := dialPeer(t, e, v2Hello())
	b := make([]byte, wire.ReadReqLen)
	wire.PutReadReq(b, &wire.ReadReq{SinkSTag: 1, Length: 32 << 20, SrcSTag: m.RKey(), SrcTO: m.Addr()})
	p.send(wire.Header{Op: wire.OpReadReq, QN: wire.QNReadReq, MSN: 1, Last: true}, b)
	require.Eventually(t, func() bool { return e.dev.Stats().FullStops > 0 }, testTimeout, time.Millisecond) // the network is full
	deregisterPromptly(t, m)
	n, err := io.Copy(io.Discard, p.c)
	require.ErrorContains(t, err, "reset")
	require.Less(t, n, int64(32<<20))
	require.Equal(t, driver.EventQPFatal, e.event().Type)
	requireLocal(t, e, true)
	require.Equal(t, driver.EventDisconnected, e.event().Type)
	require.EqualValues(t, 1, e.dev.Stats().Resets)
}

// Memory of a SEND that goes away before its turn: that request fails, those behind it are flushed, the peer is told.
func TestDeregisterUnderSend(t *testing.T) {
	e := strictEnd(t)
	big, err := e.pd.RegMR(make([]byte, 32<<20), 0)
	require.NoError(t, err)
	small, err := e.pd.RegMR(make([]byte, 1000), 0)
	require.NoError(t, err)
	p, _ := dialPeer(t, e, v2Hello())
	p.send(wire.Header{Tagged: true, Last: true, Op: wire.OpWrite}, nil)
	wrs := []driver.SendWR{
		{WRID: 1, Opcode: driver.OpSend, SGEs: []driver.SGE{sgeOf(big, 0, 32<<20)}},
		{WRID: 2, Opcode: driver.OpSend, SGEs: []driver.SGE{sgeOf(small, 0, 1000)}},
		{WRID: 3, Opcode: driver.OpSend, SGEs: []driver.SGE{sgeOf(big, 0, 1)}},
	}
	e.post(wrs...)
	require.Eventually(t, func() bool { return e.dev.Stats().FullStops > 0 }, testTimeout, time.Millisecond)
	deregisterPromptly(t, small)
	go func() { _, _ = io.Copy(io.Discard, p.c) }() // ends with the connection
	wcs := e.wait(e.scq, 2)
	require.EqualValues(t, 2, wcs[0].WRID)
	require.Equal(t, driver.StatusLocProtErr, wcs[0].Status)
	require.EqualValues(t, 3, wcs[1].WRID)
	require.Equal(t, driver.StatusWRFlushErr, wcs[1].Status)
	require.NoError(t, big.Deregister())
}

// Destroy is prompt although the peer takes nothing.
func TestDestroyUnderStoppedPeer(t *testing.T) {
	e := newEnd(t, endConfig{cfg: Config{Strict: true, CRC: CRCOff, Linger: testTimeout}})
	m := e.reg(make([]byte, 32<<20), 0)
	p, _ := dialPeer(t, e, v2Hello())
	p.send(wire.Header{Tagged: true, Last: true, Op: wire.OpWrite}, nil)
	e.post(driver.SendWR{WRID: 1, Opcode: driver.OpSend, SGEs: []driver.SGE{sgeOf(m, 0, 32<<20)}})
	require.Eventually(t, func() bool { return e.dev.Stats().FullStops > 0 }, testTimeout, time.Millisecond)
	begin := time.Now()
	require.NoError(t, e.qp.Destroy())
	require.Less(t, time.Since(begin), prompt)
	n, err := e.scq.Poll(make([]driver.WC, 1))
	require.NoError(t, err)
	require.Zero(t, n, "completions are purged")
}
