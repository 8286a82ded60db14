package verbs_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/argonaut-rdma/argonaut/verbs"
	"github.com/argonaut-rdma/argonaut/verbs/driver"
	"github.com/argonaut-rdma/argonaut/verbs/verbstest"
)

// Some devices purge what a QP that is destroyed had completed: what it had taken
// from an SRQ is flushed out and fetched before.
func TestCloseFetchesSRQEntriesFirst(t *testing.T) {
	var dropping, flushed bool
	var destroyedFlushed []bool
	s := &verbstest.Script{
		Call: func(c verbstest.Call) verbstest.Fault {
			switch c.Op {
			case verbstest.CallSetState:
				flushed = true
			case verbstest.CallDestroyQP:
				destroyedFlushed = append(destroyedFlushed, flushed)
				dropping = true
			}
			return verbstest.Fault{}
		},
		Poll: func(wcs []driver.WC) []driver.WC {
			if dropping {
				return nil
			}
			return wcs
		},
	}
	l := newLoop(nil)
	dev, err := verbs.NewDevice(verbstest.NewFaulty(l, s), verbs.Config{})
	require.NoError(t, err)
	pd, err := dev.AllocPD()
	require.NoError(t, err)
	cq, err := dev.CreateCQ(verbs.CQConfig{Depth: 64})
	require.NoError(t, err)
	srq, err := pd.CreateSRQ(verbs.SRQConfig{MaxWR: 8})
	require.NoError(t, err)
	qp, err := pd.CreateQP(verbs.QPConfig{SendCQ: cq, SRQ: srq, MaxSendWR: 8})
	require.NoError(t, err)
	_, err = srq.PostRecv([]verbs.RecvWR{{WRID: 1}, {WRID: 2}})
	require.NoError(t, err)
	l.last().receive(driver.WC{})
	orphans, err := qp.Close()
	require.NoError(t, err)
	require.Equal(t, []verbs.Orphan{{1, true}}, orphans)
	require.Equal(t, []bool{true}, destroyedFlushed)
	orphans, err = srq.Close()
	require.NoError(t, err)
	require.Equal(t, []verbs.Orphan{{2, true}}, orphans)
	require.NoError(t, cq.Close())
	require.NoError(t, pd.Close())
	require.NoError(t, dev.Close())
}

// Completions of others that Close finds in the CQ are kept, in order.
func TestCloseKeepsCompletionsOfOthers(t *testing.T) {
	r := newRig(t, nil, verbs.Config{}, verbs.QPConfig{MaxSendWR: 128})
	qp, err := r.pd.CreateQP(verbs.QPConfig{SendCQ: r.cq})
	require.NoError(t, err)
	for i := range 100 {
		r.send(verbs.SendWR{WRID: uint64(i), Flags: verbs.SendSignaled})
		r.lq.finish(0)
	}
	_, err = qp.Close()
	require.NoError(t, err)
	r.send(verbs.SendWR{WRID: 100, Flags: verbs.SendSignaled})
	r.lq.finish(0)
	var got []uint64
	for wcs := r.poll(); len(wcs) > 0; wcs = r.poll() {
		got = append(got, wrids(wcs)...)
	}
	require.Len(t, got, 101)
	require.True(t, slices.IsSorted(got))
}

func TestDrain(t *testing.T) {
	r := newRig(t, nil, verbs.Config{}, verbs.QPConfig{})
	require.NoError(t, r.qp.Drain(context.Background()))
	r.send(verbs.SendWR{WRID: 1}, verbs.SendWR{WRID: 2})
	_, err := r.qp.PostRecv([]verbs.RecvWR{{WRID: 3}})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	err = r.qp.Drain(ctx)
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorContains(t, err, "3 requests outstanding")
	require.ErrorIs(t, r.cq.Drain(ctx, nil), context.Canceled)

	done := make(chan error)
	go func() { done <- r.qp.Drain(context.Background()) }()
	require.NoError(t, r.qp.SetError())
	select {
	case <-done:
		t.Fatal("Drain polls")
	case <-time.After(20 * time.Millisecond): // it must not happen, so it is waited for
	}
	var got []uint64
	require.NoError(t, r.cq.Drain(context.Background(), func(wc verbs.WC) { got = append(got, wc.WRID) }))
	require.Equal(t, []uint64{1, 2, 3}, got)
	require.NoError(t, <-done)
}
