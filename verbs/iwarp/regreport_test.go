package iwarp

import (
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/argonaut-rdma/argonaut/verbs"
)

// A registration tells its steps, and what they cost adds up.
func TestRegistrationReport(t *testing.T) {
	for _, pin := range []bool{false, runtime.GOOS == "linux"} {
		dev, err := Open(Config{Pin: pin, MaxPages: 300})
		require.NoError(t, err)
		pd, err := dev.AllocPD()
		require.NoError(t, err)
		mem := make([]byte, 64<<10+1)
		mr, rep, err := pd.RegMRReport(mem, verbs.AccessLocalWrite)
		require.NoError(t, err)
		require.True(t, rep.Told)
		require.EqualValues(t, len(mem), rep.Length)
		require.GreaterOrEqual(t, rep.Steps.Pages, int64(17))
		require.LessOrEqual(t, rep.Steps.Pages, int64(18), "head and tail")
		sum := rep.Steps.Validate + rep.Steps.Pin + rep.Steps.Translate + rep.Steps.Key
		require.LessOrEqual(t, sum, rep.Call)
		if pin {
			require.Equal(t, rep.Steps.Pages*pageSize, rep.Steps.Pinned)
			require.Greater(t, rep.Steps.Pin, time.Duration(0))
		} else {
			require.Zero(t, rep.Steps.Pin)
		}
		require.Contains(t, rep.String(), "pages")
		_, rep, err = pd.RegMRReport(make([]byte, 4<<20), verbs.AccessLocalWrite)
		require.ErrorIs(t, err, verbs.ErrLimit)
		require.ErrorIs(t, rep.Err, verbs.ErrLimit)
		require.NoError(t, mr.Deregister())
		require.NoError(t, pd.Close())
		require.NoError(t, dev.Close())
	}
}
