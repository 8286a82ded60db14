package verbstest

import (
	"errors"
	"math/rand/v2"
	"runtime"

	"github.com/stretchr/testify/require"

	"github.com/argonaut-rdma/argonaut/verbs"
	"github.com/argonaut-rdma/argonaut/verbs/driver"
)

var peerTests = []subtest{
	{"PeerKilledIdle", func(e *env) { e.killed(roleIdle, nothing) }},
	{"PeerKilledUnderSends", func(e *env) { e.killed(roleIdle, sending) }},
	{"PeerKilledUnderWrites", func(e *env) { e.killed(roleIdle, writing) }},
	{"PeerKilledUnderReads", func(e *env) { e.killed(roleIdle, reading) }},
	{"PeerKilledWriting", func(e *env) { e.killed(roleWriter, nothing) }},
	{"PeerKilledReading", func(e *env) { e.killed(roleReader, nothing) }},
	{"PeerKilledInHandshake", peerKilledInHandshake},
	{"DialerKilled", dialerKilled},
	{"PeerClosesUnderTraffic", peerClosesUnderTraffic},
	{"BothCloseUnderTraffic", bothCloseUnderTraffic},
}

// traffic is what we do when the peer dies.
type traffic int

const (
	nothing traffic = iota
	sending
	writing
	reading
)

const oneProcess = "no second process can reach this device"

// killed kills a peer that plays role while we make traffic: what we had
// posted completes, none with success after the first failure, and our end can
// be taken down.
func (e *env) killed(role string, do traffic) {
	e.need(!e.cfg.SingleProcess, oneProcess)
	for range e.short(5) {
		c := e.start(role)
		x := e.end("a", e.dialer(), pairOpts{depth: 8})
		mine, sink := x.mem(childMemory, accRemote), x.sink(childMemory)
		inbox := x.mem(100, accLocal)
		x.postRecv(verbs.RecvWR{WRID: 0, SGEs: []verbs.SGE{inbox.sge(0, 50)}}, verbs.RecvWR{WRID: 1, SGEs: []verbs.SGE{inbox.sge(50, 50)}})
		answer, err := x.qp.Connect(e.ctx, c.addr, driver.ConnParam{PrivateData: mine.window().encode(), IRD: 2, ORD: 2})
		require.NoError(e, err)
		theirs := decodeWindow(answer.PrivateData)
		x.post(signaled(99, driver.OpSend, mine.sge(0, 10)))
		x.sq.good(99, driver.OpSend)
		wr := signaled(0, driver.OpSend, mine.sge(0, childMemory))
		switch do {
		case writing:
			wr.Opcode = driver.OpWrite
		case reading:
			wr.Opcode, wr.SGEs = driver.OpRead, []verbs.SGE{sink.sge(0, childMemory)}
		}
		wr.RemoteAddr, wr.RKey = theirs.addr, theirs.rkey
		rounds := 20 + rand.IntN(40)
		posted, completed := 0, 0
		if do != nothing {
			for posted < 8 {
				wr.WRID = uint64(posted)
				x.post(wr)
				posted++
			}
			for completed < rounds { // the queue stays full
				require.Equal(e, driver.StatusSuccess, x.sq.next().Status)
				completed++
				wr.WRID = uint64(posted)
				x.post(wr)
				posted++
			}
		} else if role != roleIdle {
			for range rounds * 10000 {
				runtime.Gosched() // the peer is at work
			}
		}
		require.NoError(e, c.kill())
		x.gone()
		x.event(driver.EventDisconnected)
		failed := false
		for completed < posted {
			wc, ok := x.flushed()
			if !ok {
				break
			}
			completed++
			if wc.Status != driver.StatusSuccess {
				failed = true
				require.Contains(e, []verbs.WCStatus{
					driver.StatusWRFlushErr, driver.StatusRetryExcErr, driver.StatusRemAccessErr, driver.StatusRemOpErr, driver.StatusRemAbortErr,
					driver.StatusGeneralErr,
				}, wc.Status)
				var wcErr *verbs.WCError
				require.ErrorAs(e, verbs.WCErr(&wc), &wcErr)
			} else if x.caps.InOrderCompletions {
				require.False(e, failed, "success after a failure")
			}
		}
		e.flushes(x, 0, 2)
		x.sq.empty()
		_, err = x.qp.PostSend([]verbs.SendWR{wr})
		require.ErrorIs(e, err, verbs.ErrQPState)
		orphans, err := x.qp.Close()
		require.NoError(e, err)
		require.Len(e, orphans, posted-completed, "requests lost or made up")
		require.NoError(e, mine.mr.Deregister())
	}
}

