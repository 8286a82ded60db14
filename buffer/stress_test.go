package buffer

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
)

// Many goroutines get, fill, hand over, post and release; nothing may be lost
// or be in two hands.
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
	if testing.Short() {
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
	require.Equal(t, Account{Free: 6 << 20, Total: 6 << 20}, a.Account())
	check(t, a)
	// Nothing is lost: all of it can be had in one piece.
	l, ok := a.TryGetList(6<<20, Control)
	require.True(t, ok)
	l.Release()
}
