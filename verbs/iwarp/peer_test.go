package iwarp

import (
	"io"
	"runtime"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/argonaut-rdma/argonaut/verbs/driver"
	"github.com/argonaut-rdma/argonaut/verbs/iwarp/internal/wire"
)

func strictEnd(t testing.TB) *end {
	return newEnd(t, endConfig{cfg: Config{Strict: true, CRC: CRCOff}, ird: 2})
}

// What a peer does wrong is answered with the right Terminate; the receives that were posted are flushed and the event
// says whether it was memory.
func TestTerminateCodes(t *testing.T) {
	send := func(msn, mo uint32, last bool) wire.Header {
		return wire.Header{Op: wire.OpSend, QN: wire.QNSend, MSN: msn, MO: mo, Last: last}
	}
	read := func(stag uint32, to uint64, n uint32) []byte {
		b := make([]byte, wire.ReadReqLen)
		wire.PutReadReq(b, &wire.ReadReq{SinkSTag: 1, SinkTO: 2, Length: n, SrcSTag: stag, SrcTO: to})
		return b
	}
	readHdr := wire.Header{Op: wire.OpReadReq, QN: wire.QNReadReq, MSN: 1, Last: true}
	for _, tc := range []struct {
		name  string
		do    func(p *wirePeer, m driver.MR)
		code  wire.TermCode
		event driver.EventType
	}{
		{"WRITE to an unknown key", func(p *wirePeer, m driver.MR) {
			p.send(wire.Header{Tagged: true, Last: true, Op: wire.OpWrite, STag: m.RKey() ^ 0x100, TO: m.Addr()}, make([]byte, 8))
		}, wire.TermDDPInvalidSTag, driver.EventQPAccessErr},
		{"WRITE with a stale key", func(p *wirePeer, m driver.MR) {
			p.send(wire.Header{Tagged: true, Last: true, Op: wire.OpWrite, STag: m.RKey() ^ 1, TO: m.Addr()}, make([]byte, 8))
		}, wire.TermDDPInvalidSTag, driver.EventQPAccessErr},
		{"WRITE past the end", func(p *wirePeer, m driver.MR) {
			p.send(wire.Header{Tagged: true, Last: true, Op: wire.OpWrite, STag: m.RKey(), TO: m.Addr() + 4089}, make([]byte, 8))
		}, wire.TermDDPBounds, driver.EventQPAccessErr},
		{"WRITE that wraps", func(p *wirePeer, m driver.MR) {
			p.send(wire.Header{Tagged: true, Last: true, Op: wire.OpWrite, STag: m.RKey(), TO: ^uint64(0) - 3}, make([]byte, 8))
		}, wire.TermDDPWrap, driver.EventQPAccessErr},
		{"READ past the end", func(p *wirePeer, m driver.MR) {
			p.send(readHdr, read(m.RKey(), m.Addr()+1, 4096))
		}, wire.TermRDMAPBounds, driver.EventQPAccessErr},
		{"READ of an unknown key", func(p *wirePeer, m driver.MR) {
			p.send(readHdr, read(m.RKey()^0x100, m.Addr(), 1))
		}, wire.TermRDMAPInvalidSTag, driver.EventQPAccessErr},
		{"READ that wraps", func(p *wirePeer, m driver.MR) {
			p.send(readHdr, read(m.RKey(), ^uint64(0), 2))
		}, wire.TermRDMAPWrap, driver.EventQPAccessErr},
		{"READ request too long", func(p *wirePeer, m driver.MR) {
			p.send(readHdr, append(read(m.RKey(), m.Addr(), 1), 0))
		}, wire.TermDDPTooLong, driver.EventQPReqErr},
		{"SEND without a receive", func(p *wirePeer, m driver.MR) {
			for i := range uint32(3) {
				p.send(send(i+1, 0, true), make([]byte, 4))
			}
		}, wire.TermDDPNoBuffer, driver.EventQPReqErr},
		{"SEND longer than its receive", func(p *wirePeer, m driver.MR) {
			p.send(send(1, 0, true), make([]byte, 65))
		}, wire.TermDDPTooLong, driver.EventQPReqErr},
		{"SEND of the wrong sequence number", func(p *wirePeer, m driver.MR) {
			p.send(send(2, 0, true), make([]byte, 4))
		}, wire.TermDDPMSNRange, driver.EventQPReqErr},
		{"SEND that begins in the middle", func(p *wirePeer, m driver.MR) {
			p.send(send(1, 4, true), make([]byte, 4))
		}, wire.TermDDPInvalidMO, driver.EventQPReqErr},
		{"SEND with a gap", func(p *wirePeer, m driver.MR) {
			p.send(send(1, 0, false), make([]byte, 4))
			p.send(send(1, 8, true), make([]byte, 4))
		}, wire.TermDDPInvalidMO, driver.EventQPReqErr},
		{"SEND_INV of an ordinary key", func(p *wirePeer, m driver.MR) {
			p.send(wire.Header{Op: wire.OpSendInv, STag: m.RKey(), QN: wire.QNSend, MSN: 1, Last: true}, make([]byte, 4))
		}, wire.TermRDMAPCantInvalidate, driver.EventQPReqErr},
		{"READ response nobody asked for", func(p *wirePeer, m driver.MR) {
			p.send(wire.Header{Tagged: true, Last: true, Op: wire.OpReadResp, STag: m.LKey(), TO: m.Addr()}, make([]byte, 8))
		}, wire.TermDDPInvalidSTag, driver.EventQPAccessErr},
		{"immediate data to a strict device", func(p *wirePeer, m driver.MR) {
			p.send(wire.Header{Last: true, Op: wire.OpImm, QN: wire.QNSend, MSN: 1}, make([]byte, 8))
		}, wire.TermRDMAPOpcode, driver.EventQPReqErr},
		{"atomic to a strict device", func(p *wirePeer, m driver.MR) {
			b := make([]byte, wire.AtomicReqLen)
			wire.PutAtomicReq(b, &wire.AtomicReq{STag: m.RKey(), TO: m.Addr()})
			p.send(wire.Header{Last: true, Op: wire.OpAtomicReq, QN: wire.QNReadReq, MSN: 1}, b)
		}, wire.TermRDMAPOpcode, driver.EventQPReqErr},
		{"queue 9", func(p *wirePeer, m driver.MR) {
			p.send(wire.Header{Last: true, Op: wire.OpSend, QN: 9, MSN: 1}, make([]byte, 8))
		}, wire.TermDDPInvalidQN, driver.EventQPReqErr},
		{"DDP version 0", func(p *wirePeer, m driver.MR) {
			b := fpdu(send(1, 0, true), make([]byte, 8))
			b[2] &^= 3
			_, err := p.c.Write(b)
			require.NoError(p.t, err)
		}, wire.TermDDPUntaggedVersion, driver.EventQPReqErr},
		{"FPDU shorter than a header", func(p *wirePeer, m driver.MR) {
			_, err := p.c.Write(make([]byte, 20))
			require.NoError(p.t, err)
		}, wire.TermMPAFPDUStart, driver.EventQPFatal},
	} {
		t.Run(tc.name, func(t *testing.T) {
			e := strictEnd(t)
			mem, m := e.mem(4096, driver.AccessLocalWrite|driver.AccessRemoteWrite|driver.AccessRemoteRead)
			e.recv(1, sgeOf(m, 0, 64))
			e.recv(2, sgeOf(m, 64, 64))
			p, _ := dialPeer(t, e, v2Hello())
			requireCause(t, e, 0)
			tc.do(p, m)
			e.inErr()
			requireCause(t, e, tc.event)
			requireLocal(t, e, false)
			term := p.terminated()
			require.Equal(t, tc.code, term.Code, "%v", term.Code)
			require.NoError(t, p.c.Close())
			require.Equal(t, driver.Event{Type: tc.event, QP: e.qp}, e.event())
			require.Equal(t, driver.Event{Type: driver.EventDisconnected, QP: e.qp}, e.event())
			wcs := e.wait(e.rcq, 2)
			if tc.code != wire.TermDDPNoBuffer && tc.code != wire.TermDDPTooLong {
				require.Equal(t, driver.StatusWRFlushErr, wcs[0].Status)
				require.Equal(t, make([]byte, 4096-128), mem[128:], "memory was changed")
			}
			st, err := e.qp.State()
			require.NoError(t, err)
			require.Equal(t, driver.QPStateErr, st)
		})
	}
}

