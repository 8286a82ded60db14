package histogram

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestBuckets(t *testing.T) {
	for i := range Buckets - 1 {
		at := Bound(i)
		require.Equal(t, i, bucketOf(at-1), "%v", at)
		require.Equal(t, i+1, bucketOf(at), "%v", at)
	}
	require.Equal(t, 0, bucketOf(-1))
	require.Equal(t, Buckets-1, bucketOf(time.Hour))
	require.Zero(t, Bound(Buckets-1))
	require.Greater(t, Bound(Buckets-2), 30*time.Second)
}

func TestCounter(t *testing.T) {
	var c Counter
	for _, d := range []time.Duration{-time.Second, 0, time.Microsecond, 3 * time.Second, time.Hour} {
		c.Observe(d)
	}
	h := c.Snapshot()
	require.EqualValues(t, 5, h.Count)
	require.Equal(t, time.Hour+3*time.Second+time.Microsecond, h.Sum)
	require.EqualValues(t, 3, h.Buckets[0])
	require.EqualValues(t, 1, h.Buckets[Buckets-1])
	require.Zero(t, testing.AllocsPerRun(100, func() { c.Observe(time.Second) }))
}
