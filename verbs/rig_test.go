package verbs_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/argonaut-rdma/argonaut/verbs"
	"github.com/argonaut-rdma/argonaut/verbs/driver"
)

// rig is a connected QP on a loop device, with a region. Tests close what they
// look at; the rest is closed in order at the end.
type rig struct {
	t   testing.TB
	l   *loop
	dev *verbs.Device
	pd  *verbs.PD
	cq  *verbs.CQ
	srq *verbs.SRQ
	qp  *verbs.QP
	lq  *loopQP
	mr  *verbs.MR
}

func newRig(t testing.TB, change func(*driver.Caps), cfg verbs.Config, qc verbs.QPConfig) *rig {
	r := &rig{t: t, l: newLoop(change)}
	r.dev = r.l.open(t, cfg)
	var err error
	r.pd, err = r.dev.AllocPD()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, r.pd.Close()) })
	r.cq, err = r.dev.CreateCQ(verbs.CQConfig{Depth: 4096})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, r.cq.Close()) })
	r.mr, err = r.pd.RegMR(make([]byte, 4096), verbs.AccessLocalWrite|verbs.AccessRemoteWrite|verbs.AccessMWBind)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, r.mr.Deregister()) })
	if qc.SRQ == nil && qc.MaxRecvWR < 0 { // asks for an SRQ
		qc.MaxRecvWR = 0
		r.srq, err = r.pd.CreateSRQ(verbs.SRQConfig{MaxWR: 16, MaxSGE: 2, OnEvent: qc.OnEvent})
		require.NoError(t, err)
		t.Cleanup(func() { _, err := r.srq.Close(); require.NoError(t, err) })
		qc.SRQ = r.srq
	}
	qc.SendCQ = r.cq
	r.qp, err = r.pd.CreateQP(qc)
	require.NoError(t, err)
	t.Cleanup(func() { _, err := r.qp.Close(); require.NoError(t, err) })
	r.lq = r.l.last()
	r.connect()
	return r
}

const withSRQ = -1 // QPConfig.MaxRecvWR of newRig

func (r *rig) connect() {
	_, err := r.qp.Connect(context.Background(), "x:1", verbs.ConnParam{})
	require.NoError(r.t, err)
}

func (r *rig) sge(n uint32) []verbs.SGE { return []verbs.SGE{{MR: r.mr, Length: n}} }

func (r *rig) send(wrs ...verbs.SendWR) {
	n, err := r.qp.PostSend(wrs)
	require.NoError(r.t, err)
	require.Equal(r.t, len(wrs), n)
}

func (r *rig) poll() []verbs.WC {
	wcs := make([]verbs.WC, 64)
	n, err := r.cq.Poll(wcs)
	require.NoError(r.t, err)
	return wcs[:n]
}

func wrids(wcs []verbs.WC) (ids []uint64) {
	for _, wc := range wcs {
		ids = append(ids, wc.WRID)
	}
	return ids
}
