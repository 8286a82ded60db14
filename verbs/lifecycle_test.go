package verbs_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/argonaut-rdma/argonaut/verbs"
	"github.com/argonaut-rdma/argonaut/verbs/driver"
)

func kinds(rs []verbs.Resource) (ks []verbs.Kind) {
	for _, r := range rs {
		ks = append(ks, r.Kind)
	}
	return ks
}

func TestParentsRefuseToClose(t *testing.T) {
	l := newLoop(nil)
	dev, err := verbs.NewDevice(l, verbs.Config{TraceStacks: true})
	require.NoError(t, err)
	require.Contains(t, verbs.Devices(), dev)
	ch, err := dev.CreateCompChannel()
	require.NoError(t, err)
	cq, err := dev.CreateCQ(verbs.CQConfig{Depth: 512, Channel: ch})
	require.NoError(t, err)
	pd, err := dev.AllocPD()
	require.NoError(t, err)
	srq, err := pd.CreateSRQ(verbs.SRQConfig{})
	require.NoError(t, err)
	qp, err := pd.CreateQP(verbs.QPConfig{SendCQ: cq, SRQ: srq})
	require.NoError(t, err)
	mr, err := pd.RegMR(make([]byte, 10), verbs.AccessLocalWrite)
	require.NoError(t, err)
	key, err := mr.Scope(qp, 2, 5, verbs.AccessRemoteWrite)
	require.NoError(t, err)
	mw, err := pd.AllocMW()
	require.NoError(t, err)

	closeQP := func() error { _, err := qp.Close(); return err }
	closeSRQ := func() error { _, err := srq.Close(); return err }
	all := []verbs.Kind{
		verbs.KindCompChannel, verbs.KindCQ, verbs.KindPD, verbs.KindSRQ, verbs.KindQP, verbs.KindMR, verbs.KindScopedMR, verbs.KindMW,
	}
	require.Equal(t, all, kinds(dev.Resources()))
	live := verbs.Stats{CompChannels: 1, CQs: 1, PDs: 1, SRQs: 1, QPs: 1, MRs: 1, ScopedMRs: 1, MWs: 1, BytesRegistered: 10}
	require.Equal(t, live, dev.Stats())
	for _, r := range dev.Resources() {
		require.Contains(t, r.Stack, "TestParentsRefuseToClose")
		require.NotEmpty(t, r.String())
	}
	require.EqualValues(t, 5, dev.Resources()[6].Length)
	require.Equal(t, qp.QPN(), dev.Resources()[6].QPN)

	for _, c := range []struct {
		name     string
		close    func() error
		children []verbs.Kind
	}{
		{"device", dev.Close, all},
		{"PD", pd.Close, []verbs.Kind{verbs.KindSRQ, verbs.KindQP, verbs.KindMR, verbs.KindMW}},
		{"comp channel", ch.Close, []verbs.Kind{verbs.KindCQ}},
		{"CQ", cq.Close, []verbs.Kind{verbs.KindQP}},
		{"SRQ", closeSRQ, []verbs.Kind{verbs.KindQP}},
		{"QP", closeQP, []verbs.Kind{verbs.KindScopedMR}},
		{"MR", mr.Deregister, []verbs.Kind{verbs.KindScopedMR}},
	} {
		var busy *verbs.BusyError
		require.ErrorAs(t, c.close(), &busy, c.name)
		require.Equal(t, c.children, kinds(busy.Children), c.name)
		require.ErrorIs(t, busy, verbs.ErrBusy)
		require.Contains(t, busy.Error(), " is in use by ")
	}
	require.Len(t, dev.Resources(), len(all), "nothing has changed")

	for _, f := range []func() error{key.Deregister, mw.Close, closeQP, closeSRQ, mr.Deregister, cq.Close, ch.Close, pd.Close, dev.Close} {
		require.NoError(t, f())
	}
	for _, f := range []func() error{key.Deregister, mw.Close, closeQP, closeSRQ, mr.Deregister, cq.Close, ch.Close, pd.Close, dev.Close} {
		require.NoError(t, f(), "a second time")
	}
	require.Empty(t, dev.Resources())
	require.Equal(t, verbs.Stats{}, dev.Stats())
	require.Equal(t, 7, l.destroy, "each destructor of the driver once")
	require.NotContains(t, verbs.Devices(), dev)

	_, err = dev.AllocPD()
	require.ErrorIs(t, err, verbs.ErrClosed)
	_, err = pd.RegMR(make([]byte, 1), 0)
	require.ErrorIs(t, err, verbs.ErrClosed)
	_, err = cq.Poll(make([]verbs.WC, 1))
	require.ErrorIs(t, err, verbs.ErrClosed)
	_, err = ch.Wait(context.Background())
	require.ErrorIs(t, err, verbs.ErrClosed)
	_, err = srq.PostRecv(make([]verbs.RecvWR, 1))
	require.ErrorIs(t, err, verbs.ErrClosed)
	_, err = dev.NextEvent(context.Background())
	require.ErrorIs(t, err, verbs.ErrClosed)
}