func peerKilledInHandshake(e *env) {
	e.need(!e.cfg.SingleProcess, oneProcess)
	for range e.short(5) {
		c := e.start(roleDeaf)
		x := e.end("a", e.dialer(), pairOpts{})
		x.postRecv(verbs.RecvWR{WRID: 0})
		connected := make(chan error, 1)
		go func() { // ends with the refusal
			_, err := x.qp.Connect(e.ctx, c.addr, driver.ConnParam{PrivateData: []byte("hello")})
			connected <- err
		}()
		for range rand.IntN(100000) {
			runtime.Gosched()
		}
		require.NoError(e, c.kill())
		err := <-connected
		require.Error(e, err)
		var op *verbs.OpError
		require.True(e, errors.As(err, &op), "%T", err)
		require.NoError(e, e.ctx.Err(), "nothing but the deadline ended the call")
		require.Equal(e, driver.QPStateErr, x.qp.State())
		e.flushes(x, 0, 1)
	}
}

// dialerKilled kills the end that dialed: before we have answered, and while it
// writes into our memory.
func dialerKilled(e *env) {
	e.need(!e.cfg.SingleProcess, oneProcess)
	l, addr := e.listen(e.acceptor())
	for i := range e.short(10) * 2 {
		c := e.start(roleDialer, addrEnv+"="+addr)
		x := e.end("b", e.acceptor(), pairOpts{})
		m := x.mem(childMemory, accRemote)
		guardFill(m.b)
		x.postRecv(verbs.RecvWR{WRID: 0})
		r, err := l.Accept(e.ctx)
		require.NoError(e, err)
		if i%2 == 0 {
			require.NoError(e, c.kill())
			// Accept may fail, or succeed and the connection be gone at once.
			if err := r.Accept(e.ctx, x.qp, driver.ConnParam{PrivateData: m.window().encode()}); err != nil {
				require.Equal(e, driver.QPStateErr, x.qp.State())
			}
		} else {
			require.NoError(e, r.Accept(e.ctx, x.qp, driver.ConnParam{PrivateData: m.window().encode()}))
			for m.peek(rand.IntN(childMemory)) != 0 {
				e.yield()
			}
			require.NoError(e, c.kill())
		}
		x.gone()
		e.flushes(x, 0, 1)
		require.NoError(e, closeQP(x.qp))
		require.NoError(e, m.mr.Deregister())
	}
}

// busyEnds is a pair with WRITEs and READs under way in both directions.
func (e *env) busyEnds(n int) (pair, map[*end]*memory) {
	e.Helper()
	p := e.pair(pairOpts{depth: 12})
	mems := map[*end]*memory{}
	for _, x := range []*end{p.a, p.b} {
		mems[x] = x.mem(3*n, accRemote)
	}
	for _, dir := range []pair{p, {p.b, p.a}} {
		mine, theirs := mems[dir.a], mems[dir.b]
		sink := dir.a.sink(n)
		for i := range uint64(6) {
			dir.a.post(
				theirs.to(signaled(2*i, driver.OpWrite, mine.sge(0, n)), n),
				theirs.to(signaled(2*i+1, driver.OpRead, sink.sge(0, n)), 2*n))
		}
	}
	return p, mems
}

// settle polls what a dead end has left and closes it.
func (x *end) settle(posted int) {
	x.Helper()
	x.gone()
	seen := 0
	for seen < posted {
		wc, ok := x.flushed()
		if !ok {
			break
		}
		require.Contains(x, []verbs.WCStatus{driver.StatusSuccess, driver.StatusWRFlushErr, driver.StatusRemAccessErr,
			driver.StatusRemOpErr, driver.StatusRetryExcErr, driver.StatusGeneralErr}, wc.Status)
		seen++
	}
	orphans, err := x.qp.Close()
	require.NoError(x, err)
	require.Len(x, orphans, posted-seen, "requests lost or made up")
}

func peerClosesUnderTraffic(e *env) {
	const n = 200_000
	for round := range e.short(60) {
		p, mems := e.busyEnds(n)
		x, y := p.a, p.b
		if round%2 == 1 {
			x, y = y, x
		}
		for range rand.IntN(5000) {
			runtime.Gosched()
		}
		_, err := y.qp.Close()
		require.NoError(e, err)
		snapshot := append([]byte(nil), mems[y].b...)
		require.NoError(e, mems[y].mr.Deregister())
		x.settle(12)
		require.NoError(e, sameBytes(mems[y].b, snapshot), "memory changed after its QP was closed")
		require.NoError(e, mems[x].mr.Deregister())
	}
}

func bothCloseUnderTraffic(e *env) {
	const n = 200_000
	for range e.short(60) {
		p, mems := e.busyEnds(n)
		closed := make(chan error, 2)
		for _, x := range []*end{p.a, p.b} {
			k := rand.IntN(3000)
			how := rand.IntN(3)
			go func() { // ends with the close
				for range k {
					runtime.Gosched()
				}
				var err error
				switch how {
				case 0:
					err = x.qp.SetError()
				case 1:
					err = x.qp.Disconnect()
				}
				if err == nil || errors.Is(err, verbs.ErrQPState) {
					_, err = x.qp.Close()
				}
				closed <- err
			}()
		}
		require.NoError(e, <-closed)
		require.NoError(e, <-closed)
		for _, m := range mems {
			require.Zero(e, m.mr.InFlight())
			require.NoError(e, m.mr.Deregister())
		}
	}
}
