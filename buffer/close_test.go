package buffer

import (
	"context"
	"testing"
	"testing/synctest"
	"unsafe"

	"github.com/stretchr/testify/require"
)

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