// inErr waits, without a pause, until the QP is in ERR.
func (e *end) inErr() {
	e.t.Helper()
	for ctx := testCtx(e.t); ; runtime.Gosched() {
		if st, err := e.qp.State(); err == nil && st == driver.QPStateErr {
			return
		}
		require.NoError(e.t, ctx.Err(), "the QP does not go to ERR")
	}
}

// requireCause checks what e's QP says of ERR; 0: nothing.
func requireCause(t testing.TB, e *end, want driver.EventType) {
	t.Helper()
	cause, ok := e.qp.(driver.Explainer).Cause()
	require.Equal(t, want, cause)
	require.Equal(t, want != 0, ok)
}

func requireLocal(t testing.TB, e *end, want bool) {
	t.Helper()
	require.Equal(t, want, e.qp.(driver.Explainer).LocalCause())
}

// A QP that its owner or the end of the connection has put to ERR has no cause, one
// that the peer has terminated has, and one that fails over something of its own.
func TestCause(t *testing.T) {
	for name, tc := range map[string]struct {
		do    func(e *end, p *wirePeer)
		want  driver.EventType
		local bool
	}{
		"owner":  {func(e *end, _ *wirePeer) { require.NoError(e.t, e.qp.SetState(driver.QPStateErr)) }, 0, false},
		"closed": {func(_ *end, p *wirePeer) { require.NoError(p.t, p.c.CloseWrite()) }, 0, false},
		"reset": {func(_ *end, p *wirePeer) {
			require.NoError(p.t, p.c.SetLinger(0))
			require.NoError(p.t, p.c.Close())
		}, 0, false},
		"terminated": {func(_ *end, p *wirePeer) {
			_, err := p.c.Write(encodeTerminate(&connParams{framing: wire.Standard}, &wire.Terminate{Code: wire.TermDDPBounds}))
			require.NoError(p.t, err)
		}, driver.EventQPFatal, false},
		"wrong request": {func(e *end, p *wirePeer) {
			p.send(wire.Header{Tagged: true, Last: true, Op: wire.OpWrite}, nil)
			e.post(driver.SendWR{Opcode: driver.OpSend, SGEs: []driver.SGE{{Addr: 1, Length: 1, LKey: 1}}})
		}, driver.EventQPFatal, true},
		"wrong receive": {func(e *end, p *wirePeer) {
			e.recv(1, driver.SGE{Addr: 1, Length: 64, LKey: 1})
			p.send(wire.Header{Op: wire.OpSend, QN: wire.QNSend, MSN: 1, Last: true}, make([]byte, 8))
		}, driver.EventQPFatal, true},
	} {
		t.Run(name, func(t *testing.T) {
			e := strictEnd(t)
			p, _ := dialPeer(t, e, v2Hello())
			tc.do(e, p)
			e.inErr()
			requireCause(t, e, tc.want)
			requireLocal(t, e, tc.local)
			require.NoError(t, e.qp.Destroy())
			requireCause(t, e, tc.want)
			requireLocal(t, e, tc.local)
		})
	}
}

