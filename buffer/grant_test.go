package buffer

import (
	"bytes"
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/argonaut-rdma/argonaut/test/env"
	"github.com/argonaut-rdma/argonaut/verbs"
	"github.com/argonaut-rdma/argonaut/verbs/iwarp"
	"github.com/argonaut-rdma/argonaut/verbs/verbstest"
)

// needKeys skips where x's device has no scoped keys.
func needKeys(t *testing.T, x *end) {
	t.Helper()
	env.Need(t, x.pd.Device().Caps().ScopedKeys, "it has no scoped keys")
}

func TestGrant(t *testing.T) {
	x, y := connect(t)
	needKeys(t, x)
	a, peer := x.attached(Config{Budget: 8 << 20}), y.attached(Config{Budget: 8 << 20})
	b := mustGet(t, a, 64<<10, Anonymous).Slice(100, 1100)
	dst := mustGet(t, peer, 1000, Anonymous)
	for i := range b.Bytes() {
		b.Bytes()[i] = byte(i)
	}
	g, err := b.Grant(x.qp, verbs.AccessRemoteRead|verbs.AccessRemoteWrite)
	require.NoError(t, err)
	require.Equal(t, 1000, g.Len())
	require.Equal(t, b, g.Buffer())
	require.Equal(t, 1, a.Stats().Grants)
	b.Release() // the grant's reference stays
	require.EqualValues(t, 64<<10, a.Account().Held)
	err = a.Detach(context.Background(), x.pd)
	require.ErrorIs(t, err, verbs.ErrBusy)
	require.ErrorContains(t, err, "1 grants are live on this PD: Revoke them first")
	require.True(t, a.Attached(x.pd))
	require.ErrorIs(t, b.GrantInto(g, x.qp, verbs.AccessRemoteRead), ErrInvalid)

	sge := []verbs.SGE{dst.SGE(y.pd)}
	y.send(verbs.SendWR{Opcode: verbs.OpRead, SGEs: sge, RemoteAddr: g.Addr(), RKey: g.RKey()})
	require.Equal(t, verbs.StatusSuccess, y.poll().Status)
	require.Equal(t, b.Bytes(), dst.Bytes())
	dst.Bytes()[999] = 0x77
	y.send(verbs.SendWR{Opcode: verbs.OpWrite, SGEs: sge, RemoteAddr: g.Addr(), RKey: g.RKey()})
	// The READ behind it comes back when the WRITE has been placed.
	y.send(verbs.SendWR{Opcode: verbs.OpRead, SGEs: sge, RemoteAddr: g.Addr(), RKey: g.RKey()})
	y.poll()
	y.poll()
	require.EqualValues(t, 0x77, b.Bytes()[999])

	addr, rkey := g.Addr(), g.RKey()
	require.NoError(t, g.Revoke())
	require.NoError(t, g.Revoke())
	require.Zero(t, a.Account().Held)
	require.Zero(t, a.Stats().Grants)
	require.Zero(t, g.RKey())
	require.Zero(t, g.Addr())
	require.Zero(t, g.Len())
	require.True(t, g.Buffer().IsZero())

	// The caller's Grant is used again, without allocating.
	b = mustGet(t, a, 1000, Anonymous)
	copy(b.Bytes(), bytes.Repeat([]byte{1}, 1000))
	require.NoError(t, b.GrantInto(g, x.qp, verbs.AccessRemoteRead))
	require.NoError(t, g.Revoke())

	// A key that was withdrawn opens nothing.
	dst.Bytes()[0] = 0x55
	y.send(verbs.SendWR{Opcode: verbs.OpWrite, SGEs: sge, RemoteAddr: addr, RKey: rkey})
	y.poll()
	<-x.qp.Disconnected()
	<-y.qp.Disconnected()
	require.EqualValues(t, 1, b.Bytes()[0])
	b.Release()
	dst.Release()
}

func TestGrantRefusals(t *testing.T) {
	x, _ := connect(t)
	needKeys(t, x)
	a := newArena(t, Config{Budget: 8 << 20})
	b := mustGet(t, a, 1000, Anonymous)
	_, err := b.Grant(x.qp, verbs.AccessRemoteRead)
	require.ErrorIs(t, err, ErrInvalid)
	require.ErrorContains(t, err, "not attached to the PD of the QP: Attach it first")
	require.NoError(t, a.Attach(context.Background(), x.pd))
	for _, acc := range []verbs.Access{0, verbs.AccessLocalWrite, verbs.AccessRemoteRead | verbs.AccessMWBind} {
		_, err = b.Grant(x.qp, acc)
		require.ErrorIs(t, err, ErrInvalid)
		require.ErrorContains(t, err, "give AccessRemoteRead, AccessRemoteWrite")
	}
	_, err = b.Slice(0, 0).Grant(x.qp, verbs.AccessRemoteRead)
	require.ErrorIs(t, err, verbs.ErrInvalid)
	require.Zero(t, a.Stats().Grants)
	require.EqualValues(t, Page, a.Account().Held)
	b.Release()
	require.Zero(t, a.Account().Held, "a grant that failed has kept nothing")
}

