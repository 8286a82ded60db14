package buffer

import (
	"context"
	"sync"
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

// What a GetList that waits has gathered is its owner's, since then, and not the
// former owner's, since whenever.
func TestOldestOfWaiters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newArena(t, Config{Budget: 4 << 20, Reserve: -1})
		x, y := a.Owner("x", 0), a.Owner("y", 4<<20)
		var held []RDMABuffer
		for range 4 {
			held = append(held, mustGet(t, a, 1<<20, x))
		}
		time.Sleep(100 * time.Second)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		done := make(chan error, 1)
		go func() { // ends with ctx
			_, err := a.GetList(ctx, 3<<20, y)
			done <- err
		}()
		synctest.Wait()
		held[0].Release()
		held[1].Release()
		check(t, a)
		for _, age := range []time.Duration{0, 10 * time.Second} {
			time.Sleep(age)
			synctest.Wait() // the arena has seen what time it is
			hs := a.Oldest(100)
			require.Len(t, hs, 4)
			for i, h := range hs {
				owner, since := "x", 100*time.Second+age
				if i >= 2 {
					owner, since = "y", age
				}
				require.Equal(t, owner, h.Owner)
				require.InDelta(t, since.Seconds(), h.Age.Seconds(), 1.5)
			}
			o := a.Stats().Owners
			require.Equal(t, 2, o[x].Buffers)
			require.Equal(t, 2, o[y].Buffers)
			require.Equal(t, hs[0].Age, o[x].Oldest)
			require.Equal(t, hs[2].Age, o[y].Oldest)
		}
		cancel()
		require.ErrorIs(t, <-done, context.Canceled)
		held[2].Release()
		held[3].Release()
		require.Empty(t, a.Oldest(100))
	})
}

// A Get that waited and has been served, but has not run yet, has its buffer.
func TestOldestOfServed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newArena(t, Config{Budget: 1 << 20, Reserve: -1})
		x, y := a.Owner("x", 0), a.Owner("y", 0)
		b := mustGet(t, a, 1<<20, x)
		time.Sleep(100 * time.Second)
		w := &waiter{owner: y, bytes: 1 << 20, rest: a.largest()}
		go func() { _ = a.acquire(t.Context(), w) }() // ends when served
		synctest.Wait()
		b.Release()
		synctest.Wait()
		hs := a.Oldest(1)
		require.Len(t, hs, 1)
		require.Equal(t, "y", hs[0].Owner)
		require.Less(t, hs[0].Age, 3*time.Second)
		a.take(w.slot, 1<<20, w).Release()
	})
}

// What is released while the oldest are listed is left out, and its region may go.
func TestOldestWhileARegionGoes(t *testing.T) {
	cfg := elastic()
	cfg.ShrinkAfter = time.Nanosecond
	a := newArena(t, cfg)
	var bs []RDMABuffer
	for len(bs) == 0 || bs[len(bs)-1].num()>>a.rgnShift < 2 { // where it began
		bs = append(bs, takeMany(t, a, 1, 256<<10, Anonymous)...)
	}
	b := bs[len(bs)-1]
	releaseAll(bs[:len(bs)-1])
	gone := make(chan struct{})
	var once sync.Once
	stop := a.Describe(func(func(RDMABuffer, string)) {
		once.Do(func() {
			b.Release()
			go func() { // as the keeper, at a time of its own
				defer close(gone)
				a.attachSem <- struct{}{}
				defer a.unlockAttach()
				a.shrink(context.Background()) // it is idle
				a.shrink(context.Background()) // and has been
			}()
		})
	})
	defer stop()
	require.Empty(t, a.Oldest(1))
	<-gone
	a.mu.Lock()
	defer a.mu.Unlock()
	require.Equal(t, regionNone, a.regions[b.num()>>a.rgnShift].state)
}