// A peer that asks for more READs than IRD, without taking the answers, is told so: behind the FPDU under way.
func TestReadsBeyondIRD(t *testing.T) {
	e := newEnd(t, endConfig{cfg: Config{Strict: true, CRC: CRCOff, Linger: testTimeout}, ird: 2})
	_, m := e.mem(16<<20, driver.AccessRemoteRead)
	p, reply := dialPeer(t, e, v2Hello())
	require.EqualValues(t, 2, reply.enh.IRD)
	for i := range uint32(5) { // two of grace: an answer may be out before we know
		b := make([]byte, wire.ReadReqLen)
		wire.PutReadReq(b, &wire.ReadReq{SinkSTag: 1, Length: 16 << 20, SrcSTag: m.RKey(), SrcTO: m.Addr()})
		p.send(wire.Header{Op: wire.OpReadReq, QN: wire.QNReadReq, MSN: i + 1, Last: true}, b)
	}
	require.Equal(t, driver.EventQPReqErr, e.event().Type)
	total := 0
	for {
		h, body := p.next()
		if h.Op == wire.OpReadResp {
			total += len(body)
			continue
		}
		require.Equal(t, wire.OpTerminate, h.Op)
		term, err := wire.DecodeTerminate(body)
		require.NoError(t, err)
		require.Equal(t, wire.TermDDPNoBuffer, term.Code)
		require.EqualValues(t, 5, term.DDP.MSN)
		require.Less(t, total, 64<<20)
		return
	}
}

