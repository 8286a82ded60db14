package buffer

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// Gets that wait are counted with how long, whether they get something or not;
// all others are not.
func TestGetWaitLatency(t *testing.T) {
	bothModes(t, func(t *testing.T, mode func(*Arena) *Arena) {
		synctest.Test(t, func(t *testing.T) {
			a := mode(newArena(t, Config{Budget: 4 << 20, Reserve: -1, Classes: []int{Page, 1 << 20}}))
			q := a.Owner("q", Page)
			var count uint64
			var sum time.Duration
			expect := func(n uint64, d time.Duration) {
				t.Helper()
				synctest.Wait()
				count, sum = count+n, sum+d
				h := a.Latencies().GetWait
				require.Equal(t, count, h.Count)
				require.Equal(t, count, a.Stats().Waited)
				require.Equal(t, sum, h.Sum)
			}
			for range 100 {
				mustGet(t, a, 1, Anonymous).Release()
			}
			var held []RDMABuffer
			for range 4 {
				held = append(held, mustGet(t, a, 1<<20, Anonymous))
			}
			_, ok := a.TryGet(1, Anonymous)
			require.False(t, ok)
			expect(0, 0)

			// For memory: one buffer, and a list.
			got := make(chan RDMABuffer, 1)
			wait := func(size int, o Owner) {
				go func() { // ends when there is memory
					b, err := a.Get(context.Background(), size, o)
					require.NoError(t, err)
					got <- b
				}()
				synctest.Wait()
			}
			wait(1<<20, Anonymous)
			time.Sleep(3 * time.Second)
			held[0].Release()
			held[0] = <-got
			expect(1, 3*time.Second)
			done := make(chan struct{})
			go func() { // ends when there is memory
				defer close(done)
				l, err := a.GetList(context.Background(), 2<<20, Anonymous)
				require.NoError(t, err)
				l.Release()
			}()
			synctest.Wait()
			time.Sleep(time.Second)
			held[0].Release()
			time.Sleep(time.Second)
			held[1].Release()
			<-done
			expect(1, 2*time.Second)

			// For quota.
			b := mustGet(t, a, 1, q)
			wait(1, q)
			time.Sleep(5 * time.Second)
			b.Release()
			(<-got).Release()
			expect(1, 5*time.Second)

			// In vain.
			for range 2 {
				held = append(held, mustGet(t, a, 1<<20, Anonymous))
			}
			ctx, cancel := context.WithTimeout(t.Context(), 7*time.Second)
			defer cancel()
			_, err := a.Get(ctx, 1<<20, Anonymous)
			require.ErrorIs(t, err, context.DeadlineExceeded)
			expect(1, 7*time.Second)
			for _, b := range held[2:] {
				b.Release()
			}
		})
	})
}