func TestDetachRacesWithGrants(t *testing.T) {
	x, _ := connect(t)
	needKeys(t, x)
	a := x.attached(Config{Budget: 8 << 20})
	b := mustGet(t, a, 1000, Anonymous)
	ctx := context.Background()
	done := make(chan int)
	go func() { // ends with its 500th grant
		granted := 0
		var g Grant
		for granted < 500 {
			if b.GrantInto(&g, x.qp, verbs.AccessRemoteRead) == nil {
				granted++
				require.NoError(t, g.Revoke())
			}
		}
		done <- granted
	}()
	detached := 0
	for {
		select {
		case granted := <-done:
			t.Logf("%d grants, %d detached", granted, detached)
			b.Release()
			return
		default:
		}
		if err := a.Detach(ctx, x.pd); err == nil {
			detached++
		} else {
			require.ErrorIs(t, err, verbs.ErrBusy)
		}
		require.NoError(t, a.Attach(ctx, x.pd))
	}
}

// A grant for one operation ends with the peer's SEND_WITH_INV, when that is
// polled; one with a lifetime ends when the peer is silent.
func TestGrantTerms(t *testing.T) {
	verbstest.NoLeaks(t)
	x, y := connect(t)
	needKeys(t, x)
	ax, ay := x.attached(Config{Budget: 4 << 20}), y.attached(Config{Budget: 4 << 20})
	b := mustGet(t, ax, 1000, Anonymous)
	recv := mustGet(t, ax, 100, Anonymous)
	_, err := x.qp.PostRecv([]verbs.RecvWR{{WRID: 7, SGEs: []verbs.SGE{recv.SGE(x.pd)}}})
	require.NoError(t, err)
	ends := make(chan GrantEnd, 1)
	g, err := b.GrantFor(x.qp, GrantTerms{Access: verbs.AccessRemoteRead, Once: true, Ended: func(e GrantEnd) { ends <- e }})
	require.NoError(t, err)
	b.Release() // the grant has it
	sink := mustGet(t, ay, 1000, Anonymous)
	y.send(verbs.SendWR{Opcode: verbs.OpRead, SGEs: []verbs.SGE{sink.SGE(y.pd)}, RemoteAddr: g.Addr(), RKey: g.RKey()})
	require.Equal(t, verbs.StatusSuccess, y.poll().Status)
	require.EqualValues(t, 2, ax.Account().Held/Page)
	y.send(verbs.SendWR{Opcode: verbs.OpSendWithInv, InvalidateRKey: g.RKey()})
	require.Equal(t, verbs.StatusSuccess, y.poll().Status)
	wc := x.poll()
	require.EqualValues(t, 7, wc.WRID)
	require.True(t, wc.HasInv)
	require.Equal(t, GrantEnd{ByPeer: true}, <-ends)
	require.True(t, g.Buffer().IsZero())
	require.Zero(t, ax.Stats().Grants)
	require.EqualValues(t, 1, ax.Account().Held/Page, "the buffer is free again")
	require.NoError(t, g.Revoke())

	b = mustGet(t, ax, 1000, Anonymous)
	g, err = b.GrantFor(x.qp, GrantTerms{Access: verbs.AccessRemoteWrite, Lifetime: time.Millisecond, Ended: func(e GrantEnd) { ends <- e }})
	require.NoError(t, err)
	require.Equal(t, GrantEnd{}, <-ends)
	require.Zero(t, ax.Stats().Grants)
	require.Zero(t, g.RKey())
	// One that is revoked in time tells nobody.
	g, err = b.GrantFor(x.qp, GrantTerms{Access: verbs.AccessRemoteWrite, Lifetime: time.Hour, Once: true, Ended: func(e GrantEnd) { ends <- e }})
	require.NoError(t, err)
	require.NoError(t, g.Revoke())
	require.Empty(t, ends)
	_, err = b.GrantFor(x.qp, GrantTerms{Access: verbs.AccessRemoteWrite, Lifetime: -1})
	require.ErrorIs(t, err, ErrInvalid)
	releaseAll([]RDMABuffer{b, recv, sink})
	require.NoError(t, ax.Detach(context.Background(), x.pd))
	require.NoError(t, ay.Detach(context.Background(), y.pd))
}

// What would have ended a grant and comes late, after Revoke, does not end the
// next one of the same Grant.
func TestGrantEndsLate(t *testing.T) {
	x, _ := connect(t)
	needKeys(t, x)
	a := x.attached(Config{Budget: 4 << 20})
	b := mustGet(t, a, 1000, Anonymous)
	g, err := b.GrantFor(x.qp, GrantTerms{Access: verbs.AccessRemoteRead, Lifetime: time.Hour})
	require.NoError(t, err)
	g.mu.Lock()
	late := g.ender(false) // as the timer's, which waits for the lock when Revoke has it
	g.mu.Unlock()
	require.NoError(t, g.Revoke())
	require.NoError(t, b.GrantInto(g, x.qp, verbs.AccessRemoteRead))
	late()
	require.False(t, g.Buffer().IsZero())
	require.Equal(t, 1, a.Stats().Grants)
	require.NoError(t, g.Revoke())
	b.Release()
}

// GrantFor with Once needs both ends to have send with invalidate.
func TestGrantOnceNotSupported(t *testing.T) {
	a := newArena(t, Config{Budget: 4 << 20})
	pd := openPD(t, iwarp.Config{}, &verbstest.Script{})
	cq, err := pd.Device().CreateCQ(verbs.CQConfig{Depth: 256})
	require.NoError(t, err)
	qp, err := pd.CreateQP(verbs.QPConfig{SendCQ: cq})
	require.NoError(t, err)
	b := mustGet(t, a, 1, Anonymous)
	_, err = b.GrantFor(qp, GrantTerms{Access: verbs.AccessRemoteRead, Once: true}) // not connected: no features
	require.ErrorIs(t, err, ErrNotSupported)
	b.Release()
	_, err = qp.Close()
	require.NoError(t, err)
	require.NoError(t, cq.Close())
}
