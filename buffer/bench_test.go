package buffer

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

func BenchmarkGetRelease(b *testing.B) {
	for _, c := range []struct {
		name string
		mode func(*Arena) *Arena
		own  func(*Arena) Owner
		live int
	}{
		{name: "pinned"},
		{name: "portable", mode: portable},
		{name: "quota", own: func(a *Arena) Owner { return a.Owner("x", 64<<20) }},
		{name: "100000 live", live: 100000},
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
			var live []RDMABuffer
			for range c.live {
				r, ok := a.TryGet(Page, o)
				require.True(b, ok)
				live = append(live, r)
			}
			ctx := context.Background()
			b.ReportAllocs()
			b.ResetTimer()
			for range b.N {
				r, err := a.Get(ctx, 64<<10, o)
				if err != nil {
					b.Fatal(err)
				}
				r.Release()
			}
			b.StopTimer()
			for _, r := range live {
				r.Release()
			}
		})
	}
}

func BenchmarkGetReleaseParallel(b *testing.B) {
	for _, mode := range []string{"pinned", "portable"} {
		for _, g := range []int{1, 8} {
			b.Run(fmt.Sprintf("%s/%d goroutines", mode, g), func(b *testing.B) {
				a := newArena(b, Config{})
				if mode == "portable" {
					portable(a)
				}
				ctx := context.Background()
				b.ResetTimer()
				var wg sync.WaitGroup
				for range g {
					wg.Go(func() {
						for range b.N / g {
							r, err := a.Get(ctx, 64<<10, Anonymous)
							if err != nil {
								b.Error(err)
								return
							}
							r.Release()
						}
					})
				}
				wg.Wait()
			})
		}
	}
}
