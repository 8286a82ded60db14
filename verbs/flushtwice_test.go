package verbs_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/argonaut-rdma/argonaut/verbs"
	"github.com/argonaut-rdma/argonaut/verbs/driver"
)

// A device that says that it may flush a request twice is taken at its word; of
// any other it is a fault.
func TestFlushedTwice(t *testing.T) {
	for _, once := range []bool{false, true} {
		r := newRig(t, func(c *driver.Caps) { c.FlushCompletes = once }, verbs.Config{}, verbs.QPConfig{})
		r.send(verbs.SendWR{WRID: 1, Flags: verbs.SendSignaled}, verbs.SendWR{WRID: 2, Flags: verbs.SendSignaled})
		require.NoError(t, r.qp.SetError())
		q := r.lq.send()
		for _, wc := range q.wcs {
			q.add(wc)
		}
		wcs := make([]verbs.WC, 8)
		n, err := r.cq.Poll(wcs)
		require.Equal(t, []uint64{1, 2}, wrids(wcs[:n]))
		require.Equal(t, driver.StatusWRFlushErr, wcs[0].Status)
		if once {
			require.ErrorIs(t, err, verbs.ErrStale)
			require.EqualValues(t, 2, r.dev.Stats().StaleCompletions)
		} else {
			require.NoError(t, err)
			require.EqualValues(t, 2, r.dev.Stats().LateCompletions)
		}
	}
}
