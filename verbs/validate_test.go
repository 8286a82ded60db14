package verbs_test

import (
	"context"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/argonaut-rdma/argonaut/verbs"
	"github.com/argonaut-rdma/argonaut/verbs/driver"
)

func TestPostSendRefuses(t *testing.T) {
	r := newRig(t, nil, verbs.Config{}, verbs.QPConfig{MaxSendWR: 4, MaxSendSGE: 3, MaxInline: 16})
	other, err := r.dev.AllocPD()
	require.NoError(t, err)
	foreign, err := other.RegMR(make([]byte, 64), verbs.AccessLocalWrite)
	require.NoError(t, err)
	readOnly, err := r.pd.RegMR(make([]byte, 64), 0)
	require.NoError(t, err)
	gone, err := r.pd.RegMR(make([]byte, 64), 0)
	require.NoError(t, err)
	require.NoError(t, gone.Deregister())
	scoped, err := r.mr.Scope(r.qp, 0, 64, verbs.AccessRemoteRead)
	require.NoError(t, err)
	big, err := r.pd.RegMR(make([]byte, 2<<20), verbs.AccessLocalWrite)
	require.NoError(t, err)

	one := func(m *verbs.MR, off uint64, n uint32) []verbs.SGE {
		return []verbs.SGE{{MR: m, Offset: off, Length: n}}
	}
	four := []verbs.SGE{{MR: r.mr}, {MR: r.mr}, {MR: r.mr}, {MR: r.mr}}
	for name, c := range map[string]struct {
		wr   verbs.SendWR
		want error
		text string
	}{
		"no MR":              {verbs.SendWR{SGEs: one(nil, 0, 1)}, verbs.ErrInvalid, "SGE 0: invalid argument: no MR"},
		"foreign PD":         {verbs.SendWR{SGEs: one(foreign, 0, 1)}, verbs.ErrInvalid, "another PD"},
		"deregistered":       {verbs.SendWR{SGEs: one(gone, 0, 1)}, verbs.ErrClosed, "deregistered"},
		"scoped key":         {verbs.SendWR{SGEs: one(scoped, 0, 1)}, verbs.ErrInvalid, "for the peer only"},
		"behind the end":     {verbs.SendWR{SGEs: one(r.mr, 4096, 1)}, verbs.ErrInvalid, "not within"},
		"across the end":     {verbs.SendWR{SGEs: one(r.mr, 4095, 2)}, verbs.ErrInvalid, "not within"},
		"offset wraps":       {verbs.SendWR{SGEs: one(r.mr, math.MaxUint64, 2)}, verbs.ErrInvalid, "not within"},
		"too many SGEs":      {verbs.SendWR{SGEs: four}, verbs.ErrInvalid, "4 SGEs, at most 3"},
		"READ SGEs":          {verbs.SendWR{Opcode: verbs.OpRead, SGEs: four[:3]}, verbs.ErrInvalid, "3 SGEs, at most 2"},
		"READ sink":          {verbs.SendWR{Opcode: verbs.OpRead, SGEs: one(readOnly, 0, 1)}, verbs.ErrInvalid, "LOCAL_WRITE"},
		"atomic length":      {verbs.SendWR{Opcode: verbs.OpFetchAdd, SGEs: one(r.mr, 0, 4)}, verbs.ErrInvalid, "8 bytes"},
		"atomic alignment":   {verbs.SendWR{Opcode: verbs.OpFetchAdd, RemoteAddr: 4, SGEs: one(r.mr, 0, 8)}, verbs.ErrInvalid, "unaligned"},
		"atomic sink":        {verbs.SendWR{Opcode: verbs.OpCompareSwap, SGEs: one(readOnly, 0, 8)}, verbs.ErrInvalid, "LOCAL_WRITE"},
		"bind":               {verbs.SendWR{Opcode: verbs.OpBindMW}, verbs.ErrInvalid, "QP.BindMW"},
		"receive opcode":     {verbs.SendWR{Opcode: verbs.OpRecv}, verbs.ErrInvalid, "not an operation of the send queue"},
		"unknown opcode":     {verbs.SendWR{Opcode: 200}, verbs.ErrInvalid, "200"},
		"unknown flag":       {verbs.SendWR{Flags: 1 << 7}, verbs.ErrInvalid, "unknown send flags"},
		"inline too long":    {verbs.SendWR{Flags: verbs.SendInline, SGEs: one(r.mr, 0, 17)}, verbs.ErrInvalid, "17 bytes inline, the QP takes 16"},
		"inline READ":        {verbs.SendWR{Opcode: verbs.OpRead, Flags: verbs.SendInline}, verbs.ErrInvalid, "inline"},
		"message too long":   {verbs.SendWR{SGEs: one(big, 0, 1<<20+1)}, verbs.ErrInvalid, "a message of 1048577 bytes"},
		"remote range wraps": {verbs.SendWR{Opcode: verbs.OpWrite, RemoteAddr: math.MaxUint64, SGEs: one(r.mr, 0, 2)}, verbs.ErrInvalid, "wraps"},
		"no such window":     {verbs.SendWR{Opcode: verbs.OpLocalInvalidate, InvalidateRKey: 7}, verbs.ErrInvalid, "no window bound"},
	} {
		t.Run(name, func(t *testing.T) {
			n, err := r.qp.PostSend([]verbs.SendWR{{WRID: 1, Flags: verbs.SendSignaled, SGEs: r.sge(8)}, c.wr})
			require.Equal(t, 1, n, "the request before it is posted")
			require.ErrorIs(t, err, c.want)
			require.ErrorContains(t, err, c.text)
			var op *verbs.OpError
			require.ErrorAs(t, err, &op)
			require.Equal(t, r.qp.QPN(), op.QPN)
			r.lq.finish(0)
			require.Len(t, r.poll(), 1)
			require.Zero(t, r.mr.InFlight())
		})
	}
	require.NoError(t, scoped.Deregister())
	for _, m := range []*verbs.MR{foreign, readOnly, big} {
		require.NoError(t, m.Deregister())
	}
	require.NoError(t, other.Close())
}

