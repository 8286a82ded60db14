package buffer

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
)

func TestQuota(t *testing.T) {
	bothModes(t, func(t *testing.T, mode func(*Arena) *Arena) {
		synctest.Test(t, func(t *testing.T) {
			a := mode(newArena(t, Config{Budget: 16 << 20}))
			q := a.Owner("q", 100*Page)
			require.Equal(t, q, a.Owner("q", 0))
			require.Equal(t, "q", a.OwnerName(q))
			ctx := context.Background()
			_, err := a.Get(ctx, 101*Page, q)
			require.ErrorIs(t, err, ErrQuota)
			require.ErrorContains(t, err, `524288 bytes can never fit the quota of 409600 bytes of owner "q": raise it with Arena.Owner`)
			var bs []RDMABuffer
			for range 100 {
				bs = append(bs, mustGet(t, a, 1, q))
			}
			_, ok := a.TryGet(1, q)
			require.False(t, ok)
			mustGet(t, a, 1, Anonymous).Release() // others are not concerned
			got := make(chan RDMABuffer, 1)
			go func() {
				b, err := a.Get(ctx, 1, q)
				require.NoError(t, err)
				got <- b
			}()
			synctest.Wait()
			mustGet(t, a, 1, Anonymous).Release()
			require.Empty(t, got)
			check(t, a)
			bs[0].Release()
			bs[0] = <-got
			// A larger quota serves at once.
			go func() {
				b, err := a.Get(ctx, 1, q)
				require.NoError(t, err)
				got <- b
			}()
			synctest.Wait()
			require.Empty(t, got)
			a.Owner("q", 101*Page)
			bs = append(bs, <-got)
			a.Owner("q", 50*Page) // and a smaller one takes effect as buffers come back
			for range 51 {
				bs[0].Release()
				bs = bs[1:]
				_, ok = a.TryGet(1, q)
				require.False(t, ok)
			}
			bs[0].Release()
			bs[0] = mustGet(t, a, 1, q)
			// Who can never be served any more is told.
			fail := make(chan error, 1)
			go func() { _, err := a.Get(ctx, 50*Page, q); fail <- err }()
			synctest.Wait()
			a.Owner("q", 10*Page)
			require.ErrorIs(t, <-fail, ErrQuota)
			for _, b := range bs {
				b.Release()
			}
			st := a.Stats()
			require.Equal(t, OwnerStats{Name: "q", Quota: 10 * Page}, st.Owners[q])
		})
	})
}

// A Get that has charged a lease and then finds no slot puts the charge back where
// who began to wait meanwhile does not look again: so it serves him.
func TestChargePutBackServesWaiters(t *testing.T) {
	bothModes(t, func(t *testing.T, mode func(*Arena) *Arena) {
		synctest.Test(t, func(t *testing.T) {
			a := mode(newArena(t, Config{Budget: 4 << 20}))
			q := a.Owner("q", 2*Page)
			held := mustGet(t, a, 1, q) // and a page is leased
			o := a.owner(q)
			sh := uint(0)
			for !o.charge(sh, Page) { // as a Get that has found the gate open
				sh++
			}
			got := make(chan RDMABuffer, 1)
			go func() {
				b, err := a.Get(context.Background(), 1, q)
				require.NoError(t, err)
				got <- b
			}()
			synctest.Wait()
			require.Equal(t, 1, a.Stats().Waiting)
			o.leases[sh].left.Add(Page) // its slot was taken by another
			require.True(t, a.getStacked(1, 0, q, o, true, sh).IsZero(), "the caches are empty")
			synctest.Wait()
			require.Zero(t, a.Stats().Waiting)
			require.Len(t, got, 1)
			releaseAll([]RDMABuffer{held, <-got})
		})
	})
}

func TestReserveIsForControl(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newArena(t, Config{Budget: 4 << 20, Reserve: 1 << 20})
		require.EqualValues(t, 1<<20, a.Stats().Reserve)
		var held []RDMABuffer
		for range 3 {
			held = append(held, mustGet(t, a, 1<<20, Anonymous))
		}
		_, ok := a.TryGet(1, Anonymous)
		require.False(t, ok)
		ctx := context.Background()
		waited := make(chan RDMABuffer, 1)
		go func() {
			b, err := a.Get(ctx, 1, Anonymous)
			require.NoError(t, err)
			waited <- b
		}()
		synctest.Wait()
		for range 3 { // control traffic goes on though somebody waits, and does not serve him from the reserve
			var hb []RDMABuffer
			for range 256 {
				b, err := a.Get(ctx, 1, Control)
				require.NoError(t, err)
				hb = append(hb, b)
			}
			_, ok = a.TryGet(1, Control)
			require.False(t, ok)
			check(t, a)
			for _, b := range hb {
				b.Release()
			}
			require.Empty(t, waited)
		}
		// When the reserve is used up, control waits for either.
		full := mustGet(t, a, 1<<20, Control)
		go func() {
			b, err := a.Get(ctx, 1, Control)
			require.NoError(t, err)
			b.Release()
		}()
		synctest.Wait()
		require.Equal(t, 2, a.Stats().Waiting)
		full.Release()
		synctest.Wait()
		require.Equal(t, 1, a.Stats().Waiting)
		held[0].Release()
		held[0] = <-waited
		for _, b := range held {
			b.Release()
		}
	})
}

func TestFailWhenFull(t *testing.T) {
	a := newArena(t, Config{Budget: 1 << 20, Reserve: -1, FailWhenFull: true})
	q := a.Owner("q", Page)
	ctx := context.Background()
	b, err := a.Get(ctx, 1, q)
	require.NoError(t, err)
	_, err = a.Get(ctx, 1, q)
	require.ErrorIs(t, err, ErrQuota)
	require.ErrorContains(t, err, `owner "q" may hold 4096 bytes and wants 4096 more: raise it with Arena.Owner, or release sooner`)
	_, err = a.GetList(ctx, 1<<20, Anonymous)
	require.ErrorIs(t, err, ErrExhausted)
	require.ErrorContains(t, err, "are not free of 1048576 (budget 1048576)")
	require.EqualValues(t, 2, a.Stats().Exhausted)
	b.Release()
}
