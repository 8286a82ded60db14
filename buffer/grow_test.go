package buffer

import (
	"context"
	"errors"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/argonaut-rdma/argonaut/verbs"
	"github.com/argonaut-rdma/argonaut/verbs/iwarp"
	"github.com/argonaut-rdma/argonaut/verbs/verbstest"
)

// elastic begins with 2 of 8 MiB, in regions of 1 MiB.
func elastic() Config {
	return Config{
		Budget: 8 << 20, Initial: 2 << 20, RegionSize: 1 << 20, Classes: []int{Page, 64 << 10, 256 << 10}, Reserve: -1,
		LowWater: 512 << 10, ShrinkAfter: time.Minute,
	}
}

func takeMany(t *testing.T, a *Arena, n, size int, o Owner) (bs []RDMABuffer) {
	t.Helper()
	for range n {
		b, err := a.Get(context.Background(), size, o)
		require.NoError(t, err)
		bs = append(bs, b)
	}
	return bs
}

func releaseAll(bs []RDMABuffer) {
	for _, b := range bs {
		b.Release()
	}
}

func TestGrowAtLowWater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newArena(t, elastic())
		st := a.Stats()
		require.Equal(t, 2, st.Regions)
		require.EqualValues(t, 2<<20, st.Total)
		require.EqualValues(t, 2<<20, st.Mapped)
		require.EqualValues(t, 8<<20, st.Budget)
		bs := takeMany(t, a, 6, 256<<10, Anonymous)
		synctest.Wait()
		require.Equal(t, 2, a.Stats().Regions, "half a MiB is left")
		bs = append(bs, takeMany(t, a, 1, 256<<10, Anonymous)...)
		synctest.Wait()
		st = a.Stats()
		require.Equal(t, 3, st.Regions, "less than half a MiB was left")
		require.EqualValues(t, 1, st.Grown)
		require.EqualValues(t, 3<<20, st.Total)
		check(t, a)
		bs = append(bs, takeMany(t, a, 25, 256<<10, Anonymous)...)
		synctest.Wait()
		require.Equal(t, 8, a.Stats().Regions)
		_, ok := a.TryGet(1, Anonymous)
		require.False(t, ok, "never beyond the budget")
		// What is more than the budget waits for a release.
		got := make(chan RDMABuffer)
		go func() { // ends when served
			b, err := a.Get(context.Background(), 256<<10, Anonymous)
			require.NoError(t, err)
			got <- b
		}()
		synctest.Wait()
		require.Equal(t, 1, a.Stats().Waiting)
		bs[7].Release()
		bs[7] = <-got
		check(t, a)
		releaseAll(bs)
		require.EqualValues(t, 8<<20, a.Account().Free)
	})
}

func TestBurstsGrowAtOnce(t *testing.T) {
	for _, failWhenFull := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			cfg := elastic()
			cfg.FailWhenFull = failWhenFull
			a := newArena(t, cfg)
			l, err := a.GetList(context.Background(), 6<<20, Anonymous)
			require.NoError(t, err)
			require.GreaterOrEqual(t, a.Stats().Regions, 6)
			if failWhenFull {
				_, err = a.GetList(context.Background(), 3<<20, Anonymous)
				require.ErrorIs(t, err, ErrExhausted)
				require.ErrorContains(t, err, "are not free of 8388608")
				require.Zero(t, a.Stats().Waiting)
			}
			l.Release()
		})
	}
}

func TestTryGetGrows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newArena(t, elastic())
		_, ok := a.TryGetList(5<<20, Anonymous)
		require.False(t, ok)
		synctest.Wait()
		l, ok := a.TryGetList(5<<20, Anonymous)
		require.True(t, ok)
		l.Release()
	})
}

// Who may not have more does not make the arena grow.
func TestQuotaDoesNotGrow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newArena(t, Config{Budget: 256 << 20, Initial: 16 << 20})
		q := a.Owner("q", 1<<20)
		_, ok := a.TryGetList(200<<20, q)
		require.False(t, ok, "it can never fit")
		b := mustGet(t, a, 1<<20, q)
		_, ok = a.TryGet(1<<20, q)
		require.False(t, ok, "the quota is spent")
		synctest.Wait()
		require.Zero(t, a.Stats().Grown)
		require.EqualValues(t, 2, a.Stats().Exhausted)
		b.Release()
	})
}

