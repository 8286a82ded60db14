package buffer

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
)

func TestRDMABufferIsSmall(t *testing.T) {
	require.EqualValues(t, 32, unsafe.Sizeof(RDMABuffer{}))
}

func TestSizes(t *testing.T) {
	a := newArena(t, Config{Budget: 16 << 20})
	ctx := context.Background()
	for _, c := range []struct{ n, class int }{
		{1, 4096}, {4095, 4096}, {4096, 4096}, {4097, 8192}, {65536, 65536}, {65537, 131072}, {1 << 20, 1 << 20},
	} {
		b, err := a.Get(ctx, c.n, Anonymous)
		require.NoError(t, err)
		require.Equal(t, c.n, b.Len())
		require.Len(t, b.Bytes(), c.n)
		require.Equal(t, c.n, cap(b.Bytes()))
		require.Zero(t, uintptr(unsafe.Pointer(&b.Bytes()[0]))%Page)
		require.EqualValues(t, c.class, a.Account().Held)
		b.Release()
	}
	for n, want := range map[int]error{0: ErrInvalid, -1: ErrInvalid, 1<<20 + 1: ErrTooLarge, 1 << 40: ErrTooLarge} {
		_, err := a.Get(ctx, n, Anonymous)
		require.ErrorIs(t, err, want)
		_, ok := a.TryGet(n, Anonymous)
		require.False(t, ok)
	}
	_, err := a.Get(ctx, 1<<20+1, Anonymous)
	require.ErrorContains(t, err, "use GetList")
	_, err = a.GetList(ctx, 0, Anonymous)
	require.ErrorIs(t, err, ErrInvalid)
	_, err = a.GetList(ctx, 16<<20, Anonymous)
	require.ErrorIs(t, err, ErrTooLarge)
	require.ErrorContains(t, err, "15728640 for all: raise Config.Budget")
	l, err := a.GetList(ctx, 16<<20, Control)
	require.NoError(t, err)
	require.Equal(t, 16, l.Segments())
	l.Release()
	l, ok := a.TryGetList(2<<20+5000, Anonymous)
	require.True(t, ok)
	require.Equal(t, 3, l.Segments())
	require.EqualValues(t, 2<<20+8192, a.Account().Held)
	l.Release()
	require.Equal(t, []int{4096, 8192, 16384, 32768, 65536, 131072, 262144, 524288, 1 << 20}, a.Classes())
}

func TestConfig(t *testing.T) {
	for _, c := range []struct {
		cfg  Config
		want error
		says string
	}{
		{Config{Budget: -1}, ErrInvalid, "give what the arena may use"},
		{Config{Classes: []int{}}, ErrInvalid, "leave it nil for the default"},
		{Config{Classes: []int{5000}}, ErrInvalid, "ascending powers of two from 4096"},
		{Config{Classes: []int{8192, 4096}}, ErrInvalid, "ascending"},
		{Config{Classes: []int{2 << 30}}, ErrInvalid, "to 1073741824"},
		{Config{RegionSize: 4096}, ErrInvalid, "give a power of two from 1048576, the largest class, to 1073741824"},
		{Config{RegionSize: 3 << 20}, ErrInvalid, "power of two"},
		{Config{Budget: 1 << 20, Reserve: 1 << 20}, ErrInvalid, "raise Budget"},
		{Config{Budget: 2 << 20, Reserve: 1<<20 + 1}, ErrInvalid, "in whole chunks"},
		{Config{Budget: 1 << 50}, ErrInvalid, "drop small Classes"},
		{Config{NUMANodes: []int{0}, Heap: true}, ErrInvalid, "can not be bound"},
		{Config{Initial: -1}, ErrInvalid, "from 1 to the Budget"},
		{Config{Budget: 1 << 20, Initial: 2 << 20}, ErrInvalid, "from 1 to the Budget"},
	} {
		_, err := New(c.cfg)
		require.ErrorIs(t, err, c.want, "%+v", c.cfg)
		require.ErrorContains(t, err, c.says)
	}
	a := newArena(t, Config{Budget: 5<<20 + 1, RegionSize: 2 << 20})
	st := a.Stats()
	require.Equal(t, 3, st.Regions)
	require.EqualValues(t, 6<<20, st.Total)
	require.EqualValues(t, 6<<20, st.FreeChunks)
	require.Zero(t, st.Reserve)
}

