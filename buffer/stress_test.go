package buffer

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/argonaut-rdma/argonaut/verbs/iwarp"
	"github.com/argonaut-rdma/argonaut/verbs/verbstest"
)

// Many goroutines get, fill, hand over, post and release; nothing may be lost
// or be in two hands. ARGONAUT_STRESS_ROUNDS is how many rounds each of the 8
// takes in each mode instead of some thousand; with the tag invariants, memory
// that is free is poisoned and looked at. See `make model`.
func TestStress(t *testing.T) {
	bothModes(t, func(t *testing.T, mode func(*Arena) *Arena) {
		for _, trace := range []bool{false, true} {
			t.Run(fmt.Sprintf("trace=%v", trace), func(t *testing.T) {
				a := mode(newArena(t, Config{Budget: 6 << 20, Classes: []int{Page, 64 << 10, 1 << 20}, Reserve: 1 << 20, Trace: trace}))
				stress(t, a, 3000)
			})
		}
	})
}

func stress(t *testing.T, a *Arena, rounds int) {
	if v := os.Getenv("ARGONAUT_STRESS_ROUNDS"); v != "" {
		n, err := strconv.Atoi(v)
		require.NoError(t, err)
		rounds = n
	} else if testing.Short() {
		rounds /= 4
	}
	owners := []Owner{Anonymous, Control, a.Owner("a", 2<<20), a.Owner("b", 1<<20)}
	pass := make(chan RDMABuffer, 16)
	mark := func(b RDMABuffer, id uint64) {
		p := b.Bytes()
		for i := 0; i+8 <= len(p); i += Page {
			*(*uint64)(unsafe.Pointer(&p[i])) = id
		}
	}
	var ids atomic.Uint64
	checkMark := func(b RDMABuffer) {
		p := b.Bytes()
		id := *(*uint64)(unsafe.Pointer(&p[0]))
		for i := 0; i+8 <= len(p); i += Page {
			if *(*uint64)(unsafe.Pointer(&p[i])) != id {
				t.Errorf("buffer %d is in two hands", b.num())
				return
			}
		}
	}
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(uint64(g), 7))
			for range rounds {
				o := owners[r.IntN(len(owners))]
				n := 8 + r.IntN([]int{Page, 64 << 10, 1 << 20}[r.IntN(3)]-8)
				ctx, cancel := context.WithCancel(context.Background())
				if r.IntN(4) == 0 {
					cancel() // does not wait
				}
				switch r.IntN(6) {
				case 0:
					l, err := a.GetList(ctx, int64(n)+int64(r.IntN(2<<20))/int64(1+r.IntN(3)), o)
					if err != nil {
						if !errors.Is(err, context.Canceled) && !errors.Is(err, ErrQuota) {
							t.Error(err)
						}
						break
					}
					s := l.Share()
					l.RetainPosted()
					s.Release()
					l.ReleasePosted()
					l.Release()
				case 1:
					if b, ok := a.TryGet(n, o); ok {
						mark(b, ids.Add(1))
						select {
						case pass <- b:
						default:
							checkMark(b)
							b.Release()
						}
					}
				default:
					b, err := a.Get(ctx, n, o)
					if err != nil {
						if !errors.Is(err, context.Canceled) {
							t.Error(err)
						}
						break
					}
					mark(b, ids.Add(1))
					c := b.Retain()
					b.RetainPosted()
					b.Release()
					checkMark(c)
					c.Release()
					checkMark(c)
					c.ReleasePosted()
				}
				cancel()
				select {
				case b := <-pass:
					checkMark(b)
					b.Release()
				default:
				}
			}
			for {
				select {
				case b := <-pass:
					b.Release()
					continue
				default:
				}
				return
			}
		})
	}
	wg.Wait()
	st := a.Stats()
	t.Logf("8 times %d rounds; memory: %s; %d Gets waited", rounds, a.backing, st.Waited)
	require.Equal(t, Account{Free: 6 << 20, Total: 6 << 20}, a.Account())
	check(t, a)
	// Nothing is lost: all of it can be had in one piece.
	l, ok := a.TryGetList(6<<20, Control)
	require.True(t, ok)
	l.Release()
}

// Buffers come and go while the arena grows and shrinks under them.
func TestStressGrowth(t *testing.T) {
	pd := openPD(t, iwarp.Config{}, &verbstest.Script{})
	a := newArena(t, Config{
		Budget: 16 << 20, Initial: 1 << 20, RegionSize: 1 << 20, Classes: []int{Page, 64 << 10, 256 << 10}, Reserve: -1,
		ShrinkAfter: time.Millisecond,
	})
	require.NoError(t, a.Attach(context.Background(), pd))
	rounds := 60
	if testing.Short() {
		rounds = 15
	}
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			rnd := rand.New(rand.NewPCG(uint64(g), 1))
			for r := range rounds {
				var bs []RDMABuffer
				for range rnd.IntN(15) {
					b, err := a.Get(context.Background(), 1+rnd.IntN(256<<10), Anonymous)
					if err != nil {
						t.Error(err)
						return
					}
					p := b.Bytes()
					p[0], p[len(p)-1] = byte(g), byte(r)
					if e := b.SGE(pd); e.MR == nil || !e.MR.Live() {
						t.Error("a buffer is not registered")
					}
					bs = append(bs, b)
				}
				for _, b := range bs {
					if p := b.Bytes(); len(p) > 1 && (p[0] != byte(g) || p[len(p)-1] != byte(r)) {
						t.Error("somebody else wrote to a buffer")
					}
					b.Release()
				}
				if r%8 == 7 {
					time.Sleep(time.Duration(rnd.IntN(20)) * time.Millisecond) // so that regions are idle
				}
			}
		})
	}
	wg.Wait()
	st := a.Stats()
	t.Logf("grown %d, shrunk %d, slowest %v", st.Grown, st.Shrunk, st.SlowestGrow)
	require.Positive(t, st.Grown)
	check(t, a)
	require.NoError(t, a.Detach(context.Background(), pd))
}