func TestShrinkWhenIdle(t *testing.T) {
	needVirtualTime(t)
	verbstest.NoLeaks(t)
	synctest.Test(t, func(t *testing.T) {
		pd := openPD(t, iwarp.Config{}, &verbstest.Script{})
		a := newArena(t, elastic())
		require.NoError(t, a.Attach(context.Background(), pd))
		require.Equal(t, 2, regions(pd))
		bs := takeMany(t, a, 32, 256<<10, Anonymous)
		synctest.Wait()
		require.Equal(t, 8, regions(pd))
		for _, b := range bs {
			require.NotNil(t, b.SGE(pd).MR)
			require.Equal(t, b.SGE(pd).MR.Addr()+b.SGE(pd).Offset, uint64(uintptr(a.addr(b.num()))))
		}
		// One slot in a region keeps it.
		var keep RDMABuffer
		for i, b := range bs {
			if b.num()>>a.rgnShift == 5 {
				keep, bs[i] = b, bs[0]
				bs = bs[1:]
				break
			}
		}
		keep.RetainPosted()
		keep.Release()
		releaseAll(bs)
		time.Sleep(50 * time.Second)
		synctest.Wait()
		require.Equal(t, 8, regions(pd))
		time.Sleep(3 * time.Minute)
		synctest.Wait()
		st := a.Stats()
		require.Equal(t, 3, st.Regions, "those of Initial, and the one in use")
		require.Equal(t, 3, regions(pd))
		require.EqualValues(t, 5, st.Shrunk)
		require.EqualValues(t, 3<<20, st.Total)
		require.EqualValues(t, 3<<20, st.Mapped)
		check(t, a)
		keep.Bytes()[0] = 1
		stale := bs[len(bs)-1]
		require.Panics(t, func() { stale.Bytes() }, "also when its region is gone")
		// It grows again.
		bs = takeMany(t, a, 31, 256<<10, Anonymous)
		synctest.Wait()
		require.Equal(t, 8, regions(pd))
		require.Panics(t, func() { stale.Bytes() })
		keep.ReleasePosted()
		releaseAll(bs)
		require.NoError(t, a.Detach(context.Background(), pd))
	})
}

func TestGrantKeepsRegion(t *testing.T) {
	x, _ := connect(t)
	needKeys(t, x)
	cfg := elastic()
	cfg.ShrinkAfter = time.Millisecond
	a := newArena(t, cfg)
	require.NoError(t, a.Attach(context.Background(), x.pd))
	bs := takeMany(t, a, 32, 256<<10, Anonymous)
	var b RDMABuffer
	for i := range bs {
		if bs[i].num()>>a.rgnShift == 7 {
			b = bs[i]
		}
	}
	g, err := b.Grant(x.qp, verbs.AccessRemoteRead)
	require.NoError(t, err)
	releaseAll(bs)
	require.Eventually(t, func() bool { return a.Stats().Regions == 3 }, time.Minute, time.Millisecond)
	require.EqualValues(t, b.num()>>a.rgnShift, 7)
	require.Equal(t, regionLive, a.regions[7].state)
	require.NoError(t, g.Revoke())
	require.Eventually(t, func() bool { return a.Stats().Regions == 2 }, time.Minute, time.Millisecond)
	require.NoError(t, a.Detach(context.Background(), x.pd))
}

func TestLastingOwnersStayOutOfElasticRegions(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(-1)) // nor does it shrink
	synctest.Test(t, func(t *testing.T) {
		growStack() // it does not move any more: what this goroutine releases it finds
		a := newArena(t, elastic())
		recv := a.Owner("receive", 0)
		a.Lasting(recv)
		bs := takeMany(t, a, 8, 256<<10, Anonymous)
		synctest.Wait()
		more := takeMany(t, a, 4, 256<<10, Anonymous)
		for _, b := range more {
			require.GreaterOrEqual(t, b.num()>>a.rgnShift, uint32(2))
		}
		bs[3].Release()
		more[3].Release() // now in the cache
		r := mustGet(t, a, 256<<10, recv)
		require.Less(t, r.num()>>a.rgnShift, uint32(2), "there was room in a region that stays")
		r2 := mustGet(t, a, 256<<10, recv)
		i := r2.num() >> a.rgnShift
		require.GreaterOrEqual(t, i, uint32(2), "there was none")
		require.True(t, a.regions[i].kept.Load())
		r2.Release()
		bs[3] = r
		releaseAll(append(bs, more[:3]...))
		time.Sleep(5 * time.Minute)
		synctest.Wait()
		require.Equal(t, 3, a.Stats().Regions)
		require.Equal(t, regionLive, a.regions[i].state)
	})
}

