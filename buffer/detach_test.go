package buffer

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/argonaut-rdma/argonaut/verbs"
	"github.com/argonaut-rdma/argonaut/verbs/iwarp"
	"github.com/argonaut-rdma/argonaut/verbs/verbstest"
)

func TestDetachGoesOnWhereItFailed(t *testing.T) {
	verbstest.NoLeaks(t)
	broken := errors.New("broken")
	count := func(o verbstest.Op) bool { return o == verbstest.CallDeregister }
	verbstest.FailEach(t, broken, count, func(t *testing.T, s *verbstest.Script) {
		pd := openPD(t, iwarp.Config{}, s)
		a := newArena(t, Config{Budget: 4 << 20, RegionSize: 1 << 20})
		ctx := context.Background()
		require.NoError(t, a.Attach(ctx, pd))
		err := a.Detach(ctx, pd)
		require.False(t, a.Attached(pd))
		if s.Fired() == 0 {
			require.NoError(t, err)
			return
		}
		require.ErrorIs(t, err, broken)
		require.Regexp(t, `region \d \(lkey 0x[0-9a-f]+, address 0x[0-9a-f]+, 1048576 bytes\): `, err.Error())
		require.Equal(t, 1, regions(pd))
		err = a.Attach(ctx, pd)
		require.ErrorIs(t, err, verbs.ErrBusy)
		require.ErrorContains(t, err, "call Detach again")
		require.NoError(t, a.Detach(ctx, pd))
		require.Zero(t, regions(pd))
		require.NoError(t, a.Attach(ctx, pd))
	})
}

func TestCloseGoesOnWhereItFailed(t *testing.T) {
	verbstest.NoLeaks(t)
	broken := errors.New("broken")
	count := func(o verbstest.Op) bool { return o == verbstest.CallDeregister }
	verbstest.FailEach(t, broken, count, func(t *testing.T, s *verbstest.Script) {
		pd := openPD(t, iwarp.Config{}, s)
		a, err := New(Config{Budget: 4 << 20, RegionSize: 1 << 20})
		require.NoError(t, err)
		ctx := context.Background()
		require.NoError(t, a.Attach(ctx, pd))
		err = a.Close(ctx)
		if s.Fired() == 0 {
			require.NoError(t, err)
			return
		}
		require.ErrorIs(t, err, broken)
		var leak *LeakError
		require.ErrorAs(t, err, &leak)
		require.Empty(t, leak.Holders)
		require.EqualValues(t, 1<<20, leak.Quarantined, "the region that is still registered stays mapped")
		require.NoError(t, a.Close(ctx))
	})
}

// One call that is stuck in the device does not hold the batch, and neither it
// nor anything else holds Close beyond its context.
func TestStuckDeregistration(t *testing.T) {
	release := make(chan struct{})
	s := &verbstest.Script{Call: func(c verbstest.Call) verbstest.Fault {
		if c.Op == verbstest.CallDeregister && c.N == 3 {
			return verbstest.Fault{Wait: release}
		}
		return verbstest.Fault{}
	}}
	pd := openPD(t, iwarp.Config{}, s)
	a, err := New(Config{Budget: 40 << 20, RegionSize: 1 << 20})
	require.NoError(t, err)
	require.NoError(t, a.Attach(context.Background(), pd))
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	closed := make(chan error, 1)
	go func() { closed <- a.Close(ctx) }()
	require.Eventually(t, func() bool { return regions(pd) == 1 }, time.Minute, time.Millisecond)
	require.ErrorIs(t, a.Detach(ended(), pd), context.Canceled)
	cancel()
	err = <-closed
	var leak *LeakError
	require.ErrorAs(t, err, &leak)
	require.ErrorContains(t, err, "the device is still deregistering: context canceled")
	// Those that had just returned to a worker may not be counted as done yet.
	require.GreaterOrEqual(t, leak.Quarantined, int64(1<<20))
	require.LessOrEqual(t, leak.Quarantined, int64(inDevice<<20))
	require.Equal(t, 40, s.Calls(verbstest.CallDeregister))
	close(release)
	require.NoError(t, a.Close(context.Background()))
	require.Equal(t, 40, s.Calls(verbstest.CallDeregister), "it was waited for, not called again")
}

// An Attach that takes long does not hold Close beyond its context.
func TestCloseDuringAttach(t *testing.T) {
	started, release := make(chan struct{}), make(chan struct{})
	s := &verbstest.Script{Call: func(c verbstest.Call) verbstest.Fault {
		if c.Op == verbstest.CallRegMR {
			close(started)
			return verbstest.Fault{Wait: release}
		}
		return verbstest.Fault{}
	}}
	pd := openPD(t, iwarp.Config{}, s)
	a, err := New(Config{Budget: 1 << 20, Reserve: -1})
	require.NoError(t, err)
	attached := make(chan error, 1)
	go func() { attached <- a.Attach(context.Background(), pd) }()
	<-started
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, a.Close(ctx), context.DeadlineExceeded)
	close(release)
	require.NoError(t, <-attached)
	require.NoError(t, a.Close(context.Background()))
	require.Zero(t, regions(pd))
}

// A posted buffer keeps its region registered and mapped through Close, until
// the QP is gone.
func TestCloseWithPostedWork(t *testing.T) {
	x, _ := connect(t)
	a, err := New(Config{Budget: 4 << 20, RegionSize: 1 << 20, Reserve: -1})
	require.NoError(t, err)
	require.NoError(t, a.Attach(context.Background(), x.pd))
	o := a.Owner("recv", 0)
	b := mustGet(t, a, 1<<20, o)
	b.RetainPosted()
	_, err = x.qp.PostRecv([]verbs.RecvWR{{SGEs: []verbs.SGE{b.SGE(x.pd)}}})
	require.NoError(t, err)
	lkey := b.SGE(x.pd).MR.LKey()
	b.Release()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
	defer cancel()
	err = a.Close(ctx)
	var leak *LeakError
	require.ErrorAs(t, err, &leak)
	require.ErrorIs(t, err, verbs.ErrBusy)
	require.Len(t, leak.Holders, 1)
	require.Equal(t, lkey, leak.Holders[0].LKey)
	require.Equal(t, 1, leak.Holders[0].Posted)
	require.EqualValues(t, 1<<20, leak.Quarantined)
	require.Equal(t, 1, regions(x.pd))
	require.Contains(t, err.Error(), fmt.Sprintf("QP %d", x.qp.QPN()))
	_, err = x.qp.Close()
	require.NoError(t, err)
	b.ReleasePosted()
	require.NoError(t, a.Close(context.Background()))
	require.Zero(t, regions(x.pd))
}
