package buffer

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/argonaut-rdma/argonaut/verbs/verbstest"
)

func TestMain(m *testing.M) {
	verbstest.Main(m,
		// Importing ants starts these two.
		goleak.IgnoreAnyFunction("github.com/panjf2000/ants/v2.(*poolCommon).purgeStaleWorkers"),
		goleak.IgnoreAnyFunction("github.com/panjf2000/ants/v2.(*poolCommon).ticktock"))
}

// newArena is an arena that the test closes, and that is whole then.
func newArena(tb testing.TB, cfg Config) *Arena {
	tb.Helper()
	a, err := New(cfg)
	require.NoError(tb, err)
	tb.Cleanup(func() {
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		if tb.Failed() { // what is held stays so
			cancel()
			_ = a.Close(ctx)
			return
		}
		check(tb, a)
		require.NoError(tb, a.Close(ctx))
	})
	return a
}

// bothModes runs f with pinned caches and with the fallback.
func bothModes(t *testing.T, f func(t *testing.T, mode func(*Arena) *Arena)) {
	t.Run("pinned", func(t *testing.T) {
		if !canPin {
			t.Skip("this build has no pinning: it is race or not gc")
		}
		f(t, func(a *Arena) *Arena { return a })
	})
	t.Run("portable", func(t *testing.T) { f(t, portable) })
}

// portable makes the arena use the caches' fallback.
func portable(a *Arena) *Arena {
	a.cores.portable = true
	return a
}

func mustGet(tb testing.TB, a *Arena, n int, o Owner) RDMABuffer {
	tb.Helper()
	b, ok := a.TryGet(n, o)
	require.True(tb, ok, "%d bytes for %s", n, a.OwnerName(o))
	return b
}

// check holds the arena's books against each other. Nothing may move.
func check(tb testing.TB, a *Arena) {
	tb.Helper()
	a.mu.Lock()
	defer a.mu.Unlock()
	owners := *a.owners.Load()
	spent := make([]int64, len(owners))
	var out int64
	gathered := map[uint32]bool{} // by waiters, who have spent all of their quota at once
	for i := range a.lines {
		for w := a.lines[i].first; w != nil; w = w.next {
			for _, s := range w.got {
				gathered[s.slot] = true
				require.Equal(tb, w.owner, ownerOf(a.slots[s.slot].meta.Load()), "slot %d", s.slot)
			}
		}
	}
	for i := range a.chunks {
		c := &a.chunks[i]
		if c.class == noClass {
			require.Zero(tb, c.used)
			continue
		}
		free := map[uint32]bool{}
		for s := c.free; s != 0; s = a.slots[s-1].next {
			require.False(tb, free[s-1], "free list of chunk %d has a loop", i)
			free[s-1] = true
		}
		used := uint32(0)
		for s := range a.slotsOf(uint32(i)) {
			st := a.slots[s].state.Load()
			require.Equal(tb, free[s], count(st) == inChunk, "slot %d", s)
			if count(st) != inChunk {
				used++
			}
			if referenced(st) && !gathered[s] && metaCharged(a.slots[s].meta.Load()) {
				spent[ownerOf(a.slots[s].meta.Load())] += int64(a.sizes[c.class])
			}
			if count(st) != inChunk && count(st) != isRetired {
				out += int64(a.sizes[c.class])
			}
		}
		require.Equal(tb, used, c.used, "chunk %d", i)
		require.NotZero(tb, used, "chunk %d is carved for nothing", i)
		require.Equal(tb, c.draining, a.victim == uint32(i)+1)
	}
	require.Equal(tb, out, a.out)

	waiting := 0
	waits := func(q queue, f func(*waiter)) {
		for w := q.first; w != nil; w = w.next {
			waiting++
			f(w)
		}
	}
	several := false
	for i := range a.lines {
		first := true
		waits(a.lines[i], func(w *waiter) {
			if w.charged {
				spent[w.owner] += w.bytes
			}
			if first && w.want() == 1 || w.have > 0 {
				for p := range a.pools {
					if p == poolGeneral || w.owner == Control {
						require.Zero(tb, a.pools[p].free.first, "a waiter does not get a free chunk")
						require.Zero(tb, a.pools[p].partial[a.class(w)].first, "a waiter does not get a free slot")
					}
				}
			} else {
				require.Zero(tb, w.have, "a waiter that is not first holds memory")
			}
			if w.have > 0 {
				require.False(tb, several, "two waiters hold memory")
				several = true
			}
			first = false
		})
	}
	for i, o := range owners {
		waits(o.queue, func(w *waiter) { require.False(tb, w.charged) })
		if o.quota.Load() == 0 {
			continue
		}
		left := o.avail
		for l := range o.leases {
			left += o.leases[l].left.Load()
		}
		require.Equal(tb, o.quota.Load(), left+spent[i], "quota of %s", o.name)
		if o.queue.first != nil {
			require.Greater(tb, o.queue.first.bytes, left, "a waiter does not get quota that is left")
		}
	}
	require.Equal(tb, waiting, a.waiting)
	if waiting == 0 {
		require.Zero(tb, a.victim)
	}
}