func TestRegionsAreApart(t *testing.T) {
	a := newArena(t, Config{Budget: 7 << 20, RegionSize: 2 << 20, Reserve: -1})
	var bs []RDMABuffer
	for i := range 7 {
		b := mustGet(t, a, 1<<20, Anonymous)
		for j := range b.Bytes() {
			b.Bytes()[j] = byte(i)
		}
		bs = append(bs, b)
	}
	_, ok := a.TryGet(1, Anonymous)
	require.False(t, ok)
	for i, b := range bs {
		require.Equal(t, strings.Repeat(string(rune(i)), 1<<20), string(b.Bytes()))
		b.Release()
	}
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

func TestGenerationsRunOut(t *testing.T) {
	a := newArena(t, Config{Budget: 1 << 20, Reserve: -1, Classes: []int{Page, 1 << 20}})
	q := a.Owner("q", 1<<20)
	b := mustGet(t, a, 1, q)
	s := &a.slots[b.num()]
	s.state.Store(maxGen<<countBits | 1)
	b.gen = maxGen
	b.Release()
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

func TestWaitersAreServedInOrder(t *testing.T) {
	bothModes(t, func(t *testing.T, mode func(*Arena) *Arena) {
		synctest.Test(t, func(t *testing.T) {
			a := mode(newArena(t, Config{Budget: 4 << 20, Reserve: -1, Classes: []int{Page, 1 << 20}}))
			var held []RDMABuffer
			for range 4 {
				held = append(held, mustGet(t, a, 1<<20, Anonymous))
			}
			var order []int
			var got []RDMABuffer
			for i := range 8 {
				go func() {
					b, err := a.Get(context.Background(), 1<<20, Anonymous)
					require.NoError(t, err)
					order = append(order, i)
					got = append(got, b)
				}()
				synctest.Wait()
			}
			require.Empty(t, order)
			require.Equal(t, 8, a.Stats().Waiting)
			_, ok := a.TryGet(1<<20, Anonymous)
			require.False(t, ok)
			for i := range 8 {
				if i < 4 {
					held[i].Release()
				} else {
					got[i-4].Release()
				}
				if i%2 == 0 { // nobody may overtake those who wait
					_, ok := a.TryGet(1<<20, Anonymous)
					require.False(t, ok)
				}
				synctest.Wait()
				check(t, a)
			}
			require.Equal(t, []int{0, 1, 2, 3, 4, 5, 6, 7}, order)
			require.EqualValues(t, 8, a.Stats().Waited)
			for _, b := range got[4:] {
				b.Release()
			}
		})
	})
}

// A slot that another core has cached serves a waiter.
func TestCachedSlotsServeWaiters(t *testing.T) {
	bothModes(t, func(t *testing.T, mode func(*Arena) *Arena) {
		a := mode(newArena(t, Config{Budget: 1 << 20, Reserve: -1, Classes: []int{Page, 1 << 20}}))
		b := mustGet(t, a, 1, Anonymous)
		b.Release()
		require.Positive(t, a.Stats().Classes[0].Cached)
		b = mustGet(t, a, 1<<20, Anonymous)
		require.Zero(t, a.Stats().Classes[0].Cached)
		b.Release()
	})
}

// While somebody waits for a whole chunk, a chunk of small buffers is not used
// again, so that it becomes free though small ones are asked for all the time.
func TestLargeIsNotStarvedBySmall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newArena(t, Config{Budget: 4 << 20, Reserve: -1, Classes: []int{64 << 10, 1 << 20}})
		ctx := context.Background()
		var small []RDMABuffer
		for range 64 {
			small = append(small, mustGet(t, a, 64<<10, Anonymous))
		}
		done := false
		var large RDMABuffer
		go func() {
			var err error
			large, err = a.Get(ctx, 1<<20, Anonymous)
			require.NoError(t, err)
			done = true
		}()
		synctest.Wait()
		rnd := rand.New(rand.NewPCG(1, 2))
		steps := 0
		for ; !done; steps++ {
			require.Less(t, steps, 1000, "the large one starves")
			// 60 are in use: whatever comes back is asked for again.
			i := rnd.IntN(len(small))
			small[i].Release()
			small[i] = small[len(small)-1]
			small = small[:len(small)-1]
			for len(small) < 44 {
				b, ok := a.TryGet(64<<10, Anonymous)
				if !ok {
					break
				}
				small = append(small, b)
			}
			check(t, a)
			synctest.Wait()
		}
		t.Logf("served after %d releases", steps)
		large.Release()
		for _, b := range small {
			b.Release()
		}
	})
}

func TestListsDoNotBlockEachOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newArena(t, Config{Budget: 10 << 20, Reserve: -1})
		var held []RDMABuffer
		for range 10 {
			held = append(held, mustGet(t, a, 1<<20, Anonymous))
		}
		var order []int
		for i := range 4 {
			go func() { // ends when it has got its list and released it
				l, err := a.GetList(context.Background(), 8<<20+int64(i)*Page, Anonymous)
				require.NoError(t, err)
				order = append(order, i)
				l.Release()
			}()
			synctest.Wait()
		}
		for i, b := range held {
			b.Release()
			synctest.Wait()
			check(t, a)
			require.Equal(t, i >= 7, len(order) > 0)
		}
		require.Equal(t, []int{0, 1, 2, 3}, order)
	})
}

func TestCancelLosesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newArena(t, Config{Budget: 8 << 20, Reserve: -1})
		q := a.Owner("q", 4<<20)
		ctx, cancel := context.WithCancel(context.Background())
		hold, ok := a.TryGetList(7<<20, Anonymous)
		require.True(t, ok)
		before := a.Account()
		errs := make(chan error, 3)
		result := func(release func(), err error) {
			// The end of one wait may serve another whose ctx has ended too.
			if err == nil {
				release()
				err = context.Canceled
			}
			errs <- err
		}
		go func() { l, err := a.GetList(ctx, 3<<20, q); result(l.Release, err) }() // gathers
		synctest.Wait()
		go func() { b, err := a.Get(ctx, 1<<20, q); result(b.Release, err) }()
		go func() { l, err := a.GetList(ctx, 2<<20, q); result(l.Release, err) }() // waits for quota
		synctest.Wait()
		require.Equal(t, 3, a.Stats().Waiting)
		check(t, a)
		cancel()
		for range 3 {
			require.ErrorIs(t, <-errs, context.Canceled)
		}
		check(t, a)
		require.Equal(t, before, a.Account())
		l, ok := a.TryGetList(1<<20, q)
		require.True(t, ok)
		l.Release()
		hold.Release()
		_, err := a.Get(ctx, 1<<20, q)
		require.NoError(t, err, "an uncontended Get does not look at ctx")
		st := a.Stats()
		require.EqualValues(t, 1<<20, st.Held)
		for _, h := range a.Holders() {
			require.Equal(t, "q", h.Owner)
		}
		a.releaseAll()
	})
}

// releaseAll releases what a test has lost its handles to.
func (a *Arena) releaseAll() {
	var bs []RDMABuffer
	a.walk(func(s uint32, _ uint8, state uint64) {
		if referenced(state) {
			bs = append(bs, RDMABuffer{a: a, gen: gen(state), slot: uint64(s)})
		}
	})
	for _, b := range bs {
		b.Release()
	}
}

