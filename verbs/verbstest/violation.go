package verbstest

import (
	"context"

	"github.com/stretchr/testify/require"

	"github.com/argonaut-rdma/argonaut/verbs"
	"github.com/argonaut-rdma/argonaut/verbs/driver"
)

// Remote violations have two columns of expectations. Where
// Caps.RemoteViolationOnWR is set (InfiniBand, RoCE) the work request completes
// with the status of the violation, and what was posted after it is flushed.
// Elsewhere (iWARP) a WRITE or SEND has completed when it was handed to the
// transport: the connection ends, at both ends, and nothing tells the request.
// On all devices: no byte moves outside of what the key gives access to, nor
// inside, except that iWARP has placed the segments before the one that does not
// fit; and the receives of the target are flushed.

var violationTests = func() (tests []subtest) {
	for _, op := range []verbs.Opcode{driver.OpWrite, driver.OpRead} {
		for _, v := range violations {
			name := map[verbs.Opcode]string{driver.OpWrite: "Write", driver.OpRead: "Read"}[op] + v.name
			tests = append(tests, subtest{name, func(e *env) { violate(e, op, v) }})
		}
	}
	return append(tests,
		subtest{"ReceiveTooSmall", receiveTooSmall},
		subtest{"NoReceivePosted", noReceivePosted},
		subtest{"ReceiverNotReadyForEver", receiverNotReadyForEver},
	)
}()

// violation is a bad remote address or key.
type violation struct {
	name string
	// aim returns key and address for an access of n bytes. good has the right
	// that op needs.
	aim   func(t *target, op verbs.Opcode, n int) (rkey uint32, addr uint64)
	event bool // the target gets EventQPAccessErr (iWARP)
	fits  bool // the first segments of a WRITE may
}

// target is the memory of the violated end.
type target struct {
	*env
	b     *end
	good  *memory // targetSize bytes with all remote rights
	all   []byte  // these and what is around them
	stale uint32  // key of a region that is gone
	where uint64  // its address
	// release gives up what keeps the QP of b from being closed. May be nil.
	release func() error
}

const targetSize = 8192

var violations = []violation{
	{"UnknownKey", func(t *target, _ verbs.Opcode, _ int) (uint32, uint64) {
		return t.good.mr.RKey() ^ 0xa5a5a500, t.good.addr(0)
	}, false, false},
	{"StaleKey", func(t *target, _ verbs.Opcode, _ int) (uint32, uint64) { return t.stale, t.where }, false, false},
	{"WithoutRight", func(t *target, op verbs.Opcode, _ int) (uint32, uint64) {
		acc := accWrite
		if op == driver.OpWrite {
			acc = accRead | accLocal
		}
		m := t.b.mem(targetSize, acc)
		guardFill(m.b)
		t.Cleanup(func() { require.NoError(t, untouched(m.b)) })
		return m.mr.RKey(), m.addr(0)
	}, true, false},
	{"LocalKey", func(t *target, _ verbs.Opcode, _ int) (uint32, uint64) {
		m := t.b.mem(targetSize, accLocal)
		guardFill(m.b)
		t.Cleanup(func() { require.NoError(t, untouched(m.b)) })
		return m.mr.LKey(), m.addr(0)
	}, false, false},
	{"OfOtherPD", func(t *target, _ verbs.Opcode, _ int) (uint32, uint64) {
		m := t.reg(t.allocPD(t.b.dev), targetSize, accRemote)
		guardFill(m.b)
		t.Cleanup(func() { require.NoError(t, untouched(m.b)) })
		return m.mr.RKey(), m.addr(0)
	}, false, false},
	{"BeforeStart", func(t *target, _ verbs.Opcode, n int) (uint32, uint64) {
		return t.good.mr.RKey(), t.good.addr(0) - uint64(n)
	}, true, false},
	{"AcrossStart", func(t *target, _ verbs.Opcode, _ int) (uint32, uint64) {
		return t.good.mr.RKey(), t.good.addr(0) - 1
	}, true, false},
	{"AcrossEnd", func(t *target, _ verbs.Opcode, n int) (uint32, uint64) {
		return t.good.mr.RKey(), t.good.addr(targetSize-n) + 1
	}, true, true},
	{"PastEnd", func(t *target, _ verbs.Opcode, _ int) (uint32, uint64) {
		return t.good.mr.RKey(), t.good.addr(0) + targetSize
	}, true, false},
}