// oursHello has the vendor extension, so that the peer may send immediate data.
func oursHello() hello {
	h := v2Hello()
	h.ours, h.ext = true, wire.Extension{Ops7306: true, WaiveCRC: true}
	return h
}

// Immediate data in the middle of a SEND ends the connection, and costs a shared queue only the receive that the SEND had taken.
func TestImmediateInMidSend(t *testing.T) {
	e := newEnd(t, endConfig{cfg: Config{CRC: CRCOff}, srq: true, rq: 2})
	_, m := e.mem(128, driver.AccessLocalWrite)
	other := *e
	var err error
	other.qp, err = e.pd.CreateQP(driver.QPAttr{SendCQ: e.scq, RecvCQ: e.rcq, SRQ: e.srq})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, other.qp.Destroy()) })
	e.recv(1, sgeOf(m, 0, 64))
	e.recv(2, sgeOf(m, 64, 64))

	p, _ := dialPeer(t, e, oursHello())
	p.send(wire.Header{Tagged: true, Last: true, Op: wire.OpWrite}, nil)
	p.send(wire.Header{Op: wire.OpSend, QN: wire.QNSend, MSN: 1}, make([]byte, 8))
	p.send(wire.Header{Op: wire.OpImm, QN: wire.QNSend, MSN: 1, Last: true}, make([]byte, wire.ImmLen))
	wc := e.wait(e.rcq, 1)[0]
	require.EqualValues(t, 1, wc.WRID)
	require.Equal(t, driver.StatusWRFlushErr, wc.Status)
	require.Equal(t, wire.TermRDMAPOpcode, p.terminated().Code)
	require.NoError(t, p.c.Close())

	e.recv(3, sgeOf(m, 0, 64)) // the queue has its place again
	p, _ = dialPeer(t, &other, oursHello())
	for i, id := range []uint64{2, 3} {
		p.send(wire.Header{Op: wire.OpSend, QN: wire.QNSend, MSN: uint32(i + 1), Last: true}, make([]byte, 8))
		require.Equal(t, id, e.waitOK(e.rcq, 1)[0].WRID)
	}
}

// A responder says nothing before the initiator's first FPDU, whatever it has to say.
func TestResponderIsSilentAtFirst(t *testing.T) {
	e := strictEnd(t)
	_, m := e.mem(64, driver.AccessLocalWrite)
	e.recv(1, sgeOf(m, 0, 64))
	p, _ := dialPeer(t, e, v2Hello())
	e.post(driver.SendWR{Opcode: driver.OpSend, SGEs: []driver.SGE{sgeOf(m, 0, 8)}})
	require.NoError(t, p.c.SetReadDeadline(time.Now().Add(50*time.Millisecond)))
	_, err := p.c.Read(make([]byte, 1))
	require.ErrorContains(t, err, "timeout")
	require.NoError(t, p.c.SetReadDeadline(time.Now().Add(testTimeout)))
	p.send(wire.Header{Tagged: true, Last: true, Op: wire.OpWrite}, nil) // an empty WRITE names no memory
	h, body := p.next()
	require.Equal(t, wire.OpSend, h.Op)
	require.Len(t, body, 8)
}

