package buffer

import (
	"testing"

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