// victims is a pair whose accepting end has a target.
func (e *env) victims(o pairOpts) (pair, *target) {
	e.Helper()
	t := &target{env: e}
	o.before = func(_, b *end) {
		// Registered and gone before anything is connected: devices without a
		// barrier refuse it later.
		mr, err := b.pd.RegMR(make([]byte, targetSize), accRemote)
		require.NoError(e, err)
		t.stale, t.where = mr.RKey(), mr.Addr()
		require.NoError(e, mr.Deregister())
		t.all = make([]byte, 3*targetSize)
		guardFill(t.all)
		t.b, t.good = b, e.regBytes(b.pd, t.all[targetSize:2*targetSize:2*targetSize], accRemote)
	}
	return e.pair(o), t
}

// violate does what v says with op, once in one segment and once in many.
func violate(e *env, op verbs.Opcode, v violation) {
	if op == driver.OpRead && (v.name == "WithoutRight" || v.name == "LocalKey") {
		e.need(e.acceptor().Caps().RemoteReadChecked, "the device lets a peer READ without the right")
	}
	for _, n := range []int{24, targetSize - 8} {
		p, t := e.victims(pairOpts{})
		rkey, addr := v.aim(t, op, n)
		src, sink := p.a.mem(n, 0), p.a.sink(n)
		fill(src.b, 1)
		guardFill(sink.b)
		wr := verbs.SendWR{WRID: 1, Opcode: op, Flags: driver.SendSignaled, SGEs: []verbs.SGE{src.sge(0, n)}, RemoteAddr: addr, RKey: rkey}
		if op == driver.OpRead {
			wr.SGEs = []verbs.SGE{sink.sge(0, n)}
		}
		p.violated(t, wr, driver.StatusRemAccessErr, v.event)
		require.NoError(e, untouched(t.all[:targetSize]), "memory before the target changed")
		require.NoError(e, untouched(t.all[2*targetSize:]), "memory behind the target changed")
		if op == driver.OpRead || !v.fits || p.a.caps.Transport != driver.TransportIWARP {
			require.NoError(e, untouched(t.good.b), "memory of the target changed")
		}
		require.NoError(e, untouched(sink.b), "a refused READ has brought something")
	}
}

