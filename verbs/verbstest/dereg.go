package verbstest

import (
	"bytes"
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/argonaut-rdma/argonaut/verbs"
	"github.com/argonaut-rdma/argonaut/verbs/driver"
)

var deregTests = []subtest{
	{"DeregisterWhilePosted", deregWhilePosted},
	{"DeregisterWait", deregWait},
	{"DeregisterUnderWrites", deregUnderWrites},
	{"DeregisterUnderReads", deregUnderReads},
	{"DeregisterUnderReceive", deregUnderReceive},
	{"RevokeKillsQPs", revokeKillsQPs},
}

// deregWhilePosted asks for memory that posted requests name, on both queues:
// it is refused, by name and number, and changes nothing.
func deregWhilePosted(e *env) {
	p := e.pair(pairOpts{})
	inbox := p.b.mem(100, accLocal)
	p.b.postRecv(
		verbs.RecvWR{WRID: 1, SGEs: []verbs.SGE{inbox.sge(0, 10), inbox.sge(10, 10)}},
		verbs.RecvWR{WRID: 2, SGEs: []verbs.SGE{inbox.sge(20, 20)}})
	var busy *verbs.BusyError
	err := inbox.mr.Deregister()
	require.ErrorAs(e, err, &busy)
	require.ErrorIs(e, err, verbs.ErrBusy)
	require.Equal(e, map[uint32]int{p.b.qp.QPN(): 3}, busy.QPs)
	require.Equal(e, 3, inbox.mr.InFlight())
	require.Equal(e, 3, p.b.qp.References(inbox.mr))
	require.True(e, inbox.mr.Live())
	src := p.a.mem(20, 0)
	fill(src.b, 6)
	p.a.post(signaled(1, driver.OpSend, src.sge(0, 20)))
	// Not polled is still in use.
	require.ErrorAs(e, src.mr.Deregister(), &busy)
	require.Equal(e, map[uint32]int{p.a.qp.QPN(): 1}, busy.QPs)
	p.b.rq.good(1, driver.OpRecv)
	require.NoError(e, isPattern(inbox.b[:20], 6))
	p.a.sq.good(1, driver.OpSend)
	require.NoError(e, src.mr.Deregister())
	require.ErrorAs(e, inbox.mr.Deregister(), &busy)
	require.Equal(e, 1, inbox.mr.InFlight())
	require.NoError(e, p.b.qp.SetError())
	require.Equal(e, driver.StatusWRFlushErr, p.b.rq.next().Status)
	require.Zero(e, inbox.mr.InFlight())
	require.NoError(e, inbox.mr.Deregister())
	require.False(e, inbox.mr.Live())
}

func deregWait(e *env) {
	p := e.pair(pairOpts{})
	inbox := p.b.mem(100, accLocal)
	recv := []verbs.RecvWR{{WRID: 1, SGEs: []verbs.SGE{inbox.sge(0, 10)}}}
	p.b.postRecv(recv...)
	ctx, cancel := context.WithTimeout(e.ctx, 20*time.Millisecond)
	defer cancel()
	require.ErrorIs(e, inbox.mr.DeregisterWait(ctx), context.DeadlineExceeded)
	p.b.postRecv(recv...) // allowed again
	done := make(chan error, 1)
	go func() { done <- inbox.mr.DeregisterWait(e.ctx) }() // ends with the deregistration
	for {                                                  // until the region is closed to new posts
		_, err := p.b.qp.PostRecv(recv)
		if err != nil {
			require.True(e, errors.Is(err, verbs.ErrBusy) || errors.Is(err, verbs.ErrClosed) || errors.Is(err, verbs.ErrQueueFull), "%v", err)
			break
		}
	}
	n := inbox.mr.InFlight()
	for i := range n {
		select {
		case err := <-done:
			e.Fatalf("deregistered with %d in flight: %v", n-i, err)
		default:
		}
		p.a.post(signaled(1, driver.OpSend))
		p.b.rq.good(1, driver.OpRecv)
		p.a.sq.good(1, driver.OpSend)
	}
	require.NoError(e, <-done)
	_, err := p.b.qp.PostRecv(recv)
	require.ErrorIs(e, err, verbs.ErrClosed)
	require.NoError(e, inbox.mr.DeregisterWait(e.ctx), "once more")
}

// deregUnderWrites deregisters memory under a stream of remote WRITEs: from
// then on not a byte of it changes. Where deregistration is no barrier it is
// refused until the QP is gone, which is the barrier there.
func deregUnderWrites(e *env) {
	const n = 512 << 10
	for round := range e.short(40) {
		p := e.pair(pairOpts{depth: 8})
		dst := p.b.mem(n, accRemote)
		s := p.a.stream(driver.OpWrite, dst, n)
		// Somewhere in the stream: the first bytes have come, or more.
		for dst.peek(round*n/40) == 0 {
			e.yield()
		}
		e.endAccess(p.b, dst)
		snapshot := append([]byte(nil), dst.b...)
		s.end(p)
		require.NoError(e, sameBytes(dst.b, snapshot), "memory changed after it was deregistered")
	}
}

// poison is what memory is overwritten with once nobody may read it any more.
const poison = 0xee

// deregUnderReads does so under a stream of READs: what the owner writes into
// the memory afterwards is never seen by the peer.
func deregUnderReads(e *env) {
	const n = 512 << 10
	for range e.short(40) {
		p := e.pair(pairOpts{depth: 8})
		src := p.b.mem(n, accRemote)
		for i := range src.b {
			src.b[i] = 1
		}
		s := p.a.stream(driver.OpRead, src, n)
		for s.completed.Load() < 3 {
			e.yield()
		}
		e.endAccess(p.b, src)
		for i := range src.b {
			src.b[i] = poison
		}
		s.end(p)
		require.Negative(e, bytes.IndexByte(s.mem.b, poison), "a byte was read after the deregistration")
	}
}