func TestPostRefusesByState(t *testing.T) {
	r := newRig(t, nil, verbs.Config{}, verbs.QPConfig{})
	qp, err := r.pd.CreateQP(verbs.QPConfig{SendCQ: r.cq})
	require.NoError(t, err)
	_, err = qp.PostSend([]verbs.SendWR{{}})
	require.ErrorIs(t, err, verbs.ErrQPState, "INIT")
	_, err = qp.PostRecv([]verbs.RecvWR{{}})
	require.NoError(t, err, "INIT")
	require.NoError(t, qp.SetError())
	_, err = qp.PostRecv([]verbs.RecvWR{{}})
	require.ErrorIs(t, err, verbs.ErrQPState, "ERR")
	_, err = qp.Connect(context.Background(), "x:1", verbs.ConnParam{})
	require.ErrorIs(t, err, verbs.ErrQPState)
	require.NoError(t, qp.Disconnect(), "it is gone")
	orphans, err := qp.Close()
	require.NoError(t, err)
	require.Len(t, orphans, 1)
	_, err = qp.PostRecv([]verbs.RecvWR{{}})
	require.ErrorIs(t, err, verbs.ErrClosed)
	_, err = qp.Query()
	require.ErrorIs(t, err, verbs.ErrClosed)
	require.NoError(t, qp.SetError(), "nothing to do")
	require.Equal(t, verbs.QPStateReset, qp.State())

	require.NoError(t, r.qp.Disconnect())
	_, err = r.qp.PostSend([]verbs.SendWR{{}})
	require.ErrorIs(t, err, verbs.ErrQPState, "disconnecting")
}

// A completion in error is the first the core hears of ERR.
func TestErrorCompletionMakesStateKnown(t *testing.T) {
	r := newRig(t, nil, verbs.Config{}, verbs.QPConfig{})
	r.send(verbs.SendWR{WRID: 5, Opcode: verbs.OpWrite, SGEs: r.sge(8)})
	require.NoError(t, r.lq.SetState(driver.QPStateErr)) // behind the core's back
	require.Equal(t, verbs.QPStateRTS, r.qp.State())
	wcs := r.poll()
	require.Equal(t, []uint64{5}, wrids(wcs), "un-signalled, but it failed")
	require.Equal(t, verbs.OpWrite, wcs[0].Opcode)
	var werr *verbs.WCError
	require.ErrorAs(t, verbs.WCErr(&wcs[0]), &werr)
	require.Equal(t, verbs.StatusWRFlushErr, werr.Status)
	require.Equal(t, verbs.QPStateErr, r.qp.State())
	_, err := r.qp.PostSend([]verbs.SendWR{{}})
	require.ErrorIs(t, err, verbs.ErrQPState)
}

func TestQueueFull(t *testing.T) {
	r := newRig(t, nil, verbs.Config{}, verbs.QPConfig{MaxSendWR: 2, MaxRecvWR: 2})
	n, err := r.qp.PostSend([]verbs.SendWR{{Flags: verbs.SendSignaled}, {Flags: verbs.SendSignaled}, {}})
	require.Equal(t, 2, n)
	require.ErrorIs(t, err, verbs.ErrQueueFull)
	r.lq.finish(0)
	_, err = r.qp.PostSend([]verbs.SendWR{{}})
	require.ErrorIs(t, err, verbs.ErrQueueFull, "not polled yet")
	require.Len(t, r.poll(), 1)
	r.send(verbs.SendWR{})
	n, err = r.qp.PostRecv(make([]verbs.RecvWR, 3))
	require.Equal(t, 2, n)
	require.ErrorIs(t, err, verbs.ErrQueueFull)
}

