package buffer

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// The buffers held longest are listed, by age, as many as are asked for; what work
// requests name is not held. Owners have the age of their oldest.
func TestOldest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newArena(t, Config{Budget: 16 << 20, Reserve: -1})
		x, y := a.Owner("x", 0), a.Owner("y", 0)
		var held []RDMABuffer
		for i := range 10 {
			held = append(held, mustGet(t, a, 1+i*Page, []Owner{x, y}[i%2]))
			time.Sleep(10 * time.Second)
		}
		synctest.Wait() // the arena has seen what time it is
		queue := mustGet(t, a, 1, x)
		queue.RetainPosted()
		queue.Release()
		held[0].RetainPosted()
		stop := a.Describe(func(yield func(RDMABuffer, string)) { yield(held[1], "the second") })
		defer stop()

		require.Empty(t, a.Oldest(0))
		all := a.Oldest(100)
		require.Len(t, all, 9)
		for i, h := range all {
			b := held[i+1]
			require.Equal(t, []string{"y", "x"}[i%2], h.Owner)
			require.Equal(t, h.Owner, b.Owner())
			require.InDelta(t, 90-10*i, h.Age.Seconds(), 1.5)
			require.Equal(t, 1, h.Refs)
			require.Zero(t, h.Posted)
			require.GreaterOrEqual(t, h.Len, uint64(b.Len()))
		}
		require.Equal(t, "the second", all[0].What)
		require.Empty(t, all[1].What)
		require.Equal(t, all[:4], a.Oldest(4))

		o := a.Stats().Owners
		require.Equal(t, 6, o[x].Buffers)
		require.Equal(t, all[1].Age, o[x].Oldest, "the first is posted")
		require.Equal(t, 5, o[y].Buffers)
		require.Equal(t, all[0].Age, o[y].Oldest)
		queue.ReleasePosted()
		held[0].ReleasePosted()
		require.Greater(t, a.Stats().Owners[x].Oldest, all[1].Age)
		for _, b := range held {
			b.Release()
		}
		require.Empty(t, a.Oldest(100))
		require.Zero(t, a.Stats().Owners[x].Oldest)
	})
}
