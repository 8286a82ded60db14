package iwarp

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/argonaut-rdma/argonaut/verbs/driver"
)

// An invalidation that has found its key, and comes late, leaves the window's next binding alone.
func TestInvalidationComesLate(t *testing.T) {
	e := newEnd(t, endConfig{})
	_, m := e.mem(64, driver.AccessLocalWrite|driver.AccessMWBind)
	mw, err := e.pd.AllocMW()
	require.NoError(t, err)
	w, q := mw.(*window), e.qp.(*queuePair)
	bind := func() *region {
		key := w.RKey()&^0xff | (w.RKey()+1)&0xff
		require.True(t, w.bind(q, &driver.MWBind{MW: w, RKey: key, MR: m, Addr: m.Addr(), Length: m.Length(), Access: driver.AccessRemoteRead}))
		r := e.dev.stags.lookup(key)
		require.NotNil(t, r)
		return r
	}
	first := bind()
	first.owner.revoke(first)
	require.True(t, first.closed())
	second := bind()

	first.owner.revoke(first)
	require.Same(t, second, e.dev.stags.lookup(w.RKey()))
	require.False(t, second.closed())

	require.NoError(t, q.Destroy())
	require.True(t, second.closed())
	require.NoError(t, w.Dealloc())
}

// The next key of a slot is not the one that a window was bound under last, which the peer knows.
func TestKeyOfAWindowRests(t *testing.T) {
	e := newEnd(t, endConfig{cfg: Config{MaxMR: 2}})
	_, m := e.mem(64, driver.AccessLocalWrite|driver.AccessMWBind)
	mw, err := e.pd.AllocMW()
	require.NoError(t, err)
	w, q := mw.(*window), e.qp.(*queuePair)
	key := w.RKey()&^0xff | (w.RKey()+1)&0xff
	require.True(t, w.bind(q, &driver.MWBind{MW: w, RKey: key, MR: m, Addr: m.Addr(), Length: m.Length(), Access: driver.AccessRemoteRead}))
	require.NoError(t, w.Dealloc())

	_, next := e.mem(64, driver.AccessRemoteRead)
	require.Equal(t, key>>8, next.RKey()>>8, "the slot is used again")
	require.NotEqual(t, key, next.RKey())
}