// A responder that has something to say, and disconnects, is not kept by an initiator that goes without a word.
func TestInitiatorLeavesWithoutAWord(t *testing.T) {
	e := strictEnd(t)
	p, _ := dialPeer(t, e, v2Hello())
	e.post(driver.SendWR{WRID: 5, Opcode: driver.OpSend, Flags: driver.SendSignaled})
	require.NoError(t, e.qp.Disconnect())
	require.NoError(t, p.c.CloseWrite())
	require.Equal(t, driver.Event{Type: driver.EventDisconnected, QP: e.qp}, e.event())
	wc := e.wait(e.scq, 1)[0]
	require.EqualValues(t, 5, wc.WRID)
	require.Equal(t, driver.StatusWRFlushErr, wc.Status)
	requireCause(t, e, 0)
	_, err := p.c.Read(make([]byte, 1))
	require.ErrorIs(t, err, io.EOF)
}

// A READ that is begun just as the peer ends its direction does not wait for an answer.
func TestReadBegunAtTheEnd(t *testing.T) {
	e := strictEnd(t)
	_, m := e.mem(64, driver.AccessLocalWrite)
	e.recv(1)
	p, _ := dialPeer(t, e, v2Hello())
	p.send(wire.Header{Op: wire.OpSend, QN: wire.QNSend, MSN: 1, Last: true}, nil)
	e.waitOK(e.rcq, 1) // the responder may send
	e.post(driver.SendWR{Opcode: driver.OpRead, Flags: driver.SendDeferred, SGEs: []driver.SGE{sgeOf(m, 0, 8)}, RemoteAddr: 1, RKey: 2})
	q := e.qp.(*queuePair)
	q.sq.mu.Lock()
	var wg sync.WaitGroup
	wg.Go(q.kick) // it gets as far as the lock, most likely, before we go on
	for range 1000 {
		runtime.Gosched()
	}
	q.rx.eof.Store(true)
	q.sq.mu.Unlock()
	wg.Wait()
	e.inErr()
}

// A receive that is posted while the others are flushed completes before Destroy returns, which leaves none of them behind.
func TestRecvPostedDuringFlush(t *testing.T) {
	e := strictEnd(t)
	_, m := e.mem(64, driver.AccessLocalWrite)
	q := e.qp.(*queuePair)
	e.ch.(*compChannel).upcall = func(driver.CQ) bool { // between the receiver's flush and its last word
		n, err := q.PostRecv([]driver.RecvWR{{WRID: 2}})
		require.NoError(t, err)
		require.Equal(t, 1, n)
		q.rq.mu.Lock()
		return true
	}
	e.recv(1, sgeOf(m, 0, 64))
	require.NoError(t, e.rcq.ReqNotify(false))
	p, _ := dialPeer(t, e, v2Hello())
	p.send(wire.Header{Op: wire.OpSend, QN: wire.QNSend, MSN: 1}, make([]byte, 8))
	p.send(wire.Header{Op: wire.OpSend, QN: wire.QNSend, MSN: 1, MO: 9}, make([]byte, 8))
	p.terminated()
	require.NoError(t, p.c.Close())
	<-q.rxQuiet
	early := false
	for range 1000 {
		runtime.Gosched()
		select {
		case <-q.quiet:
			early = true
		default:
		}
	}
	q.rq.mu.Unlock()
	require.False(t, early, "the queues are said to be quiet")
	require.NoError(t, q.Destroy())
	<-q.finished
	n, err := e.rcq.Poll(make([]driver.WC, 4))
	require.NoError(t, err)
	require.Zero(t, n)
}

