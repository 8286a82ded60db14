package verbstest

import (
	"github.com/stretchr/testify/require"

	"github.com/argonaut-rdma/argonaut/verbs/driver"
)

func (x *rawEnd) otherPD() driver.PD {
	x.Helper()
	pd, err := x.dev.AllocPD()
	require.NoError(x, err)
	x.later(phasePD, pd.Dealloc)
	return pd
}

// dereg deregisters early what memIn has noted for the end.
func (x *rawEnd) dereg(m rawMemory) {
	x.Helper()
	fs := x.closers[phaseMR]
	x.closers[phaseMR] = fs[:len(fs)-1] // m is the last
	require.NoError(x, m.mr.Deregister())
}

// localFaults are the statuses of work that names memory which the device may not
// touch: LOC_PROT_ERR. Those that have LOC_QP_OP_ERR for whatever they could not
// do have others, too: rxe (whose violations show on the request) for each such
// receive, and for a SEND if it does not find the key; siw for each SEND, and
// another for each receive.
func localFaults(c driver.Caps, op driver.Opcode) []driver.WCStatus {
	switch rxe := c.RemoteViolationOnWR; {
	case !c.UnsentIsLocQPOp, op == driver.OpRead:
		return []driver.WCStatus{driver.StatusLocProtErr}
	case op == driver.OpRecv && rxe, op == driver.OpSend && !rxe:
		return []driver.WCStatus{driver.StatusLocQPOpErr}
	case op == driver.OpRecv:
		return []driver.WCStatus{driver.StatusGeneralErr}
	default:
		return []driver.WCStatus{driver.StatusLocProtErr, driver.StatusLocQPOpErr}
	}
}

// rawSend sends bad memory.
func rawSend(bad func(x *rawEnd) driver.SGE) func(e *env) {
	return func(e *env) {
		a, b := e.rawPair()
		in := b.mem(200, accLocal)
		b.postRecv(driver.RecvWR{WRID: 7, SGEs: []driver.SGE{in.sge(0, 200)}})
		s := bad(a)
		a.fault([]driver.SendWR{{WRID: 1, Opcode: driver.OpSend, Flags: driver.SendSignaled, SGEs: []driver.SGE{s}}, {WRID: 2, Opcode: driver.OpSend}})
		require.NoError(e, untouched(in.b), "bytes of memory that may not be sent have arrived")
	}
}

// rawReadSink reads into bad memory.
func rawReadSink(bad func(x *rawEnd) driver.SGE) func(e *env) {
	return func(e *env) {
		a, b := e.rawPair()
		src := b.mem(200, accRead)
		fill(src.b, 1)
		s := bad(a)
		a.fault([]driver.SendWR{
			{WRID: 1, Opcode: driver.OpRead, Flags: driver.SendSignaled, SGEs: []driver.SGE{s}, RemoteAddr: src.mr.Addr(), RKey: src.mr.RKey()},
			{WRID: 2, Opcode: driver.OpSend},
		})
	}
}

// fault posts a request that the device finds wrong, and one after it. Either
// the post is refused, or the request completes with a local fault, the QP goes
// to ERR and the other is flushed.
func (x *rawEnd) fault(wrs []driver.SendWR) {
	x.Helper()
	n, err := x.qp.PostSend(wrs)
	if n == 0 {
		require.Error(x, err)
		x.Logf("refused at post: %v", err)
		return
	}
	if wrs[0].Opcode == driver.OpRead && !x.caps.InOrderCompletions {
		// The READ has gone out before its answer finds the sink wrong, and what
		// comes after it, un-signalled, too.
		wc := x.next(x.ctx, x.sq)
		if wc.WRID == 2 {
			require.Equal(x, driver.StatusWRFlushErr, wc.Status)
			wc = x.next(x.ctx, x.sq)
		}
		require.EqualValues(x, 1, wc.WRID)
		require.Contains(x, append([]driver.WCStatus{driver.StatusWRFlushErr}, localFaults(x.caps, driver.OpRead)...), wc.Status, "%v", wc.Status)
		x.errState()
		return
	}
	wc := x.next(x.ctx, x.sq)
	require.EqualValues(x, 1, wc.WRID)
	require.Contains(x, localFaults(x.caps, wrs[0].Opcode), wc.Status, "%v", wc.Status)
	x.errState()
	if n == 2 {
		wc = x.next(x.ctx, x.sq)
		require.EqualValues(x, 2, wc.WRID)
		require.Equal(x, driver.StatusWRFlushErr, wc.Status)
	}
}

