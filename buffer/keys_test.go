package buffer

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/argonaut-rdma/argonaut/test/env"
	"github.com/argonaut-rdma/argonaut/verbs"
	"github.com/argonaut-rdma/argonaut/verbs/driver"
	"github.com/argonaut-rdma/argonaut/verbs/verbstest"
)

func noKeys(c *driver.Caps) { c.ScopedKeys, c.MWConfines = false, false }

// needWindows skips where windows do not confine.
func needWindows(t *testing.T, x *end) {
	t.Helper()
	env.Need(t, x.pd.Device().Caps().MWConfines, "its windows do not confine, or it has none")
}

// A grant by a window reaches its range only, ends by Revoke, by the peer's
// invalidation and by its lifetime, and is refused while it is being bound.
func TestGrantWindow(t *testing.T) {
	verbstest.NoLeaks(t)
	x, y := connectWith(t, &verbstest.Script{Caps: func(c *driver.Caps) { c.ScopedKeys = false }})
	needWindows(t, x)
	ctx := context.Background()
	ax, ay := x.attached(Config{Budget: 4 << 20}), y.attached(Config{Budget: 4 << 20})
	require.Equal(t, KeyWindow, ax.Keys(x.pd))
	b := mustGet(t, ax, 8192, Anonymous)
	for i := range b.Bytes() {
		b.Bytes()[i] = byte(i)
	}
	mid := b.Slice(1000, 2000)
	_, err := mid.Grant(x.qp, verbs.AccessRemoteRead)
	require.ErrorIs(t, err, ErrNotSupported)
	require.ErrorContains(t, err, "use GrantWindow")
	g, err := mid.GrantWindow(x.qp, verbs.AccessRemoteRead, 77)
	require.NoError(t, err)
	require.Equal(t, KeyWindow, g.Kind())
	require.ErrorIs(t, g.Revoke(), verbs.ErrBusy, "it is not known to be bound")
	require.Equal(t, 1, ax.Stats().Grants)
	require.EqualValues(t, 77, x.poll().WRID)
	require.ErrorIs(t, ax.Detach(ctx, x.pd), verbs.ErrBusy)
	sink := mustGet(t, ay, 1000, Anonymous)
	read := func() {
		y.send(verbs.SendWR{Opcode: verbs.OpRead, SGEs: []verbs.SGE{sink.SGE(y.pd)}, RemoteAddr: g.Addr(), RKey: g.RKey()})
	}
	read()
	require.Equal(t, verbs.StatusSuccess, y.poll().Status)
	require.Equal(t, mid.Bytes(), sink.Bytes())
	require.NoError(t, g.Revoke())
	require.Zero(t, ax.Stats().Grants)

	// Once, and with a lifetime.
	recv := mustGet(t, ax, 100, Anonymous)
	_, err = x.qp.PostRecv([]verbs.RecvWR{{WRID: 7, SGEs: []verbs.SGE{recv.SGE(x.pd)}}})
	require.NoError(t, err)
	ends := make(chan GrantEnd, 1)
	told := func(e GrantEnd) { ends <- e }
	if x.pd.Device().Caps().SendInv {
		g, err = mid.GrantWindowFor(x.qp, GrantTerms{Access: verbs.AccessRemoteRead, Once: true, Ended: told}, 78)
		require.NoError(t, err)
		require.EqualValues(t, 78, x.poll().WRID)
		read()
		y.poll()
		y.send(verbs.SendWR{Opcode: verbs.OpSendWithInv, InvalidateRKey: g.RKey()})
		y.poll()
		require.True(t, x.poll().HasInv)
		require.Equal(t, GrantEnd{ByPeer: true}, <-ends)
		require.Zero(t, ax.Stats().Grants)
	}
	g, err = mid.GrantWindowFor(x.qp, GrantTerms{Access: verbs.AccessRemoteRead, Lifetime: 20 * time.Millisecond, Ended: told}, 79)
	require.NoError(t, err)
	require.EqualValues(t, 79, x.poll().WRID)
	require.Equal(t, GrantEnd{}, <-ends)
	require.Zero(t, ax.Stats().Grants)

	// One byte beside it, and the connection ends.
	g, err = mid.GrantWindow(x.qp, verbs.AccessRemoteRead, 80)
	require.NoError(t, err)
	require.EqualValues(t, 80, x.poll().WRID)
	y.send(verbs.SendWR{Opcode: verbs.OpRead, SGEs: []verbs.SGE{sink.SGE(y.pd)}, RemoteAddr: g.Addr() + 1, RKey: g.RKey()})
	require.NotEqual(t, verbs.StatusSuccess, y.poll().Status)
	<-y.qp.Disconnected()
	require.NoError(t, x.qp.SetError())
	require.NoError(t, g.Revoke())
	require.NoError(t, new(Grant).Revoke())
	// A window that was allocated ahead is given up by Revoke, too.
	ahead := new(Grant)
	require.NoError(t, ahead.Window(x.pd))
	require.NoError(t, ahead.Window(x.pd))
	require.Error(t, mid.GrantWindowInto(ahead, x.qp, verbs.AccessRemoteRead, 81), "the QP is in ERR")
	require.NoError(t, ahead.Window(x.pd))
	require.NoError(t, ahead.Revoke())
	releaseAll([]RDMABuffer{b, recv, sink})
}

