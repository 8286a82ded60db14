package buffer

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func TestTrace(t *testing.T) {
	a := newArena(t, Config{Budget: 8 << 20, Trace: true})
	says := func(f func(), parts ...string) {
		t.Helper()
		defer func() {
			r := fmt.Sprint(recover())
			for _, p := range parts {
				require.Contains(t, r, p)
			}
		}()
		f()
	}
	o := a.Owner("x", 0)
	b := mustGet(t, a, 1, o)
	c := b.Retain()
	require.NotEqual(t, b, c)
	c.Release()
	says(c.Release, "one reference to buffer", "released twice, the first time at", "buffer.TestTrace", "trace_test.go")
	require.Len(t, b.Bytes(), 1, "the other reference is not harmed")
	b.RetainPosted()
	hs := a.Holders()
	require.Len(t, hs, 2)
	for i, h := range hs {
		require.Equal(t, "x", h.Owner)
		require.Equal(t, 1, h.Refs)
		require.Equal(t, i, h.Posted)
		require.True(t, strings.HasPrefix(h.Stack[strings.LastIndexByte(h.Stack[:strings.IndexByte(h.Stack, '\n')], '/')+1:], "buffer."), h.Stack)
		require.Contains(t, h.Stack, "TestTrace")
		require.Contains(t, h.String(), "taken at")
	}
	b.Release()
	b.ReleasePosted()
	says(func() { b.Bytes() }, "after its last release", "this reference was released at", "TestTrace")
	// Tokens are reused when there is no other.
	b = mustGet(t, a, 1, o)
	a.tokens.Store(maxToken - 1)
	c, d := b.Retain(), b.Retain()
	require.NotEqual(t, c, d)
	require.NotEqual(t, b, d)
	c.Release()
	d.Release()
	b.Release()
}

// Tracing is switched while buffers are held.
func TestTraceAtRunTime(t *testing.T) {
	a := newArena(t, Config{Budget: 8 << 20})
	before := mustGet(t, a, 1, Anonymous)
	a.SetTrace(true)
	require.True(t, a.Tracing())
	during := mustGet(t, a, 1, Anonymous)
	more := before.Retain()
	before.RetainPosted()
	hs := a.Holders()
	require.Len(t, hs, 4)
	stacks := 0
	for _, h := range hs {
		require.Equal(t, 1, h.Refs)
		if h.Stack != "" {
			stacks++
		}
	}
	require.Equal(t, 3, stacks)
	before.Release()
	require.Panics(t, func() { more.Release(); more.Release() })
	before.ReleasePosted()
	a.SetTrace(false)
	require.Len(t, a.Holders(), 1)
	require.Empty(t, a.Holders()[0].Stack)
	again := during.Retain()
	a.SetTrace(true)
	during.Release()
	again.Release()
	require.Panics(t, func() { again.Bytes() })
	b := mustGet(t, a, 1, Anonymous)
	for range 2 * maxGone {
		b.Retain().Release()
	}
	require.LessOrEqual(t, len(a.tracer.Load().slots[b.num()].gone), maxGone, "what is remembered is bounded")
	b.Release()
}

// What is held for longer than MaxAge is logged once.
func TestMaxAge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		a := newArena(t, Config{Budget: 8 << 20, MaxAge: 10 * time.Second, Logger: slog.New(slog.NewTextHandler(&log, nil))})
		old := mustGet(t, a, 1, a.Owner("slow", 0))
		time.Sleep(9 * time.Second)
		young := mustGet(t, a, 1, Anonymous)
		require.Zero(t, a.Stats().Overdue)
		time.Sleep(5 * time.Second)
		synctest.Wait()
		require.EqualValues(t, 1, a.Stats().Overdue)
		young.Release()
		time.Sleep(time.Minute)
		synctest.Wait()
		require.EqualValues(t, 1, a.Stats().Overdue)
		require.Equal(t, 1, strings.Count(log.String(), "held for long"))
		require.Contains(t, log.String(), "owner=slow")
		old.Release()
		old = mustGet(t, a, 1, Anonymous)
		time.Sleep(15 * time.Second)
		synctest.Wait()
		require.EqualValues(t, 2, a.Stats().Overdue, "another Get of the same slot")
		old.Release()
	})
}

func TestClockAndAge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newArena(t, Config{Budget: 8 << 20})
		b := mustGet(t, a, 1, Anonymous)
		ctx, cancel := context.WithTimeout(context.Background(), 90*1e9+1)
		defer cancel()
		<-ctx.Done()
		synctest.Wait()
		require.InDelta(t, 90, a.Holders()[0].Age.Seconds(), 1)
		b.Release()
		b = mustGet(t, a, 1, Anonymous)
		require.Zero(t, a.Holders()[0].Age)
		b.Release()
	})
}
