package buffer

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

func BenchmarkGetRelease(b *testing.B) {
	for _, c := range []struct {
		name string
		mode func(*Arena) *Arena
		own  func(*Arena) Owner
	}{
		{name: "pinned"},
		{name: "portable", mode: portable},
		{name: "quota", own: func(a *Arena) Owner { return a.Owner("x", 64<<20) }},
	} {
		b.Run(c.name, func(b *testing.B) {
			a := newArena(b, Config{Budget: 1 << 30})
			if c.mode != nil {
				c.mode(a)
			}
			o := Anonymous
			if c.own != nil {
				o = c.own(a)
			}
			b.ReportAllocs()
			b.ResetTimer()
			getRelease(b, a, o, b.N)
		})
	}
}

func getRelease(tb testing.TB, a *Arena, o Owner, n int) {
	ctx := context.Background()
	for range n {
		r, err := a.Get(ctx, 64<<10, o)
		if err != nil {
			tb.Error(err)
			return
		}
		r.Release()
	}
}

// BenchmarkCost prints what a Get with its Release costs, one goroutine and 8 on
// 2 cores, with pinned caches and with the fallback, with 1 and with 100,000
// live buffers. On a machine that others use, too, single figures mean little:
// the rows are measured in turns, in many short runs, beside two compare-and-swaps
// and a mutex, which are what the machine gives at that time.
//
//	go test ./buffer -run '^$' -bench Cost -benchtime 1x -v
func BenchmarkCost(b *testing.B) {
	const (
		rounds = 600
		calls  = 8000 // of each row in a round, of all goroutines together
	)
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(2))
	type row struct {
		name   string
		f      func(n int)
		allocs float64
		took   []float64 // ns per call
	}
	var rows []*row
	add := func(name string, f func(n int)) { rows = append(rows, &row{name: name, f: f}) }
	var word atomic.Uint64
	add("two compare-and-swaps", func(n int) {
		for range n {
			w := word.Load()
			word.CompareAndSwap(w, w+1)
			word.CompareAndSwap(w+1, w)
		}
	})
	var mu sync.Mutex
	add("a mutex, locked and unlocked", func(n int) {
		for range n {
			mu.Lock()
			mu.Unlock() //nolint:staticcheck // that is what is measured
		}
	})
	modes := []string{"pinned", "portable"}
	if !canPin {
		modes = modes[1:]
	}
	for _, mode := range modes {
		for _, live := range []int{1, 100_000} {
			a := newArena(b, Config{Budget: 1 << 30})
			if mode == "portable" {
				portable(a)
			}
			var held []RDMABuffer
			for range live {
				held = append(held, mustGet(b, a, Page, Anonymous))
			}
			b.Cleanup(func() {
				for _, r := range held {
					r.Release()
				}
			})
			name := fmt.Sprintf("Get and Release, %s, %d live", mode, live)
			add(name, func(n int) { getRelease(b, a, Anonymous, n) })
			add(name+", 8 goroutines", func(n int) {
				var wg sync.WaitGroup
				for range 8 {
					wg.Go(func() { getRelease(b, a, Anonymous, n/8) })
				}
				wg.Wait()
			})
		}
	}
	for _, r := range rows {
		// Without what it takes to start.
		r.allocs = (testing.AllocsPerRun(1, func() { r.f(9000) }) - testing.AllocsPerRun(1, func() { r.f(1000) })) / 8000
	}
	for range rounds {
		for _, r := range rows {
			begin := time.Now()
			r.f(calls)
			r.took = append(r.took, float64(time.Since(begin).Nanoseconds())/calls)
		}
	}
	b.ReportMetric(0, "ns/op")
	b.Logf("%-55s %8s %8s %8s %8s", "ns", "least", "p10", "median", "allocs")
	for _, r := range rows {
		slices.Sort(r.took)
		b.Logf("%-55s %8.1f %8.1f %8.1f %8.3f", r.name, r.took[0], r.took[rounds/10], r.took[rounds/2], r.allocs)
	}
}
