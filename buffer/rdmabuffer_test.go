package buffer

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
)

func TestRDMABufferIsSmall(t *testing.T) {
	require.EqualValues(t, 32, unsafe.Sizeof(RDMABuffer{}))
}

func TestUseAfterRelease(t *testing.T) {
	bothModes(t, func(t *testing.T, mode func(*Arena) *Arena) {
		a := mode(newArena(t, Config{Budget: Page, Classes: []int{Page}}))
		old := mustGet(t, a, 100, Anonymous)
		old.Release()
		uses := map[string]func(){
			"Bytes": func() { old.Bytes() }, "Slice": func() { old.Slice(0, 1) }, "Retain": func() { old.Retain() },
			"Release": old.Release, "RetainPosted": old.RetainPosted, "ReleasePosted": old.ReleasePosted,
			"SGE": func() { old.SGE(nil) }, "Append": func() { NewList(old) },
		}
		for name, use := range uses {
			require.PanicsWithValue(t, fmt.Sprintf("buffer: use of buffer %d (generation 1) after its last release; the slot is at generation 2; Config.Trace tells who released it", old.num()), use, name)
		}
		again := mustGet(t, a, 100, Anonymous)
		require.Equal(t, old.num(), again.num(), "there is one slot only")
		for name, use := range uses {
			require.Panics(t, use, name)
		}
		require.Len(t, again.Bytes(), 100)
		again.Release()
	})
}

func TestMisuse(t *testing.T) {
	a := newArena(t, Config{Budget: 8 << 20})
	b := mustGet(t, a, 100, Anonymous)
	panics := func(says string, f func()) {
		t.Helper()
		defer func() { require.Contains(t, fmt.Sprint(recover()), says) }()
		f()
	}
	panics("slice [1:101) of 100 bytes", func() { b.Slice(1, 101) })
	panics("slice [-1:", func() { b.Slice(-1, 1) })
	panics("slice [3:2)", func() { b.Slice(3, 2) })
	panics("ReleasePosted of buffer", func() { c := b.Retain(); defer c.Release(); c.ReleasePosted() })
	// The count of posted references is off by the misuse: put it right.
	a.slots[b.num()].posted.Store(0)
	b.RetainPosted()
	b.Release()
	panics("released while posted work still names it", b.Release)
	b.ReleasePosted()
	panics("owner 77 is not of this arena", func() { a.TryGet(1, 77) })
	panics("quota of -1", func() { a.Owner("x", -1) })
	panics("which has none", func() { a.Owner("control", 1) })
	panics("offset 5 in a list of 0 bytes", func() { new(List).Truncate(5) })
}

func TestReferences(t *testing.T) {
	a := newArena(t, Config{Budget: 8 << 20})
	b := mustGet(t, a, 5000, Anonymous)
	view := b.Slice(10, 20).Slice(2, 4)
	require.Equal(t, 2, view.Len())
	b.Bytes()[12] = 7
	require.EqualValues(t, 7, view.Bytes()[0])
	c := view.Retain()
	require.Equal(t, Account{Held: 8192, Free: 8<<20 - 8192, Total: 8 << 20}, a.Account())
	b.RetainPosted()
	b.RetainPosted()
	require.Equal(t, Account{Posted: 8192, Free: 8<<20 - 8192, Total: 8 << 20}, a.Account())
	b.Release()
	c.Release()
	b.ReleasePosted()
	require.EqualValues(t, 8192, a.Account().Posted, "the device still has it")
	require.EqualValues(t, 7, view.Bytes()[0])
	b.ReleasePosted()
	require.Equal(t, Account{Free: 8 << 20, Total: 8 << 20}, a.Account())
	require.True(t, RDMABuffer{}.IsZero())
	require.False(t, b.IsZero())
	require.Same(t, a, b.Arena())
}

func TestManyReferences(t *testing.T) {
	a := newArena(t, Config{Budget: 8 << 20})
	b := mustGet(t, a, 1, Anonymous)
	s := &a.slots[b.num()]
	s.state.Store(b.gen<<countBits | maxHolders)
	require.Panics(t, func() { b.Retain() })
	s.state.Store(b.gen<<countBits | 1)
	b.Release()
}

// warned is a log handler that calls a function for each warning.
type warned func()

func (f warned) Enabled(_ context.Context, l slog.Level) bool { return l >= slog.LevelWarn }
func (f warned) Handle(context.Context, slog.Record) error    { f(); return nil }
func (f warned) WithAttrs([]slog.Attr) slog.Handler           { return f }
func (f warned) WithGroup(string) slog.Handler                { return f }

func TestGenerationsRunOut(t *testing.T) {
	told := false
	var a *Arena
	a = newArena(t, Config{Budget: 1 << 20, Reserve: -1, Classes: []int{Page, 1 << 20}, Logger: slog.New(warned(func() {
		if told = a.mu.TryLock(); told {
			a.mu.Unlock()
		}
	}))})
	q := a.Owner("q", 1<<20)
	b := mustGet(t, a, 1, q)
	s := &a.slots[b.num()]
	s.state.Store(maxGen<<countBits | 1)
	b.gen = maxGen | 7<<tokenShift // got while references were traced
	b.Release()
	require.True(t, told, "a logger may ask for the account")
	require.Panics(t, func() { b.Bytes() })
	st := a.Stats()
	require.EqualValues(t, Page, st.Retired)
	require.EqualValues(t, 1<<20-Page, st.Total)
	require.EqualValues(t, 1<<20-Page, st.Free)
	var bs []RDMABuffer
	for range 255 {
		bs = append(bs, mustGet(t, a, 1, q))
	}
	_, ok := a.TryGet(1, q)
	require.False(t, ok, "a retired slot is not used again")
	for _, b := range bs {
		b.Release()
	}
	_, ok = a.TryGet(1<<20, Anonymous)
	require.False(t, ok, "its chunk stays carved")
}

func TestHotPathsAllocateNothing(t *testing.T) {
	if raceBuild || invariants {
		t.Skip("sync.Pool drops under race, and lists are not reused with invariants")
	}
	bothModes(t, func(t *testing.T, mode func(*Arena) *Arena) {
		a := mode(newArena(t, Config{Budget: 16 << 20}))
		q := a.Owner("q", 8<<20)
		ctx := context.Background()
		var iov [][]byte
		for name, f := range map[string]func(){
			"Get":            func() { b, _ := a.Get(ctx, 5000, Anonymous); b.Release() },
			"Get with quota": func() { b, _ := a.Get(ctx, 5000, q); b.Release() },
			"posted": func() {
				b, _ := a.TryGet(5000, Control)
				b.RetainPosted()
				b.Retain().Slice(1, 2).Release()
				b.Release()
				b.SGE(nil)
				b.ReleasePosted()
			},
			"a batch": func() {
				var bs [80]RDMABuffer
				for i := range bs {
					bs[i], _ = a.TryGet(1, q)
				}
				for _, b := range bs {
					b.Release()
				}
			},
			"GetList": func() {
				l, _ := a.GetList(ctx, 3<<20+5, q)
				for b := range l.Buffers() {
					b.Len()
				}
				iov = l.IOVec(iov[:0])
				s := l.Share()
				s.Split(2 << 20).Release()
				s.Release()
				l.Release()
			},
		} {
			f()
			require.Zero(t, testing.AllocsPerRun(200, f), name)
		}
	})
}