func TestQuota(t *testing.T) {
	bothModes(t, func(t *testing.T, mode func(*Arena) *Arena) {
		synctest.Test(t, func(t *testing.T) {
			a := mode(newArena(t, Config{Budget: 16 << 20}))
			q := a.Owner("q", 100*Page)
			require.Equal(t, q, a.Owner("q", 0))
			require.Equal(t, "q", a.OwnerName(q))
			ctx := context.Background()
			_, err := a.Get(ctx, 101*Page, q)
			require.ErrorIs(t, err, ErrQuota)
			require.ErrorContains(t, err, `524288 bytes can never fit the quota of 409600 bytes of owner "q": raise it with Arena.Owner`)
			var bs []RDMABuffer
			for range 100 {
				bs = append(bs, mustGet(t, a, 1, q))
			}
			_, ok := a.TryGet(1, q)
			require.False(t, ok)
			mustGet(t, a, 1, Anonymous).Release() // others are not concerned
			got := make(chan RDMABuffer, 1)
			go func() {
				b, err := a.Get(ctx, 1, q)
				require.NoError(t, err)
				got <- b
			}()
			synctest.Wait()
			mustGet(t, a, 1, Anonymous).Release()
			require.Empty(t, got)
			check(t, a)
			bs[0].Release()
			bs[0] = <-got
			// A larger quota serves at once.
			go func() {
				b, err := a.Get(ctx, 1, q)
				require.NoError(t, err)
				got <- b
			}()
			synctest.Wait()
			require.Empty(t, got)
			a.Owner("q", 101*Page)
			bs = append(bs, <-got)
			a.Owner("q", 50*Page) // and a smaller one takes effect as buffers come back
			for range 51 {
				bs[0].Release()
				bs = bs[1:]
				_, ok = a.TryGet(1, q)
				require.False(t, ok)
			}
			bs[0].Release()
			bs[0] = mustGet(t, a, 1, q)
			// Who can never be served any more is told.
			fail := make(chan error, 1)
			go func() { _, err := a.Get(ctx, 50*Page, q); fail <- err }()
			synctest.Wait()
			a.Owner("q", 10*Page)
			require.ErrorIs(t, <-fail, ErrQuota)
			for _, b := range bs {
				b.Release()
			}
			st := a.Stats()
			require.Equal(t, OwnerStats{Name: "q", Quota: 10 * Page}, st.Owners[q])
		})
	})
}

func TestReserveIsForControl(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newArena(t, Config{Budget: 4 << 20, Reserve: 1 << 20})
		require.EqualValues(t, 1<<20, a.Stats().Reserve)
		var held []RDMABuffer
		for range 3 {
			held = append(held, mustGet(t, a, 1<<20, Anonymous))
		}
		_, ok := a.TryGet(1, Anonymous)
		require.False(t, ok)
		ctx := context.Background()
		waited := make(chan RDMABuffer, 1)
		go func() {
			b, err := a.Get(ctx, 1, Anonymous)
			require.NoError(t, err)
			waited <- b
		}()
		synctest.Wait()
		for range 3 { // control traffic goes on though somebody waits, and does not serve him from the reserve
			var hb []RDMABuffer
			for range 256 {
				b, err := a.Get(ctx, 1, Control)
				require.NoError(t, err)
				hb = append(hb, b)
			}
			_, ok = a.TryGet(1, Control)
			require.False(t, ok)
			check(t, a)
			for _, b := range hb {
				b.Release()
			}
			require.Empty(t, waited)
		}
		// When the reserve is used up, control waits for either.
		full := mustGet(t, a, 1<<20, Control)
		go func() {
			b, err := a.Get(ctx, 1, Control)
			require.NoError(t, err)
			b.Release()
		}()
		synctest.Wait()
		require.Equal(t, 2, a.Stats().Waiting)
		full.Release()
		synctest.Wait()
		require.Equal(t, 1, a.Stats().Waiting)
		held[0].Release()
		held[0] = <-waited
		for _, b := range held {
			b.Release()
		}
	})
}