func TestRegMRRefuses(t *testing.T) {
	r := newRig(t, func(c *driver.Caps) { c.MaxMRSize, c.MW2, c.Atomics = 4096, true, false }, verbs.Config{}, verbs.QPConfig{})
	mem := make([]byte, 4097)
	for name, c := range map[string]struct {
		n    int
		acc  verbs.Access
		want error
	}{
		"empty":               {0, 0, verbs.ErrInvalid},
		"too large":           {4097, 0, verbs.ErrInvalid},
		"remote write alone":  {1, verbs.AccessRemoteWrite, verbs.ErrInvalid},
		"remote atomic alone": {1, verbs.AccessRemoteAtomic, verbs.ErrInvalid},
		"unknown right":       {1, 1 << 20, verbs.ErrInvalid},
		"no ODP":              {1, verbs.AccessOnDemand, verbs.ErrNotSupported},
		"no atomics":          {1, verbs.AccessRemoteAtomic | verbs.AccessLocalWrite, verbs.ErrNotSupported},
	} {
		_, err := r.pd.RegMR(mem[:c.n], c.acc)
		require.ErrorIs(t, err, c.want, name)
	}
	mrs, err := r.pd.RegMRs(context.Background(), [][]byte{mem[:10], mem[:20], nil, mem[:30]}, 0)
	require.ErrorIs(t, err, verbs.ErrInvalid)
	require.Nil(t, mrs)
	require.Equal(t, 1, r.dev.Stats().MRs, "all or nothing")
	mrs, err = r.pd.RegMRs(context.Background(), [][]byte{mem[:10], mem[:20]}, 0)
	require.NoError(t, err)
	require.EqualValues(t, 20, mrs[1].Length())
	for _, m := range mrs {
		require.NoError(t, m.Deregister())
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, err = r.pd.RegMRs(ctx, [][]byte{mem[:10]}, 0)
	require.ErrorIs(t, err, context.Canceled)
}

func TestCreateRefuses(t *testing.T) {
	r := newRig(t, nil, verbs.Config{}, verbs.QPConfig{})
	for name, c := range map[string]verbs.QPConfig{
		"no CQ":          {},
		"send depth":     {SendCQ: r.cq, MaxSendWR: 1025},
		"negative depth": {SendCQ: r.cq, MaxRecvWR: -1},
		"SGEs":           {SendCQ: r.cq, MaxSendSGE: 5},
		"inline":         {SendCQ: r.cq, MaxInline: 65},
	} {
		_, err := r.pd.CreateQP(c)
		require.ErrorIs(t, err, verbs.ErrInvalid, name)
	}
	_, err := r.dev.CreateCQ(verbs.CQConfig{})
	require.ErrorIs(t, err, verbs.ErrInvalid)
	_, err = r.pd.CreateSRQ(verbs.SRQConfig{MaxWR: 1025})
	require.ErrorIs(t, err, verbs.ErrInvalid)
	_, err = r.qp.Connect(context.Background(), "", verbs.ConnParam{PrivateData: make([]byte, 65)})
	require.ErrorIs(t, err, verbs.ErrInvalid)
}

func TestCQAdmission(t *testing.T) {
	r := newRig(t, nil, verbs.Config{}, verbs.QPConfig{})
	cq, err := r.dev.CreateCQ(verbs.CQConfig{Depth: 10})
	require.NoError(t, err)
	srq, err := r.pd.CreateSRQ(verbs.SRQConfig{MaxWR: 4})
	require.NoError(t, err)
	a, err := r.pd.CreateQP(verbs.QPConfig{SendCQ: cq, SRQ: srq, MaxSendWR: 3})
	require.NoError(t, err)
	require.Equal(t, 3, cq.Free())
	b, err := r.pd.CreateQP(verbs.QPConfig{SendCQ: cq, SRQ: srq, MaxSendWR: 3})
	require.NoError(t, err, "the SRQ counts once")
	require.Zero(t, cq.Free())
	_, err = r.pd.CreateQP(verbs.QPConfig{SendCQ: cq, SRQ: srq, MaxSendWR: 1})
	require.ErrorIs(t, err, verbs.ErrLimit)
	for _, q := range []*verbs.QP{a, b} {
		_, err = q.Close()
		require.NoError(t, err)
	}
	require.Equal(t, 10, cq.Free())
	_, err = r.pd.CreateQP(verbs.QPConfig{SendCQ: cq, MaxSendWR: 8, MaxRecvWR: 3})
	require.ErrorIs(t, err, verbs.ErrLimit)
	require.Equal(t, 10, cq.Free(), "a refusal takes nothing")
	_, err = srq.Close()
	require.NoError(t, err)
	require.NoError(t, cq.Close())

	cq, err = r.dev.CreateCQ(verbs.CQConfig{Depth: 2, AllowOverrun: true})
	require.NoError(t, err)
	q, err := r.pd.CreateQP(verbs.QPConfig{SendCQ: cq})
	require.NoError(t, err)
	_, err = q.Close()
	require.NoError(t, err)
	require.NoError(t, cq.Close())
}