// A grant that is refused leaves no window behind.
func TestGrantWindowRefused(t *testing.T) {
	verbstest.NoLeaks(t)
	x, _ := connectWith(t, &verbstest.Script{Caps: func(c *driver.Caps) { c.ScopedKeys = false }})
	needWindows(t, x)
	a := newArena(t, Config{Budget: 4 << 20})
	b := mustGet(t, a, 1000, Anonymous)
	_, err := b.GrantWindow(x.qp, verbs.AccessRemoteRead, 1)
	require.ErrorContains(t, err, "not attached to the PD of the QP")
	require.NoError(t, a.Attach(context.Background(), x.pd))
	_, err = b.GrantWindow(x.qp, verbs.AccessLocalWrite, 1)
	require.ErrorContains(t, err, "give AccessRemoteRead, AccessRemoteWrite")
	_, err = b.GrantWindowFor(x.qp, GrantTerms{Access: verbs.AccessLocalWrite, Lifetime: time.Hour}, 1)
	require.ErrorContains(t, err, "give AccessRemoteRead, AccessRemoteWrite")
	_, err = b.Slice(0, 0).GrantWindow(x.qp, verbs.AccessRemoteRead, 1)
	require.ErrorIs(t, err, ErrInvalid)
	for _, r := range x.pd.Device().Resources() {
		require.NotEqual(t, verbs.KindMW, r.Kind, "%v", r)
	}
	b.Release()
}

// Where keys do not confine, only an arena that is said to be exposed grants,
// and then with the key of its region.
func TestTrustFabric(t *testing.T) {
	verbstest.NoLeaks(t)
	x, y := connectWith(t, &verbstest.Script{Caps: noKeys})
	ctx := context.Background()
	plain := x.attached(Config{Budget: 4 << 20})
	require.Equal(t, KeyNone, plain.Keys(x.pd))
	b := mustGet(t, plain, 1000, Anonymous)
	_, err := b.Grant(x.qp, verbs.AccessRemoteRead)
	require.ErrorIs(t, err, ErrNotSupported)
	require.ErrorContains(t, err, "see Config.TrustFabric")
	b.Release()

	a, ay := x.attached(Config{Budget: 4 << 20, TrustFabric: true, Scrub: true}), y.attached(Config{Budget: 4 << 20})
	require.True(t, a.TrustFabric())
	require.Equal(t, KeyWide, a.Keys(x.pd))
	b = mustGet(t, a, 8192, a.Owner("one", 0))
	for i := range b.Bytes() {
		b.Bytes()[i] = byte(i)
	}
	rights, ok := b.Rights(x.pd)
	require.True(t, ok)
	require.Equal(t, verbs.AccessRemoteRead|verbs.AccessRemoteWrite, rights&verbs.AccessRemote)
	_, ok = b.Rights(y.pd)
	require.False(t, ok)
	_, err = b.GrantFor(x.qp, GrantTerms{Access: verbs.AccessRemoteRead, Lifetime: time.Hour})
	require.ErrorIs(t, err, ErrNotSupported)
	_, err = b.Grant(x.qp, verbs.AccessRemoteAtomic)
	require.ErrorIs(t, err, ErrNotSupported)
	g, err := b.Slice(1000, 2000).Grant(x.qp, verbs.AccessRemoteRead)
	require.NoError(t, err)
	require.Equal(t, KeyWide, g.Kind())
	require.Equal(t, 1000, g.Len())
	sink := mustGet(t, ay, 1000, Anonymous)
	y.send(verbs.SendWR{Opcode: verbs.OpRead, SGEs: []verbs.SGE{sink.SGE(y.pd)}, RemoteAddr: g.Addr(), RKey: g.RKey()})
	require.Equal(t, verbs.StatusSuccess, y.poll().Status)
	require.Equal(t, b.Bytes()[1000:2000], sink.Bytes())
	require.ErrorIs(t, a.Detach(ctx, x.pd), verbs.ErrBusy)
	require.NoError(t, g.Revoke())
	require.Zero(t, a.Stats().Grants)
	b.Release()
	// What the next owner gets there has nothing of what the last one left.
	b = mustGet(t, a, 8192, a.Owner("two", 0))
	require.Equal(t, make([]byte, 8192), b.Bytes())
	releaseAll([]RDMABuffer{b, sink})
	if !x.pd.Device().Caps().DeregBarrier { // a connected QP holds what its peer has the key of
		for _, e := range []*end{x, y} {
			_, err := e.qp.Close()
			require.NoError(t, err)
		}
	}
}

// On a device that confines keys such an arena exposes nothing.
func TestTrustFabricIsNotNeeded(t *testing.T) {
	verbstest.NoLeaks(t)
	ctx := context.Background()
	z := openPD(t, noConfig, &verbstest.Script{})
	env.Need(t, z.Device().Caps().ScopedKeys, "it has no scoped keys")
	c := newArena(t, Config{Budget: 4 << 20, TrustFabric: true})
	require.NoError(t, c.Attach(ctx, z))
	require.Equal(t, KeyScoped, c.Keys(z))
	b := mustGet(t, c, 1, Anonymous)
	rights, _ := b.Rights(z)
	require.Zero(t, rights&verbs.AccessRemote)
	b.Release()
	require.NoError(t, c.Detach(ctx, z))
}
