package buffer

import (
	"context"
	"math/rand/v2"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
)

func TestWaitersAreServedInOrder(t *testing.T) {
	bothModes(t, func(t *testing.T, mode func(*Arena) *Arena) {
		synctest.Test(t, func(t *testing.T) {
			a := mode(newArena(t, Config{Budget: 4 << 20, Reserve: -1, Classes: []int{Page, 1 << 20}}))
			var held []RDMABuffer
			for range 4 {
				held = append(held, mustGet(t, a, 1<<20, Anonymous))
			}
			var order []int
			var got []RDMABuffer
			for i := range 8 {
				go func() {
					b, err := a.Get(context.Background(), 1<<20, Anonymous)
					require.NoError(t, err)
					order = append(order, i)
					got = append(got, b)
				}()
				synctest.Wait()
			}
			require.Empty(t, order)
			require.Equal(t, 8, a.Stats().Waiting)
			_, ok := a.TryGet(1<<20, Anonymous)
			require.False(t, ok)
			for i := range 8 {
				if i < 4 {
					held[i].Release()
				} else {
					got[i-4].Release()
				}
				if i%2 == 0 { // nobody may overtake those who wait
					_, ok := a.TryGet(1<<20, Anonymous)
					require.False(t, ok)
				}
				synctest.Wait()
				check(t, a)
			}
			require.Equal(t, []int{0, 1, 2, 3, 4, 5, 6, 7}, order)
			require.EqualValues(t, 8, a.Stats().Waited)
			for _, b := range got[4:] {
				b.Release()
			}
		})
	})
}

// A slot that another core has cached serves a waiter.
func TestCachedSlotsServeWaiters(t *testing.T) {
	bothModes(t, func(t *testing.T, mode func(*Arena) *Arena) {
		a := mode(newArena(t, Config{Budget: 1 << 20, Reserve: -1, Classes: []int{Page, 1 << 20}}))
		b := mustGet(t, a, 1, Anonymous)
		b.Release()
		require.Positive(t, a.Stats().Classes[0].Cached)
		b = mustGet(t, a, 1<<20, Anonymous)
		require.Zero(t, a.Stats().Classes[0].Cached)
		b.Release()
	})
}

// While somebody waits for a whole chunk, a chunk of small buffers is not used
// again, so that it becomes free though small ones are asked for all the time.
func TestLargeIsNotStarvedBySmall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newArena(t, Config{Budget: 4 << 20, Reserve: -1, Classes: []int{64 << 10, 1 << 20}})
		ctx := context.Background()
		var small []RDMABuffer
		for range 64 {
			small = append(small, mustGet(t, a, 64<<10, Anonymous))
		}
		done := false
		var large RDMABuffer
		go func() {
			var err error
			large, err = a.Get(ctx, 1<<20, Anonymous)
			require.NoError(t, err)
			done = true
		}()
		synctest.Wait()
		rnd := rand.New(rand.NewPCG(1, 2))
		steps := 0
		for ; !done; steps++ {
			require.Less(t, steps, 1000, "the large one starves")
			// 60 are in use: whatever comes back is asked for again.
			i := rnd.IntN(len(small))
			small[i].Release()
			small[i] = small[len(small)-1]
			small = small[:len(small)-1]
			for len(small) < 44 {
				b, ok := a.TryGet(64<<10, Anonymous)
				if !ok {
					break
				}
				small = append(small, b)
			}
			check(t, a)
			synctest.Wait()
		}
		t.Logf("served after %d releases", steps)
		large.Release()
		for _, b := range small {
			b.Release()
		}
	})
}

func TestListsDoNotBlockEachOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newArena(t, Config{Budget: 10 << 20, Reserve: -1})
		var held []RDMABuffer
		for range 10 {
			held = append(held, mustGet(t, a, 1<<20, Anonymous))
		}
		var order []int
		for i := range 4 {
			go func() { // ends when it has got its list and released it
				l, err := a.GetList(context.Background(), 8<<20+int64(i)*Page, Anonymous)
				require.NoError(t, err)
				order = append(order, i)
				l.Release()
			}()
			synctest.Wait()
		}
		for i, b := range held {
			b.Release()
			synctest.Wait()
			check(t, a)
			require.Equal(t, i >= 7, len(order) > 0)
		}
		require.Equal(t, []int{0, 1, 2, 3}, order)
	})
}

func TestCancelLosesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newArena(t, Config{Budget: 8 << 20, Reserve: -1})
		q := a.Owner("q", 4<<20)
		ctx, cancel := context.WithCancel(context.Background())
		hold, ok := a.TryGetList(7<<20, Anonymous)
		require.True(t, ok)
		before := a.Account()
		errs := make(chan error, 3)
		result := func(release func(), err error) {
			// The end of one wait may serve another whose ctx has ended too.
			if err == nil {
				release()
				err = context.Canceled
			}
			errs <- err
		}
		go func() { l, err := a.GetList(ctx, 3<<20, q); result(l.Release, err) }() // gathers
		synctest.Wait()
		go func() { b, err := a.Get(ctx, 1<<20, q); result(b.Release, err) }()
		go func() { l, err := a.GetList(ctx, 2<<20, q); result(l.Release, err) }() // waits for quota
		synctest.Wait()
		require.Equal(t, 3, a.Stats().Waiting)
		check(t, a)
		cancel()
		for range 3 {
			require.ErrorIs(t, <-errs, context.Canceled)
		}
		check(t, a)
		require.Equal(t, before, a.Account())
		l, ok := a.TryGetList(1<<20, q)
		require.True(t, ok)
		l.Release()
		hold.Release()
		_, err := a.Get(ctx, 1<<20, q)
		require.NoError(t, err, "an uncontended Get does not look at ctx")
		st := a.Stats()
		require.EqualValues(t, 1<<20, st.Held)
		for _, h := range a.Holders() {
			require.Equal(t, "q", h.Owner)
		}
		a.releaseAll()
	})
}

// releaseAll releases what a test has lost its handles to.
func (a *Arena) releaseAll() {
	var bs []RDMABuffer
	a.walk(func(s uint32, _ uint8, state uint64) {
		if referenced(state) {
			bs = append(bs, RDMABuffer{a: a, gen: gen(state), slot: uint64(s)})
		}
	})
	for _, b := range bs {
		b.Release()
	}
}
