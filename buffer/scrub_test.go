package buffer

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
)

func TestScrub(t *testing.T) {
	a := newArena(t, Config{Budget: 1 << 20, Reserve: -1, Scrub: true, Classes: []int{Page, 16 << 10, 1 << 20}})
	x, y := a.Owner("x", 0), a.Owner("y", 0)
	zeros := make([]byte, Page)
	secret := func(o Owner) {
		b := mustGet(t, a, Page, o)
		copy(b.Bytes(), "secret")
		b.Release()
	}
	secret(x)
	b := mustGet(t, a, Page, x)
	if !invariants { // which poison what is released
		require.Equal(t, "secret", string(b.Bytes()[:6]), "the owner is the same")
	}
	b.Release()
	b = mustGet(t, a, Page, y)
	require.Equal(t, zeros, b.Bytes())
	b.Release()
	secret(x)
	b = mustGet(t, a, 1<<20, y) // carved otherwise
	require.Equal(t, make([]byte, 1<<20), b.Bytes())
	copy(b.Bytes()[5*Page:], "secret")
	b.Release()
	for range 64 {
		b := mustGet(t, a, 16<<10, x)
		require.Equal(t, make([]byte, 16<<10), b.Bytes())
		t.Cleanup(b.Release)
	}
}

// Neither who waited for buffers, nor who gets what a waiter has gathered and
// given back, sees what was in them.
func TestScrubAfterWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newArena(t, Config{Budget: 3 << 20, Reserve: -1, Scrub: true})
		x, y := a.Owner("x", 0), a.Owner("y", 0)
		zeros := make([]byte, 1<<20)
		var held []RDMABuffer
		for range 3 {
			b := mustGet(t, a, 1<<20, x)
			copy(b.Bytes(), "secret")
			held = append(held, b)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { // ends with ctx
			_, err := a.GetList(ctx, 2<<20, y)
			done <- err
		}()
		synctest.Wait()
		held[0].Release()
		check(t, a)
		cancel()
		require.ErrorIs(t, <-done, context.Canceled)
		b := mustGet(t, a, 1<<20, y)
		require.Equal(t, held[0].num(), b.num())
		require.Equal(t, zeros, b.Bytes())
		b.Release()
		got := make(chan *List, 1)
		go func() { // ends when held is released
			l, err := a.GetList(context.Background(), 3<<20, y)
			if err != nil {
				panic(err)
			}
			got <- l
		}()
		synctest.Wait()
		held[1].Release()
		held[2].Release()
		l := <-got
		for b := range l.Buffers() {
			require.Equal(t, zeros, b.Bytes())
		}
		l.Release()
	})
}
