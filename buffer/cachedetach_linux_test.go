package buffer

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/argonaut-rdma/argonaut/verbs"
	"github.com/argonaut-rdma/argonaut/verbs/iwarp"
	"github.com/argonaut-rdma/argonaut/verbs/verbstest"
)

// Detach gives a PD up without its memory: not while work or a grant is there.
func TestMemoryDetach(t *testing.T) {
	verbstest.NoLeaks(t)
	ctx := context.Background()
	x, z := openPD(t, iwarp.Config{}, &verbstest.Script{}), openPD(t, iwarp.Config{}, &verbstest.Script{})
	c := newCache(t, RegCacheConfig{PDs: []*verbs.PD{x, z}})
	defer closeCache(t, c)
	m, err := c.Add(anon(t, 3*Page))
	require.NoError(t, err)
	r := mustRegister(t, m, 0)
	l := r.List()
	at := c.a.attachment(x)
	at.grants.Add(1)
	require.ErrorIs(t, c.Detach(ctx, x), verbs.ErrBusy)
	require.Equal(t, 1, regions(x), "everything stays")
	at.grants.Add(-1)
	require.NoError(t, c.Detach(ctx, x))
	require.NoError(t, c.Detach(ctx, x))
	require.Zero(t, regions(x))
	require.Equal(t, 1, regions(z))
	require.Nil(t, l.SGEs(nil, x)[0].MR)
	require.NotNil(t, l.SGEs(nil, z)[0].MR)
	_, ok := l.At(0).Rights(x)
	require.False(t, ok)
	l.Release()
	r.Close()
	r = mustRegister(t, m, verbs.AccessLocalWrite) // elsewhere it goes on
	require.Zero(t, regions(x))
	require.Equal(t, 2, regions(z))
	r.Close()
}

// A device that is stuck does not hold Detach beyond its context.
func TestCacheDetachIsBounded(t *testing.T) {
	stuck, in := make(chan struct{}), make(chan struct{}, 16)
	pd := openPD(t, iwarp.Config{}, &verbstest.Script{Call: func(c verbstest.Call) verbstest.Fault {
		if c.Op == verbstest.CallDeregister {
			in <- struct{}{}
			return verbstest.Fault{Wait: stuck}
		}
		return verbstest.Fault{}
	}})
	c := newCache(t, RegCacheConfig{PDs: []*verbs.PD{pd}})
	m, err := c.Add(anon(t, 3*Page))
	require.NoError(t, err)
	mustRegister(t, m, 0).Close()
	closed := make(chan error, 1)
	go func() { closed <- m.Close(context.Background()) }()
	<-in
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, c.Detach(ctx, pd), context.DeadlineExceeded)
	close(stuck)
	require.NoError(t, <-closed)
	require.NoError(t, c.Detach(context.Background(), pd))
	closeCache(t, c)
}
