package verbs_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/argonaut-rdma/argonaut/verbs"
	"github.com/argonaut-rdma/argonaut/verbs/driver"
)

func TestSRQ(t *testing.T) {
	r := newRig(t, nil, verbs.Config{}, verbs.QPConfig{MaxRecvWR: withSRQ})
	_, err := r.qp.PostRecv([]verbs.RecvWR{{}})
	require.ErrorIs(t, err, verbs.ErrInvalid)
	ls := r.lq.attr.SRQ.(*loopSRQ)
	var wrs []verbs.RecvWR
	for i := range 20 {
		wrs = append(wrs, verbs.RecvWR{WRID: uint64(100 + i), SGEs: r.sge(8)})
	}
	n, err := r.srq.PostRecv(wrs)
	require.Equal(t, 16, n)
	require.ErrorIs(t, err, verbs.ErrQueueFull)
	require.Equal(t, 16, r.srq.References(r.mr))
	_, err = r.srq.PostRecv([]verbs.RecvWR{{SGEs: make([]verbs.SGE, 3)}})
	require.ErrorIs(t, err, verbs.ErrInvalid)

	// Entries complete in any order, of any QP.
	slices.Reverse(ls.wrs)
	for range 3 {
		r.lq.receive(driver.WC{ByteLen: 5})
	}
	wcs := r.poll()
	require.Equal(t, []uint64{115, 114, 113}, wrids(wcs))
	require.Equal(t, r.qp.QPN(), wcs[0].QPN)
	require.Equal(t, 13, r.srq.Posted())

	// A device that takes fewer than it was given.
	r.l.mu.Lock()
	r.l.refuse = 1
	r.l.mu.Unlock()
	n, err = r.srq.PostRecv(wrs[:3])
	require.Equal(t, 1, n)
	require.ErrorIs(t, err, verbs.ErrQueueFull)
	require.Equal(t, 14, r.srq.Posted())
	r.l.mu.Lock()
	r.l.refuse = -1
	r.l.mu.Unlock()

	// What a closed QP had taken comes back from its Close, polled or not.
	r.lq.receive(driver.WC{})
	r.lq.receive(driver.WC{})
	orphans, err := r.qp.Close()
	require.NoError(t, err)
	require.Equal(t, []verbs.Orphan{{112, true}, {111, true}}, orphans)
	require.Empty(t, r.poll())
	require.Equal(t, 12, r.srq.Posted())
	require.ErrorIs(t, r.mr.Deregister(), verbs.ErrBusy)
	orphans, err = r.srq.Close()
	require.NoError(t, err)
	require.Len(t, orphans, 12)
	require.NoError(t, r.mr.Deregister())

	require.ErrorIs(t, r.srq.SetLimit(1), verbs.ErrClosed)
}
