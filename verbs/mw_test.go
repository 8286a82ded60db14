package verbs_test

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/argonaut-rdma/argonaut/verbs"
	"github.com/argonaut-rdma/argonaut/verbs/driver"
)

func TestWindow(t *testing.T) {
	r := newRig(t, nil, verbs.Config{}, verbs.QPConfig{})
	w, err := r.pd.AllocMW()
	require.NoError(t, err)
	require.False(t, w.Bound())
	initial := w.RKey()

	bind := func() {
		before := w.RKey()
		require.NoError(t, r.qp.BindMW(w, r.mr, 16, 32, verbs.AccessRemoteWrite, 1))
		require.Equal(t, before+1, w.RKey())
		b := r.lq.sq[len(r.lq.sq)-1].Bind
		require.Equal(t, r.mr.Addr()+16, b.Addr)
		require.EqualValues(t, 32, b.Length)
		require.Equal(t, w.RKey(), b.RKey)
		require.True(t, w.Bound())
		require.ErrorIs(t, w.Close(), verbs.ErrBusy, "the bind is outstanding")
		r.lq.finish(0)
		require.Equal(t, []uint64{1}, wrids(r.poll()), "a bind is always told")
		require.Zero(t, r.mr.InFlight(), "no request any more")
	}
	bind()
	require.ErrorIs(t, r.qp.BindMW(w, r.mr, 16, 32, verbs.AccessRemoteWrite, 2), verbs.ErrInvalid, "bound")
	for _, f := range []func() error{r.mr.Deregister, func() error { _, err := r.qp.Close(); return err }} {
		var busy *verbs.BusyError
		require.ErrorAs(t, f(), &busy)
		require.Equal(t, []verbs.Kind{verbs.KindMW}, kinds(busy.Children))
		require.Equal(t, w.RKey(), busy.Children[0].RKey)
	}

	// Local invalidation, un-signalled by the caller: the core learns of it.
	r.send(verbs.SendWR{WRID: 3, Opcode: verbs.OpLocalInvalidate, InvalidateRKey: w.RKey()})
	require.True(t, w.Bound())
	r.lq.finish(0)
	require.Empty(t, r.poll())
	require.False(t, w.Bound())
	require.EqualValues(t, 1, r.dev.Stats().Swallowed)

	// The peer's invalidation.
	bind()
	_, err = r.qp.PostRecv([]verbs.RecvWR{{WRID: 4}, {WRID: 5}})
	require.NoError(t, err)
	r.lq.receive(driver.WC{HasInv: true, InvalidatedRKey: initial}) // not bound: the core just passes it on
	require.Len(t, r.poll(), 1)
	require.True(t, w.Bound())
	r.lq.receive(driver.WC{HasInv: true, InvalidatedRKey: w.RKey()})
	wcs := r.poll()
	require.Equal(t, w.RKey(), wcs[0].InvalidatedRKey)
	require.False(t, w.Bound())

	// A bind that the device does not take, and one that it flushes.
	r.l.mu.Lock()
	r.l.refuse = 0
	r.l.mu.Unlock()
	key := w.RKey()
	require.ErrorIs(t, r.qp.BindMW(w, r.mr, 0, 1, verbs.AccessRemoteRead, 6), verbs.ErrQueueFull)
	require.False(t, w.Bound())
	require.Equal(t, key, w.RKey())
	r.l.mu.Lock()
	r.l.refuse = -1
	r.l.mu.Unlock()
	require.NoError(t, r.qp.BindMW(w, r.mr, 0, 1, verbs.AccessRemoteRead, 7))
	require.NoError(t, r.qp.SetError())
	require.Equal(t, []uint64{7}, wrids(r.poll()))
	require.False(t, w.Bound())

	require.NoError(t, w.Close())
	require.ErrorIs(t, r.qp.BindMW(w, r.mr, 0, 1, verbs.AccessRemoteRead, 8), verbs.ErrQPState)
}

func TestBindRefuses(t *testing.T) {
	r := newRig(t, nil, verbs.Config{}, verbs.QPConfig{})
	w, err := r.pd.AllocMW()
	require.NoError(t, err)
	noBind, err := r.pd.RegMR(make([]byte, 64), verbs.AccessLocalWrite)
	require.NoError(t, err)
	noWrite, err := r.pd.RegMR(make([]byte, 64), verbs.AccessMWBind)
	require.NoError(t, err)
	for name, err := range map[string]error{
		"no window":    r.qp.BindMW(nil, r.mr, 0, 1, verbs.AccessRemoteRead, 1),
		"no right":     r.qp.BindMW(w, r.mr, 0, 1, 0, 1),
		"local right":  r.qp.BindMW(w, r.mr, 0, 1, verbs.AccessLocalWrite, 1),
		"outside":      r.qp.BindMW(w, r.mr, 4096, 1, verbs.AccessRemoteRead, 1),
		"empty":        r.qp.BindMW(w, r.mr, 0, 0, verbs.AccessRemoteRead, 1),
		"no MW_BIND":   r.qp.BindMW(w, noBind, 0, 1, verbs.AccessRemoteRead, 1),
		"not writable": r.qp.BindMW(w, noWrite, 0, 1, verbs.AccessRemoteWrite, 1),
	} {
		require.ErrorIs(t, err, verbs.ErrInvalid, name)
	}
	require.EqualValues(t, 7, r.dev.Stats().PostsRefused)
	// Windows on a QP that is closed with its bind outstanding.
	require.NoError(t, r.qp.BindMW(w, noWrite, 0, 1, verbs.AccessRemoteRead, 9))
	require.NoError(t, r.lq.SetState(driver.QPStateErr))
	require.NoError(t, r.qp.SetError())
	require.NoError(t, w.Close())
	orphans, err := r.qp.Close()
	require.NoError(t, err)
	require.Equal(t, []verbs.Orphan{{WRID: 9}}, orphans)
	require.NoError(t, noBind.Deregister())
	require.NoError(t, noWrite.Deregister())

}

func TestWithoutWindows(t *testing.T) {
	l := newLoop(func(c *driver.Caps) { c.MW2, c.ScopedKeys, c.SRQ, c.SRQLimit = false, false, false, false })
	dev := l.open(t, verbs.Config{})
	pd, err := dev.AllocPD()
	require.NoError(t, err)
	_, err = pd.AllocMW()
	require.ErrorIs(t, err, verbs.ErrNotSupported)
	require.True(t, errors.Is(err, errors.ErrUnsupported))
	_, err = pd.RegMR(make([]byte, 8), verbs.AccessMWBind)
	require.ErrorIs(t, err, verbs.ErrNotSupported)
	_, err = pd.CreateSRQ(verbs.SRQConfig{})
	require.ErrorIs(t, err, verbs.ErrNotSupported)
	mr, err := pd.RegMR(make([]byte, 8), 0)
	require.NoError(t, err)
	cq, err := dev.CreateCQ(verbs.CQConfig{Depth: 256})
	require.NoError(t, err)
	qp, err := pd.CreateQP(verbs.QPConfig{SendCQ: cq})
	require.NoError(t, err)
	_, err = mr.Scope(qp, 0, 1, verbs.AccessRemoteRead)
	require.ErrorIs(t, err, verbs.ErrNotSupported)
	_, err = qp.Close()
	require.NoError(t, err)
	require.NoError(t, mr.Deregister())
	require.NoError(t, cq.Close())
	require.NoError(t, pd.Close())
}
