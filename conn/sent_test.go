package conn

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Message.Sent is called once for every message that was taken, however its
// payload has travelled, and once for those that never left.
func TestSent(t *testing.T) {
	each(t, func(t *testing.T, cfg nodeConfig) {
		p := newPair(t, cfg, cfg)
		sizes := []int{0, 10, 1 << 10, 5000, 40_000, 300_000}
		calls := make([]atomic.Int32, len(sizes))
		for i, size := range sizes {
			m := Message{Head: []byte(fmt.Sprint(i)), Sent: func() { calls[i].Add(1) }}
			var data []byte
			if size > 0 {
				m.Payload, data = p.a.list(size)
			}
			require.NoError(t, p.ab.Send(t.Context(), m))
			p.b.expect(p.ba, fmt.Sprint(i), data)
		}
		for i := range sizes {
			require.Eventually(t, func() bool { return calls[i].Load() > 0 }, wait, time.Millisecond, "%d bytes", sizes[i])
		}
		p.a.idle(0)

		// The receiver stops: what is accepted from here on leaves only in part.
		var accepted, done atomic.Int32
		parked := nodeConfig{Config: cfg.Config}
		parked.Admit = func(*Conn, []byte, int64) bool { return false }
		q := newPair(t, cfg, parked)
		for range 100 {
			m := Message{Head: []byte("x"), Sent: func() { done.Add(1) }}
			m.Payload, _ = q.a.list(100_000)
			ok, err := q.ab.TrySend(m)
			require.NoError(t, err)
			if !ok {
				m.Payload.Release()
				break
			}
			accepted.Add(1)
		}
		require.NotZero(t, accepted.Load())
		require.NoError(t, q.ab.Close())
		get(t, q.ab.Done())
		require.Equal(t, accepted.Load(), done.Load())
		for i := range sizes {
			require.EqualValues(t, 1, calls[i].Load(), "%d bytes", sizes[i])
		}
	})
}