// Segments of a SEND and of a WRITE may come in turns, in one stretch or byte by byte.
func TestInterleavedAndSplit(t *testing.T) {
	for _, chunk := range []int{1, 7, 1000, 1 << 20} {
		t.Run(strconv.Itoa(chunk), func(t *testing.T) {
			e := strictEnd(t)
			mem, m := e.mem(80000, driver.AccessLocalWrite|driver.AccessRemoteWrite|driver.AccessRemoteRead)
			e.recv(1, sgeOf(m, 0, 100), sgeOf(m, 100, 39900))
			e.recv(2)
			p, _ := dialPeer(t, e, v2Hello())
			src := make([]byte, 80000)
			pattern(src, chunk)
			var b []byte
			for off := 0; off < 40000; off += 10000 {
				last := off == 30000
				b = append(b, fpdu(wire.Header{Op: wire.OpSend, QN: wire.QNSend, MSN: 1, MO: uint32(off), Last: last}, src[off:off+10000])...)
				b = append(b, fpdu(wire.Header{Tagged: true, Op: wire.OpWrite, STag: m.RKey(), TO: m.Addr() + 40000 + uint64(off), Last: last}, src[40000+off:50000+off])...)
			}
			b = append(b, fpdu(wire.Header{Op: wire.OpReadReq, QN: wire.QNReadReq, MSN: 1, Last: true}, func() []byte {
				r := make([]byte, wire.ReadReqLen)
				wire.PutReadReq(r, &wire.ReadReq{SinkSTag: 7, SinkTO: 9, Length: 20, SrcSTag: m.RKey(), SrcTO: m.Addr() + 5})
				return r
			}())...)
			for len(b) > 0 {
				n := min(chunk, len(b))
				if off := len(b) % 10022; chunk < 10 && off > 100 && off < 9900 { // small pieces around the headers will do
					n = off - 100
				}
				_, err := p.c.Write(b[:n])
				require.NoError(t, err)
				b = b[n:]
			}
			wc := e.waitOK(e.rcq, 1)[0]
			require.EqualValues(t, 40000, wc.ByteLen)
			h, body := p.next() // the READ comes behind the WRITE
			require.Equal(t, wire.Header{Tagged: true, Last: true, Op: wire.OpReadResp, STag: 7, TO: 9}, h)
			require.Equal(t, src[5:25], body)
			p.send(wire.Header{Op: wire.OpSend, QN: wire.QNSend, MSN: 2, Last: true}, nil)
			e.waitOK(e.rcq, 1) // what came before is there for us to see
			require.Equal(t, src, mem)
		})
	}
}

// The peer tells us that a READ of ours was wrong: that READ fails with it, the rest is flushed.
func TestTerminateReceived(t *testing.T) {
	e := strictEnd(t)
	_, m := e.mem(64, driver.AccessLocalWrite)
	p, _ := dialPeer(t, e, v2Hello())
	p.send(wire.Header{Tagged: true, Last: true, Op: wire.OpWrite}, nil)
	for i := range uint64(3) {
		e.post(driver.SendWR{WRID: i, Opcode: driver.OpRead, Flags: driver.SendSignaled, SGEs: []driver.SGE{sgeOf(m, 0, 8)}, RemoteAddr: 1, RKey: 2})
	}
	h, _ := p.next()
	require.Equal(t, wire.OpReadReq, h.Op)
	h, _ = p.next()
	require.EqualValues(t, 2, h.MSN)
	p.send(wire.Header{Op: wire.OpTerminate, QN: wire.QNTerminate, MSN: 1, Last: true},
		wire.AppendTerminate(nil, &wire.Terminate{Code: wire.TermRDMAPAccess, HasDDP: true, SegLen: 46, DDP: h, HasRDMAP: true}))
	wcs := e.wait(e.scq, 3)
	require.Equal(t, driver.StatusWRFlushErr, wcs[0].Status)
	require.Equal(t, driver.StatusRemAccessErr, wcs[1].Status)
	require.Equal(t, driver.StatusWRFlushErr, wcs[2].Status)
	require.Equal(t, driver.EventQPFatal, e.event().Type)
	h, _ = p.next()
	require.EqualValues(t, 3, h.MSN)
	_, err := p.c.Read(make([]byte, 1))
	require.ErrorIs(t, err, io.EOF)
	require.EqualValues(t, 1, e.dev.Stats().TerminatesReceived)
}