//go:noinline
func growStack() byte {
	var room [128 << 10]byte
	for i := range room {
		room[i] = byte(i)
	}
	return room[len(room)/3]
}

// Growth that fails at any step leaves nothing behind, and is tried again.
func TestGrowthFails(t *testing.T) {
	needVirtualTime(t)
	verbstest.NoLeaks(t)
	broken := errors.New("broken")
	synctest.Test(t, func(t *testing.T) {
		fail := true
		var mu sync.Mutex
		s := &verbstest.Script{Call: func(c verbstest.Call) verbstest.Fault {
			mu.Lock()
			defer mu.Unlock()
			if c.Op == verbstest.CallRegMR && c.N >= 4 && fail {
				return verbstest.Fault{Err: broken}
			}
			return verbstest.Fault{}
		}}
		x, y := openPD(t, iwarp.Config{}, &verbstest.Script{}), openPD(t, iwarp.Config{}, s)
		cfg := elastic()
		cfg.FailWhenFull = true
		a := newArena(t, cfg)
		require.NoError(t, a.Attach(context.Background(), x))
		require.NoError(t, a.Attach(context.Background(), y))
		mu.Lock()
		n := s.Calls(verbstest.CallRegMR)
		mu.Unlock()
		require.Equal(t, 2, n)
		bs := takeMany(t, a, 16, 256<<10, Anonymous) // two regions can be added
		_, err := a.Get(context.Background(), 256<<10, Anonymous)
		require.ErrorIs(t, err, ErrExhausted)
		require.ErrorIs(t, err, broken)
		var be *BatchError
		require.ErrorAs(t, err, &be)
		require.True(t, be.RolledBack)
		synctest.Wait()
		st := a.Stats()
		require.Equal(t, 4, st.Regions)
		require.Equal(t, 4, regions(x))
		require.Equal(t, 4, regions(y))
		require.Contains(t, st.GrowError, "the arena can not grow")
		require.Positive(t, st.GrowErrors)
		mu.Lock()
		fail = false
		mu.Unlock()
		time.Sleep(3 * time.Second)
		bs = append(bs, takeMany(t, a, 4, 256<<10, Anonymous)...)
		require.Empty(t, a.Stats().GrowError)
		releaseAll(bs)
		require.NoError(t, a.Detach(context.Background(), x))
		require.NoError(t, a.Detach(context.Background(), y))
	})
}

// A region that one device refuses and another does not let go again stays
// mapped, and is added later.
func TestGrowthIsNotRolledBack(t *testing.T) {
	needVirtualTime(t)
	verbstest.NoLeaks(t)
	broken := errors.New("broken")
	synctest.Test(t, func(t *testing.T) {
		var mended atomic.Bool
		faulty := func(op verbstest.Op, from int) *verbstest.Script {
			return &verbstest.Script{Call: func(c verbstest.Call) verbstest.Fault {
				if c.Op == op && c.N >= from && !mended.Load() {
					return verbstest.Fault{Err: broken}
				}
				return verbstest.Fault{}
			}}
		}
		x := openPD(t, iwarp.Config{}, faulty(verbstest.CallDeregister, 0))
		y := openPD(t, iwarp.Config{}, faulty(verbstest.CallRegMR, 2))
		a := newArena(t, elastic())
		require.NoError(t, a.Attach(context.Background(), x))
		require.NoError(t, a.Attach(context.Background(), y))
		bs := takeMany(t, a, 8, 256<<10, Anonymous)
		synctest.Wait()
		st := a.Stats()
		require.Positive(t, st.GrowErrors)
		require.Equal(t, 1, st.Leaving)
		require.EqualValues(t, 3<<20, st.Mapped)
		require.Equal(t, 3, regions(x))
		require.Equal(t, 2, regions(y))
		mended.Store(true)
		bs = append(bs, takeMany(t, a, 4, 256<<10, Anonymous)...)
		synctest.Wait()
		n := a.Stats().Regions
		require.Equal(t, n, regions(x), "what was registered still is not so twice")
		require.Equal(t, n, regions(y))
		for _, b := range bs {
			require.NotNil(t, b.SGE(x).MR)
			require.NotNil(t, b.SGE(y).MR)
		}
		releaseAll(bs)
		require.NoError(t, a.Detach(context.Background(), x))
		require.NoError(t, a.Detach(context.Background(), y))
	})
}

