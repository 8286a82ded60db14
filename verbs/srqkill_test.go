package verbs_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/argonaut-rdma/argonaut/verbs"
)

// Connections to an SRQ that die in the middle of messages: every entry comes
// back while the SRQ lives on, polled or from the QP's Close.
func TestSRQEntriesOfDyingConnections(t *testing.T) {
	w := newWorld(t, nil)
	b, err := w.end(w.devs[1], true)
	require.NoError(t, err)
	big, source := make([]byte, 4<<20), make([]byte, 4<<20)
	mr, err := b.pd.RegMR(big, verbs.AccessLocalWrite)
	require.NoError(t, err)
	w.later(mr.Deregister)
	_, err = b.qp.Close()
	require.NoError(t, err)

	const entries = 8
	posted := map[uint64]bool{}
	post := func() {
		for i := uint64(0); len(posted) < entries; i++ {
			if !posted[i] {
				n, err := b.srq.PostRecv([]verbs.RecvWR{{WRID: i, SGEs: []verbs.SGE{{MR: mr, Length: uint32(len(big))}}}})
				require.NoError(t, err)
				require.Equal(t, 1, n)
				posted[i] = true
			}
		}
	}
	back := func(id uint64) {
		require.True(t, posted[id])
		delete(posted, id)
	}
	for round := range 40 {
		post()
		a, err := w.end(w.devs[0], false)
		require.NoError(t, err)
		src, err := a.pd.RegMR(source, 0)
		require.NoError(t, err)
		w.later(func() error {
			if _, err := a.qp.Close(); err != nil {
				return err
			}
			return src.Deregister()
		})
		b.qp, err = b.pd.CreateQP(verbs.QPConfig{SendCQ: b.cq, SRQ: b.srq, MaxSendWR: 8})
		require.NoError(t, err)
		require.NoError(t, w.connect(a, b))
		for i := range 4 {
			require.NoError(t, a.send(verbs.SendWR{WRID: uint64(i), SGEs: []verbs.SGE{{MR: src, Length: uint32(len(big))}}}))
		}
		if round%2 == 0 { // the one side goes, or the other
			_, err = a.qp.Close()
			require.NoError(t, err)
		}
		wcs := make([]verbs.WC, 2)
		n, err := b.cq.Poll(wcs)
		require.NoError(t, err)
		for _, wc := range wcs[:n] {
			back(wc.WRID)
		}
		orphans, err := b.qp.Close()
		require.NoError(t, err)
		for _, o := range orphans {
			require.True(t, o.Recv)
			back(o.WRID)
		}
		n, err = b.cq.Poll(wcs)
		require.NoError(t, err)
		require.Zero(t, n)
		require.Equal(t, len(posted), b.srq.Posted(), "round %d", round)
		require.Equal(t, len(posted), mr.InFlight())
	}
	// The device has them all: a message more than entries would end the
	// connection.
	post()
	a, err := w.end(w.devs[0], false)
	require.NoError(t, err)
	b.qp, err = b.pd.CreateQP(verbs.QPConfig{SendCQ: b.cq, SRQ: b.srq, MaxSendWR: 8})
	require.NoError(t, err)
	require.NoError(t, w.connect(a, b))
	for range entries {
		require.NoError(t, a.send(verbs.SendWR{SGEs: a.sge(0, 1)}))
	}
	wcs := make([]verbs.WC, 1)
	require.Eventually(t, func() bool {
		n, err := b.cq.Poll(wcs)
		require.NoError(t, err)
		if n == 1 {
			require.Equal(t, verbs.StatusSuccess, wcs[0].Status)
			back(wcs[0].WRID)
		}
		return len(posted) == 0
	}, 10*time.Second, time.Microsecond)
	require.Zero(t, b.srq.Posted())
}
