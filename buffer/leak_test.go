package buffer

import (
	"context"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// An error of many traced references is short; the report has everything.
func TestLeakErrorIsBounded(t *testing.T) {
	a, err := New(Config{Budget: 8 << 20, Trace: true})
	require.NoError(t, err)
	var bs []RDMABuffer
	for range 100 {
		bs = append(bs, mustGet(t, a, 1, a.Owner("x", 0)))
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	var leak *LeakError
	require.ErrorAs(t, a.Close(ctx), &leak)
	text := leak.Error()
	require.Less(t, len(text), 16<<10)
	require.Equal(t, listed, strings.Count(text, `"x" holds`))
	require.Equal(t, listed, strings.Count(text, "TestLeakErrorIsBounded\n"))
	require.Contains(t, text, "\n\t84 more, see Arena.Report")
	var s strings.Builder
	require.NoError(t, a.Report().WriteText(&s))
	require.Equal(t, 100, strings.Count(s.String(), "TestLeakErrorIsBounded\n"))
	require.Greater(t, strings.Count(s.String(), "runtime.goexit"), strings.Count(text, "runtime.goexit"), "whole stacks")
	for _, b := range bs {
		b.Release()
	}
	require.NoError(t, a.Close(ctx))
}

// Whoever knows what a buffer is held for says so in reports.
func TestDescribe(t *testing.T) {
	a, other := newArena(t, Config{Budget: 8 << 20}), newArena(t, Config{Budget: 8 << 20})
	b, old, foreign := mustGet(t, a, 1, Anonymous), mustGet(t, a, 1, Anonymous), mustGet(t, other, 1, Anonymous)
	again := mustGet(t, a, 1, Anonymous)
	describe := func(what string) func() {
		return a.Describe(func(yield func(RDMABuffer, string)) {
			yield(b, what)
			yield(old, "of the past")
			yield(foreign, "of another arena")
			yield(RDMABuffer{}, "nothing")
		})
	}
	what := func() (whats []string) {
		for _, h := range a.Holders() {
			if h.What != "" {
				whats = append(whats, h.What)
			}
		}
		return whats
	}
	stop := describe("a message of osd.3")
	old.Release()
	old2 := mustGet(t, a, 1, Anonymous) // the same slot, perhaps
	require.Equal(t, []string{"a message of osd.3"}, what())
	require.Contains(t, a.Report().Holders[0].String()+a.Report().Holders[1].String()+a.Report().Holders[2].String(), "references: a message of osd.3")
	stop2 := describe("a message of osd.3")
	require.Equal(t, []string{"a message of osd.3"}, what(), "not twice")
	stop2()
	stale := b
	stale.gen--
	late := a.Describe(func(yield func(RDMABuffer, string)) {
		yield(b, "a message of osd.3")
		yield(stale, "of the past, said last")
	})
	require.Equal(t, []string{"a message of osd.3"}, what())
	late()
	stop()
	stop()
	require.Empty(t, what())
	for _, r := range []RDMABuffer{b, old2, foreign, again} {
		r.Release()
	}
}