// A region that a device does not let go stays mapped, and is given up later or
// used again.
func TestShrinkFails(t *testing.T) {
	needVirtualTime(t)
	verbstest.NoLeaks(t)
	broken := errors.New("broken")
	for _, again := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			var mu sync.Mutex
			fail := true
			s := &verbstest.Script{Call: func(c verbstest.Call) verbstest.Fault {
				mu.Lock()
				defer mu.Unlock()
				if c.Op == verbstest.CallDeregister && fail {
					return verbstest.Fault{Err: broken}
				}
				return verbstest.Fault{}
			}}
			x, y := openPD(t, iwarp.Config{}, &verbstest.Script{}), openPD(t, iwarp.Config{}, s)
			cfg := elastic()
			cfg.Budget = 3 << 20
			a := newArena(t, cfg)
			require.NoError(t, a.Attach(context.Background(), x))
			require.NoError(t, a.Attach(context.Background(), y))
			releaseAll(takeMany(t, a, 12, 256<<10, Anonymous))
			time.Sleep(3 * time.Minute)
			synctest.Wait()
			st := a.Stats()
			require.Equal(t, 1, st.Leaving)
			require.Equal(t, 3, st.Regions)
			require.EqualValues(t, 2<<20, st.Total)
			require.Equal(t, 2, regions(x))
			require.Equal(t, 3, regions(y))
			if again {
				bs := takeMany(t, a, 12, 256<<10, Anonymous)
				require.Equal(t, 3, regions(x))
				require.Equal(t, 3, regions(y))
				for _, b := range bs {
					require.NotNil(t, b.SGE(x).MR)
					require.NotNil(t, b.SGE(y).MR)
				}
				releaseAll(bs)
				mu.Lock()
				fail = false
				mu.Unlock()
			} else {
				mu.Lock()
				fail = false
				mu.Unlock()
				time.Sleep(time.Minute)
				synctest.Wait()
				require.Zero(t, a.Stats().Leaving)
				require.Equal(t, 2, regions(y))
			}
			require.NoError(t, a.Detach(context.Background(), x))
			require.NoError(t, a.Detach(context.Background(), y))
		})
	}
}

func TestProgress(t *testing.T) {
	pd := openPD(t, iwarp.Config{}, &verbstest.Script{})
	var mu sync.Mutex
	last := map[string]Progress{}
	cfg := Config{Budget: 4 << 20, RegionSize: 1 << 20, Prefault: true, Progress: func(p Progress) {
		mu.Lock()
		defer mu.Unlock()
		require.Greater(t, p.Done, last[p.Step].Done)
		last[p.Step] = p
	}}
	a := newArena(t, cfg)
	require.NoError(t, a.Attach(context.Background(), pd))
	require.NoError(t, a.Detach(context.Background(), pd))
	for _, step := range []string{"touch", "register", "deregister"} {
		require.Equal(t, Progress{Step: step, Done: 4 << 20, Total: 4 << 20}, last[step])
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	cfg.Progress = nil // it may have begun
	_, err := NewContext(ctx, cfg)
	require.ErrorIs(t, err, context.Canceled)
}

func TestSuperRegions(t *testing.T) {
	cfg, err := SuperRegions(3 << 30).withDefaults()
	require.NoError(t, err)
	require.EqualValues(t, 1<<30, cfg.RegionSize)
	require.Equal(t, []int{1 << 20}, cfg.Classes)
	cfg = SuperRegions(16 << 20) // the same, smaller
	cfg.RegionSize = 8 << 20
	a := newArena(t, cfg)
	b := mustGet(t, a, 1, Anonymous)
	require.EqualValues(t, 1<<20, a.Account().Held)
	require.Equal(t, 2, a.Stats().Regions)
	b.Release()
}

func TestFragmentation(t *testing.T) {
	a := newArena(t, Config{Budget: 4 << 20, Classes: []int{Page, 1 << 20}, Reserve: -1})
	require.Zero(t, a.Stats().Fragmentation)
	b := mustGet(t, a, 1, Anonymous)
	free := float64(4<<20 - Page)
	require.InDelta(t, float64(1<<20-Page)/free, a.Stats().Fragmentation, 1e-9)
	b.Release()
}