// violated posts wr, which violates t, and checks what both ends see of it.
func (p pair) violated(t *target, wr verbs.SendWR, status verbs.WCStatus, event bool) {
	e := p.a.env
	e.Helper()
	inbox := p.b.mem(64, accLocal)
	guardFill(inbox.b)
	p.b.postRecv(
		verbs.RecvWR{WRID: 0, SGEs: []verbs.SGE{inbox.sge(0, 32)}}, verbs.RecvWR{WRID: 1, SGEs: []verbs.SGE{inbox.sge(32, 32)}})
	after := p.a.mem(16, 0)
	p.a.post(wr)
	// One that comes after: it must not arrive. The end of the connection may
	// be known before it is posted.
	n, err := p.a.qp.PostSend([]verbs.SendWR{signaled(2, driver.OpSend, after.sge(0, 16))})
	if n == 0 {
		require.ErrorIs(e, err, verbs.ErrQPState)
	}
	ended := p.ending(n)
	for _, wc := range ended {
		switch success := !p.a.caps.RemoteViolationOnWR && wr.Opcode != driver.OpRead; {
		case wc.WRID == 1 && p.a.caps.RemoteViolationOnWR:
			require.Equal(e, status, wc.Status)
		case wc.WRID == 1 && p.a.caps.InOrderCompletions && wr.Opcode != driver.OpWrite:
			require.Equal(e, status, wc.Status) // the Terminate message says it
		case wc.WRID == 1 && success:
			require.Contains(e, p.a.cutOff(driver.StatusSuccess, driver.StatusWRFlushErr), wc.Status)
		case wc.WRID == 1:
			require.Contains(e, p.a.cutOff(driver.StatusWRFlushErr), wc.Status)
		case success || !p.a.caps.RemoteViolationOnWR && !p.a.caps.InOrderCompletions:
			require.Contains(e, p.a.cutOff(driver.StatusSuccess, driver.StatusWRFlushErr), wc.Status)
		default:
			require.Equal(e, driver.StatusWRFlushErr, wc.Status)
		}
	}
	if p.a.caps.RemoteViolationOnWR {
		// The connection manager knows nothing of it; the end that failed goes.
		_, err := p.a.qp.Close()
		require.NoError(e, err)
	} else {
		p.a.gone()
		if event {
			p.b.violationEvent(wr.Opcode)
		}
	}
	p.b.gone()
	if wr.Opcode == driver.OpRead && !p.b.caps.InOrderCompletions {
		// Such a device answers READs beside what comes after them: that may
		// have arrived.
		p.b.rq.take(2)
	} else {
		e.flushes(p.b, 0, 2)
		require.NoError(e, untouched(inbox.b))
	}
	if t.release != nil {
		require.NoError(e, t.release())
	}
	for _, x := range []*end{p.a, p.b} {
		orphans, err := x.qp.Close()
		require.NoError(e, err)
		x.onlyItsEvents()
		if x == p.a && !x.caps.RemoteViolationOnWR {
			require.Len(e, orphans, 1+n-len(ended), "requests lost or made up")
		}
	}
}

// cutOff is the statuses that a request may have when the connection ends under
// it: these, and that it was not sent any more where the device says so.
func (x *end) cutOff(s ...verbs.WCStatus) []verbs.WCStatus {
	if x.caps.UnsentIsLocQPOp {
		s = append(s, driver.StatusGeneralErr)
	}
	return s
}

// onlyItsEvents checks what events there have been at x, whose QP is closed, of a
// violation that the work request tells: InfiniBand has two of its own for the
// target, and those in software raise none.
func (x *end) onlyItsEvents() {
	x.Helper()
	if !x.caps.RemoteViolationOnWR {
		return
	}
	allowed := []driver.EventType{driver.EventCommEst, driver.EventDisconnected}
	if !x.caps.UnsentIsLocQPOp {
		allowed = append(allowed, driver.EventQPAccessErr, driver.EventQPReqErr)
	}
	for len(x.events) > 0 {
		require.Contains(x, allowed, (<-x.events).Type, "at %s", x.name)
	}
}

// violationEvent waits for the event that tells the target of a violation. That of
// a READ may be found when the answer is sent, as an invalid request.
func (x *end) violationEvent(op verbs.Opcode) {
	x.Helper()
	for {
		select {
		case ev := <-x.events:
			if ev.Type == driver.EventQPAccessErr || op == driver.OpRead && ev.Type == driver.EventQPReqErr {
				return
			}
		case <-x.ctx.Done():
			x.Fatalf("no event of the violation at %s", x.name)
		}
	}
}

// ending returns the completions of the offending request, 1, and of the n that
// were posted behind it, which count from 2; where a device completes nothing
// that is posted after an error, those that it completed before the end of the
// connection was known.
func (p pair) ending(n int) (wcs []verbs.WC) {
	e := p.a.env
	e.Helper()
	ctx := e.ctx
	if !p.a.caps.ErrPostCompletesSQ {
		c, cancel := context.WithCancel(ctx)
		defer cancel()
		go func() { // ends with ending
			select {
			case <-p.a.qp.Disconnected():
				cancel()
			case <-c.Done():
			}
		}()
		ctx = c
	}
	for range n + 1 {
		wc, err := p.a.sq.wait(ctx)
		if err != nil {
			require.NoError(e, e.ctx.Err(), "no completion came")
			var ok bool
			if wc, ok = p.a.soon(); !ok {
				require.True(e, len(wcs) > 0 || !p.a.caps.FlushCompletes, "the offending request did not complete")
				break
			}
		}
		if p.a.caps.InOrderCompletions {
			require.EqualValues(e, 1+len(wcs), wc.WRID)
		}
		wcs = append(wcs, wc)
	}
	return wcs
}