// endAccess takes remotely accessible memory of x away under traffic.
func (e *env) endAccess(x *end, m *memory) {
	e.Helper()
	if !x.caps.DeregBarrier {
		require.ErrorIs(e, m.mr.Deregister(), verbs.ErrBusy)
		require.True(e, m.mr.Live())
		_, err := x.qp.Close()
		require.NoError(e, err)
	}
	require.NoError(e, m.mr.Deregister())
}

// stream is a goroutine that keeps WRITEs to, or READs of, remote memory under
// way until the connection fails.
type stream struct {
	mem       *memory
	completed atomic.Int64
	done      chan error
}

func (x *end) stream(op verbs.Opcode, remote *memory, n int) *stream {
	x.Helper()
	return x.streamTo(op, remote.addr(0), remote.mr.RKey(), n)
}

func (x *end) streamTo(op verbs.Opcode, addr uint64, rkey uint32, n int) *stream {
	x.Helper()
	s := &stream{done: make(chan error, 1)}
	if op == driver.OpRead {
		s.mem = x.sink(n)
	} else {
		s.mem = x.mem(n, 0)
		for i := range s.mem.b {
			s.mem.b[i] = byte(i%251) + 1 // never zero
		}
	}
	wr := signaled(0, op, s.mem.sge(0, n))
	wr.RemoteAddr, wr.RKey = addr, rkey
	go func() { s.done <- s.run(x, wr) }() // ends when the connection has failed: see end
	return s
}

func (s *stream) run(x *end, wr verbs.SendWR) error {
	posted, completed := 0, 0
	failed := false
	ctx := x.ctx
	if !x.caps.ErrPostCompletesSQ {
		// What was posted between the failure and its discovery is lost.
		c, cancel := context.WithCancel(ctx)
		defer cancel()
		go func() { // ends with run
			select {
			case <-x.qp.Disconnected():
				cancel()
			case <-c.Done():
			}
		}()
		ctx = c
	}
	for !failed || completed < posted {
		for !failed && posted-completed < 4 {
			if _, err := x.qp.PostSend([]verbs.SendWR{wr}); err != nil {
				if !errors.Is(err, verbs.ErrQPState) {
					return err
				}
				failed = true
				break
			}
			posted++
		}
		if completed == posted {
			continue
		}
		wc, err := x.sq.wait(ctx)
		if err != nil {
			return x.ctx.Err() // nil: the connection is gone
		}
		completed++
		if wc.Status != driver.StatusSuccess {
			failed = true
		}
		s.completed.Add(1)
	}
	return nil
}

// end waits for the failure that the loss of the memory brings, at both ends.
func (s *stream) end(p pair) {
	p.a.Helper()
	require.NoError(p.a, <-s.done)
	if p.a.caps.RemoteViolationOnWR {
		_, err := p.a.qp.Close()
		require.NoError(p.a, err)
	}
	p.a.gone()
	p.b.gone()
	for _, x := range []*end{p.a, p.b} {
		_, err := x.qp.Close()
		require.NoError(p.a, err)
	}
}

// deregUnderReceive ends a QP that is receiving a large message, and takes the
// memory right after.
func deregUnderReceive(e *env) {
	const n = 4 << 20
	for round := range e.short(20) {
		p := e.pair(pairOpts{})
		src, dst := p.a.mem(n, 0), p.b.mem(n, accLocal)
		for i := range src.b {
			src.b[i] = 1
		}
		p.b.postRecv(verbs.RecvWR{WRID: 1, SGEs: []verbs.SGE{dst.sge(0, n)}})
		p.a.post(signaled(1, driver.OpSend, src.sge(0, n)))
		for dst.peek(round*n/20) == 0 {
			e.yield()
		}
		_, err := p.b.qp.Close()
		require.NoError(e, err)
		require.NoError(e, dst.mr.Deregister())
		snapshot := append([]byte(nil), dst.b...)
		p.a.gone()
		p.a.sq.next()
		require.NoError(e, sameBytes(dst.b, snapshot), "memory changed after its QP was closed")
	}
}

// revokeKillsQPs takes memory from a QP whose receives nobody will ever serve.
func revokeKillsQPs(e *env) {
	p := e.pair(pairOpts{})
	inbox := p.b.mem(100, accLocal)
	p.b.postRecv(verbs.RecvWR{WRID: 1, SGEs: []verbs.SGE{inbox.sge(0, 10)}})
	ctx, cancel := context.WithTimeout(e.ctx, 20*time.Millisecond)
	defer cancel()
	require.Error(e, inbox.mr.Revoke(ctx, false))
	require.True(e, inbox.mr.Live())
	require.Equal(e, driver.QPStateRTS, p.b.qp.State())
	polled := make(chan verbs.WC, 1)
	go func() { // ends with the flush of the receive
		wc, _ := p.b.rq.wait(e.ctx)
		polled <- wc
	}()
	ctx, cancel = context.WithTimeout(e.ctx, 20*time.Millisecond)
	defer cancel()
	require.NoError(e, inbox.mr.Revoke(ctx, true))
	require.Equal(e, driver.StatusWRFlushErr, (<-polled).Status)
	require.False(e, inbox.mr.Live())
	p.a.gone()
}
