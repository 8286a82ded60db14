package buffer

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A Get that waits in vain says what the arena looks like, and who has it.
func TestFullError(t *testing.T) {
	a := newArena(t, Config{Budget: 4 << 20, Reserve: -1})
	hog, small := a.Owner("hog", 0), a.Owner("small", 1<<20)
	held := mustGetList(t, a, 3<<20, hog)
	mine := mustGetList(t, a, 1<<20, small)
	for name, get := range map[string]func(context.Context) error{
		"Get":     func(ctx context.Context) error { _, err := a.Get(ctx, 64<<10, hog); return err },
		"GetList": func(ctx context.Context) error { _, err := a.GetList(ctx, 2<<20, hog); return err },
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
			defer cancel()
			err := get(ctx)
			require.ErrorIs(t, err, context.DeadlineExceeded)
			var full *FullError
			require.ErrorAs(t, err, &full)
			require.Equal(t, "hog", full.Owner)
			require.EqualValues(t, 4<<20, full.Total)
			require.Zero(t, full.Free)
			require.Zero(t, full.Quota)
			owner, n := full.Largest()
			require.Equal(t, "hog", owner)
			require.EqualValues(t, 3<<20, n)
			require.ErrorContains(t, err, `"hog" holds most: 3145728: raise Config.Budget, or release sooner`)
		})
	}
	held.Release()
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, err := a.Get(ctx, 64<<10, small)
	require.ErrorIs(t, err, context.Canceled)
	var full *FullError
	require.ErrorAs(t, err, &full)
	require.EqualValues(t, 1<<20, full.Quota)
	require.GreaterOrEqual(t, full.Free, int64(2<<20), "one may be in a cache")
	require.ErrorContains(t, err, "the quota of 1048576 bytes is spent: raise it with Arena.Owner")
	mine.Release()

	b := newArena(t, Config{Budget: 4 << 20, Reserve: -1, FailWhenFull: true})
	held = mustGetList(t, b, 4<<20, Anonymous)
	_, err = b.Get(context.Background(), 1, Anonymous)
	require.ErrorIs(t, err, ErrExhausted)
	require.ErrorAs(t, err, &full)
	require.EqualValues(t, Page, full.Want)
	held.Release()
}

func mustGetList(t *testing.T, a *Arena, n int64, o Owner) *List {
	t.Helper()
	l, err := a.GetList(context.Background(), n, o)
	require.NoError(t, err)
	return l
}