func TestFailWhenFull(t *testing.T) {
	a := newArena(t, Config{Budget: 1 << 20, Reserve: -1, FailWhenFull: true})
	q := a.Owner("q", Page)
	ctx := context.Background()
	b, err := a.Get(ctx, 1, q)
	require.NoError(t, err)
	_, err = a.Get(ctx, 1, q)
	require.ErrorIs(t, err, ErrQuota)
	require.ErrorContains(t, err, `owner "q" may hold 4096 bytes and wants 4096 more: raise it with Arena.Owner, or release sooner`)
	_, err = a.GetList(ctx, 1<<20, Anonymous)
	require.ErrorIs(t, err, ErrExhausted)
	require.ErrorContains(t, err, "are not free of 1048576 (budget 1048576)")
	require.EqualValues(t, 2, a.Stats().Exhausted)
	b.Release()
}

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

func TestCloseNamesHolders(t *testing.T) {
	a, err := New(Config{Budget: 8 << 20})
	require.NoError(t, err)
	o := a.Owner("osd.3", 0)
	b := mustGet(t, a, 5000, o)
	b.RetainPosted()
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	err = a.Close(ctx)
	var leak *LeakError
	require.ErrorAs(t, err, &leak)
	require.Len(t, leak.Holders, 1)
	h := leak.Holders[0]
	require.Equal(t, "osd.3", h.Owner)
	require.EqualValues(t, 8192, h.Len)
	require.Equal(t, 2, h.Refs)
	require.Equal(t, 1, h.Posted)
	require.EqualValues(t, uintptr(unsafe.Pointer(&b.Bytes()[0])), h.Addr)
	require.EqualValues(t, 8<<20, leak.Quarantined)
	require.EqualValues(t, 8<<20, a.Stats().Quarantined)
	require.ErrorContains(t, err, "8388608 bytes stay mapped; 1 buffers are held: release them, close the connections that send or receive with them (the QPs that have them posted), and call Close again")
	require.ErrorContains(t, err, `"osd.3" holds 8192 bytes at 0x`)
	require.ErrorContains(t, err, "2 references, 1 of them posted work")
	require.Len(t, b.Bytes(), 5000, "still mapped")
	_, err = a.Get(context.Background(), 1, o)
	require.ErrorIs(t, err, ErrClosed)
	_, err = a.GetList(context.Background(), 1, o)
	require.ErrorIs(t, err, ErrClosed)
	require.ErrorIs(t, a.Attach(context.Background(), nil), ErrClosed)
	b.Release()
	require.Error(t, a.Close(ctx))
	b.ReleasePosted()
	require.NoError(t, a.Close(ctx))
	require.NoError(t, a.Close(ctx))
	require.Zero(t, a.Stats().Quarantined)
}

func TestCloseQuarantinesOnlyWhatIsHeld(t *testing.T) {
	a, err := New(Config{Budget: 4 << 20, RegionSize: 1 << 20, Reserve: -1})
	require.NoError(t, err)
	bs := []RDMABuffer{mustGet(t, a, 1<<20, Anonymous), mustGet(t, a, 1<<20, Anonymous)}
	bs[0].Release()
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	var leak *LeakError
	require.ErrorAs(t, a.Close(ctx), &leak)
	require.EqualValues(t, 1<<20, leak.Quarantined)
	bs[1].Bytes()[1<<20-1] = 1
	bs[1].Release()
	require.NoError(t, a.Close(ctx))
}

func TestCloseWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, err := New(Config{Budget: 1 << 20, Reserve: -1})
		require.NoError(t, err)
		b := mustGet(t, a, 1<<20, Anonymous)
		ctx := context.Background()
		waiter, closer := make(chan error, 1), make(chan error, 1)
		go func() { _, err := a.Get(ctx, 1, Anonymous); waiter <- err }()
		synctest.Wait()
		go func() { closer <- a.Close(ctx) }()
		synctest.Wait()
		require.ErrorIs(t, <-waiter, ErrClosed)
		require.Empty(t, closer)
		b.Release()
		require.NoError(t, <-closer)
	})
}

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
	says(c.Release, "one reference to buffer", "released twice, the first time at", "buffer.TestTrace", "arena_test.go")
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