func (x *rawEnd) postRecv(wrs ...driver.RecvWR) {
	x.Helper()
	n, err := x.qp.PostRecv(wrs)
	require.NoError(x, err)
	require.Equal(x, len(wrs), n)
}

// rawRecv receives into bad memory.
func rawRecv(bad func(x *rawEnd) driver.SGE) func(e *env) {
	return func(e *env) {
		a, b := e.rawPair()
		s := bad(b)
		n, err := b.qp.PostRecv([]driver.RecvWR{{WRID: 1, SGEs: []driver.SGE{s}}, {WRID: 2}})
		if n == 0 {
			require.Error(e, err)
			e.Logf("refused at post: %v", err)
			return
		}
		src := a.mem(100, 0)
		_, err = a.qp.PostSend([]driver.SendWR{{WRID: 3, Opcode: driver.OpSend, Flags: driver.SendSignaled, SGEs: []driver.SGE{src.sge(0, 100)}}})
		require.NoError(e, err)
		wc := b.next(e.ctx, b.rq)
		require.EqualValues(e, 1, wc.WRID)
		require.Contains(e, localFaults(b.caps, driver.OpRecv), wc.Status, "%v", wc.Status)
		b.errState()
		wc = b.next(e.ctx, b.rq)
		require.EqualValues(e, 2, wc.WRID)
		require.Equal(e, driver.StatusWRFlushErr, wc.Status)
		wc = a.next(e.ctx, a.sq)
		if a.caps.RemoteViolationOnWR {
			require.Equal(e, driver.StatusRemOpErr, wc.Status)
		} else {
			require.Contains(e, []driver.WCStatus{driver.StatusSuccess, driver.StatusWRFlushErr, driver.StatusGeneralErr}, wc.Status)
		}
	}
}

// rawWrap writes to a range that wraps around the end of the address space.
func rawWrap(e *env) {
	a, b := e.rawPair()
	dst, src := b.mem(100, accRemote), a.mem(100, 0)
	n, err := a.qp.PostSend([]driver.SendWR{{
		WRID: 1, Opcode: driver.OpWrite, Flags: driver.SendSignaled, SGEs: []driver.SGE{src.sge(0, 100)},
		RemoteAddr: ^uint64(0) - 49, RKey: dst.mr.RKey(),
	}})
	if n == 0 {
		require.Error(e, err)
		return
	}
	wc := a.next(e.ctx, a.sq)
	if a.caps.RemoteViolationOnWR {
		require.Equal(e, driver.StatusRemAccessErr, wc.Status)
		a.errState()
	} else {
		require.Contains(e, []driver.WCStatus{driver.StatusSuccess, driver.StatusWRFlushErr, driver.StatusRemAccessErr}, wc.Status)
		b.errState()
	}
	require.NoError(e, untouched(dst.b))
}

// rawNonsense asks the device for what makes no sense: errors, no crash.
func rawNonsense(e *env) {
	a, _ := e.rawPair()
	m := a.mem(100, accLocal)
	many := make([]driver.SGE, a.caps.MaxSGE+1)
	for i := range many {
		many[i] = m.sge(0, 1)
	}
	for name, wr := range map[string]driver.SendWR{
		"opcode": {Opcode: 99},
		"SGEs":   {Opcode: driver.OpSend, SGEs: many},
	} {
		n, err := a.qp.PostSend([]driver.SendWR{wr})
		require.Error(e, err, name)
		require.Zero(e, n, name)
	}
	n, err := a.qp.PostRecv([]driver.RecvWR{{SGEs: many}})
	require.Error(e, err)
	require.Zero(e, n)
	n, err = a.qp.PostSend(nil)
	require.NoError(e, err)
	require.Zero(e, n)
	require.Error(e, a.qp.SetState(driver.QPStateReset))
	_, err = a.pd.RegMR(nil, accLocal)
	require.Error(e, err)
}