// What a destructor that failed leaves is live and can be closed again.
func TestFailedDestructor(t *testing.T) {
	r := newRig(t, nil, verbs.Config{}, verbs.QPConfig{})
	broken := errors.New("broken")
	r.send(verbs.SendWR{WRID: 7, Flags: verbs.SendSignaled})
	r.l.failNext(broken)
	orphans, err := r.qp.Close()
	require.ErrorIs(t, err, broken)
	require.Empty(t, orphans)
	r.send(verbs.SendWR{WRID: 8})
	orphans, err = r.qp.Close()
	require.NoError(t, err)
	require.Equal(t, []verbs.Orphan{{WRID: 7}, {WRID: 8}}, orphans)

	r.l.failNext(broken)
	require.ErrorIs(t, r.cq.Close(), broken)
	r.l.failNext(broken)
	err = r.mr.Deregister()
	require.ErrorIs(t, err, broken)
	require.ErrorContains(t, err, "the region is still live")
	require.True(t, r.mr.Live())
	_, err = r.cq.Poll(make([]verbs.WC, 1))
	require.NoError(t, err)

	r.l.failNext(driver.ErrDeviceLost)
	err = r.mr.Deregister()
	require.ErrorIs(t, err, verbs.ErrDeviceLost)
	require.NotContains(t, err.Error(), "still live")
	require.False(t, r.mr.Live(), "there is no device any more")
	require.NoError(t, r.mr.Deregister())
}

func TestStuckDestructor(t *testing.T) {
	r := newRig(t, nil, verbs.Config{CloseTimeout: 10 * time.Millisecond}, verbs.QPConfig{})
	r.send(verbs.SendWR{WRID: 7, SGEs: r.sge(8)})
	block := make(chan struct{})
	r.l.mu.Lock()
	r.l.block = block
	r.l.mu.Unlock()
	orphans, err := r.qp.Close()
	var stuck *verbs.StuckError
	require.ErrorAs(t, err, &stuck)
	require.True(t, stuck.Timeout())
	require.Contains(t, err.Error(), "close QP")
	require.Contains(t, err.Error(), "still running")
	require.Empty(t, orphans, "the device may still use them")
	require.Equal(t, 1, r.dev.Stats().StuckCalls)
	require.Equal(t, 1, r.mr.InFlight())
	require.ErrorIs(t, r.mr.Deregister(), verbs.ErrBusy)
	require.ErrorIs(t, r.pd.Close(), verbs.ErrBusy)
	_, err = r.qp.PostSend([]verbs.SendWR{{}})
	require.ErrorIs(t, err, verbs.ErrClosed)

	r.l.mu.Lock()
	r.l.block = nil
	r.l.mu.Unlock()
	close(block)
	require.Eventually(t, func() bool {
		orphans, err = r.qp.Close()
		return err == nil
	}, time.Minute, time.Millisecond)
	require.Equal(t, []verbs.Orphan{{WRID: 7}}, orphans)
	require.Eventually(t, func() bool { return r.dev.Stats().StuckCalls == 0 }, time.Minute, time.Millisecond)
	require.Zero(t, r.mr.InFlight())
}

func TestTracingOff(t *testing.T) {
	verbs.TraceStacksByDefault(false)
	defer verbs.TraceStacksByDefault(true)
	r := newRig(t, nil, verbs.Config{}, verbs.QPConfig{})
	require.Empty(t, r.dev.Resources()[0].Stack)
	r.dev.SetTraceStacks(true)
	pd, err := r.dev.AllocPD()
	require.NoError(t, err)
	rs := r.dev.Resources()
	require.True(t, strings.HasPrefix(rs[len(rs)-1].Stack, "github.com/argonaut-rdma/argonaut/verbs.(*Device).AllocPD\n"), rs[len(rs)-1].Stack)
	require.NoError(t, pd.Close())
}
