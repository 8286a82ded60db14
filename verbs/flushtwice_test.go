package verbs_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/argonaut-rdma/argonaut/verbs"
	"github.com/argonaut-rdma/argonaut/verbs/driver"
	"github.com/argonaut-rdma/argonaut/verbs/verbstest"
)

// A device that says that it may flush a request twice is taken at its word; of
// any other it is a fault.
func TestFlushedTwice(t *testing.T) {
	for _, once := range []bool{false, true} {
		s := &verbstest.Script{Poll: func(wcs []driver.WC) []driver.WC { return append(wcs, wcs...) }}
		l := newLoop(func(c *driver.Caps) { c.FlushCompletes = once })
		dev, err := verbs.NewDevice(verbstest.NewFaulty(l, s), verbs.Config{})
		require.NoError(t, err)
		pd, err := dev.AllocPD()
		require.NoError(t, err)
		cq, err := dev.CreateCQ(verbs.CQConfig{Depth: 64})
		require.NoError(t, err)
		qp, err := pd.CreateQP(verbs.QPConfig{SendCQ: cq, MaxSendWR: 8, MaxRecvWR: 8})
		require.NoError(t, err)
		_, err = qp.Connect(context.Background(), "x:1", verbs.ConnParam{})
		require.NoError(t, err)
		_, err = qp.PostSend([]verbs.SendWR{{WRID: 1, Flags: verbs.SendSignaled}, {WRID: 2, Flags: verbs.SendSignaled}})
		require.NoError(t, err)
		require.NoError(t, qp.SetError())
		wcs := make([]verbs.WC, 8)
		n, err := cq.Poll(wcs)
		require.Equal(t, []uint64{1, 2}, wrids(wcs[:n]))
		require.Equal(t, driver.StatusWRFlushErr, wcs[0].Status)
		if once {
			require.ErrorIs(t, err, verbs.ErrStale)
			require.EqualValues(t, 2, dev.Stats().StaleCompletions)
		} else {
			require.NoError(t, err)
			require.EqualValues(t, 2, dev.Stats().LateCompletions)
		}
		orphans, err := qp.Close()
		require.NoError(t, err)
		require.Empty(t, orphans)
		require.NoError(t, cq.Close())
		require.NoError(t, pd.Close())
		require.NoError(t, dev.Close())
	}
}