// receiveTooSmall sends more than the receive has room for.
func receiveTooSmall(e *env) {
	for _, n := range []int{2, 100_000} {
		p := e.pair(pairOpts{})
		src, dst := p.a.mem(n, 0), p.b.mem(n, accLocal)
		guardFill(dst.b)
		p.b.postRecv(verbs.RecvWR{WRID: 0, SGEs: []verbs.SGE{dst.sge(0, n-1)}}, verbs.RecvWR{WRID: 1})
		p.a.post(signaled(1, driver.OpSend, src.sge(0, n)))
		wc := p.b.rq.next()
		require.EqualValues(e, 0, wc.WRID)
		inexact := p.b.caps.UnsentIsLocQPOp // rxe calls the receive malformed, and says so to the sender, too
		if inexact {
			require.Contains(e, []verbs.WCStatus{driver.StatusLocLenErr, driver.StatusLocQPOpErr}, wc.Status)
		} else {
			require.Equal(e, driver.StatusLocLenErr, wc.Status)
		}
		require.NoError(e, untouched(dst.b[n-1:]))
		wc = p.a.sq.next()
		if p.a.caps.RemoteViolationOnWR {
			want := driver.StatusRemInvReqErr
			if inexact {
				want = driver.StatusRemOpErr
			}
			require.Equal(e, want, wc.Status)
			_, err := p.a.qp.Close()
			require.NoError(e, err)
		} else {
			require.Contains(e, []verbs.WCStatus{driver.StatusSuccess, driver.StatusWRFlushErr, driver.StatusRemInvReqErr}, wc.Status)
			p.a.gone()
		}
		e.flushes(p.b, 1, 2)
		p.b.gone()
	}
}

// noReceivePosted sends where nothing is posted: with receiver-not-ready
// retries the message waits, without them the connection ends.
func noReceivePosted(e *env) {
	p := e.pair(pairOpts{param: driver.ConnParam{RNRRetry: 6}})
	src, dst := p.a.mem(100, 0), p.b.mem(100, accLocal)
	fill(src.b, 4)
	p.a.post(signaled(1, driver.OpSend, src.sge(0, 100)))
	if p.b.caps.RNRRetry {
		p.b.postRecv(verbs.RecvWR{WRID: 2, SGEs: []verbs.SGE{dst.sge(0, 100)}})
		p.b.rq.good(2, driver.OpRecv)
		p.a.sq.good(1, driver.OpSend)
		require.NoError(e, isPattern(dst.b, 4))
		return
	}
	p.a.gone()
	p.b.gone()
	want := []verbs.WCStatus{driver.StatusSuccess, driver.StatusWRFlushErr}
	if p.a.caps.UnsentIsLocQPOp { // the connection ended before it was on its way
		want = append(want, driver.StatusGeneralErr)
	}
	require.Contains(e, want, p.a.sq.next().Status)
	p.b.rq.empty()
}

func receiverNotReadyForEver(e *env) {
	e.need(e.caps().RNRRetry, "the device has no receiver-not-ready retries")
	p := e.pair(pairOpts{param: driver.ConnParam{RNRRetry: 1}})
	p.a.post(signaled(1, driver.OpSend), signaled(2, driver.OpSend))
	require.Equal(e, driver.StatusRNRRetryExcErr, p.a.sq.next().Status)
	require.Equal(e, driver.StatusWRFlushErr, p.a.sq.next().Status)
}
