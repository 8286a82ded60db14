package messenger

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestHistogramBuckets(t *testing.T) {
	for i := range HistogramBuckets - 1 {
		at := HistogramBound(i)
		require.Equal(t, i, bucketOf(at-1), "%v", at)
		require.Equal(t, i+1, bucketOf(at), "%v", at)
	}
	require.Equal(t, 0, bucketOf(-1))
	require.Equal(t, HistogramBuckets-1, bucketOf(time.Hour))
	require.Zero(t, HistogramBound(HistogramBuckets-1))
	require.Greater(t, HistogramBound(HistogramBuckets-2), 30*time.Second)
	if !checkedBuild {
		l := &latencies{base: time.Now()}
		require.Zero(t, testing.AllocsPerRun(100, func() { l.call.observe(l.now()) }))
	}
}
