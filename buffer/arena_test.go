package buffer

import (
	"context"
	"strings"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
)

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
	st := a.Stats()
	for i, c := range st.Classes {
		require.Equal(t, a.Classes()[i], c.Size)
	}
	require.Equal(t, map[bool]int64{true: 0, false: st.Mapped}[st.Backing == backHeap], st.OffHeap)
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
