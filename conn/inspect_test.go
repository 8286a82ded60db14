package conn

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/argonaut-rdma/argonaut/buffer"
)

// An Inspection has what waits, what is lent and what is under way.
func TestInspect(t *testing.T) {
	cfg := nodeConfig{Config: Config{EagerMax: 16 << 10, Rendezvous: 1}}
	var open atomic.Bool
	theirs, ours := cfg, cfg
	theirs.Admit = func(_ *Conn, head []byte, _ int64) bool { return open.Load() || string(head) != "held" }
	blocked, goOn := make(chan struct{}), make(chan struct{})
	ours.OnMessage = func(_ *Conn, m Message) {
		if string(m.Head) == "block" { // completions of ours wait, too
			close(blocked)
			<-goOn
		}
	}
	p := newPair(t, ours, theirs)
	needKeys(t, p.a.dev)
	p.b.expect(p.ba, "first", p.a.send(p.ab, "first", 100))
	i := p.ab.Inspect()
	require.Equal(t, p.ab.ID(), i.ID)
	require.Equal(t, p.b.Addr().String(), i.Remote)
	require.Equal(t, p.ab.LocalAddr().String(), i.Local)
	require.EqualValues(t, 1, i.Stats.MessagesSent)
	require.Equal(t, 16, i.CreditsMost)
	require.LessOrEqual(t, i.Credits, 15)
	require.Positive(t, i.Credits)
	require.Positive(t, p.ba.Inspect().Lent, "the buffer that the first came in")
	i.Posted = 0 // nobody has asked whether the first is over
	require.Equal(t, Inspection{ID: i.ID, Local: i.Local, Remote: i.Remote, Credits: i.Credits, CreditsMost: 16, Stats: i.Stats, Lent: i.Lent}, i)

	// What the peer does not take.
	held := p.a.send(p.ab, "held", 50_000)
	require.Eventually(t, func() bool { return p.ba.Inspect().Parked && p.ab.Inspect().PeerParked }, wait, time.Millisecond)
	i = p.ab.Inspect()
	require.Equal(t, 1, i.Announced)
	require.EqualValues(t, 50_000, i.AnnouncedBytes)
	require.Positive(t, i.OldestAnnounced)
	require.Zero(t, i.Waiting)
	l, data := p.a.list(60_000)
	sent := make(chan error, 1)
	go func() { sent <- p.ab.Send(context.Background(), Message{Head: []byte("next"), Payload: l}) }()
	require.Eventually(t, func() bool { return p.ab.Inspect().Waiting == 1 }, wait, time.Millisecond)
	open.Store(true)
	p.ba.Resume()
	require.NoError(t, get(t, sent))
	p.b.expect(p.ba, "held", held)
	p.b.expect(p.ba, "next", data)
	require.Eventually(t, func() bool {
		i, j := p.ab.Inspect(), p.ba.Inspect()
		return i.Announced == 0 && i.AnnouncedBytes == 0 && i.Waiting == 0 && !i.PeerParked && !j.Parked && j.Fetching == 0
	}, wait, time.Millisecond)

	// Grants of both kinds, and what is done by them.
	grant := func(n *node, c *Conn, size int, write bool) Grant {
		b, err := n.a.Get(t.Context(), size, n.a.Owner("the test's", 0))
		require.NoError(t, err)
		l := buffer.NewList(b)
		defer l.Release()
		gs, err := c.Grant(t.Context(), l, write)
		require.NoError(t, err)
		return gs[0]
	}
	read, write := grant(p.b, p.ba, 3000, false), grant(p.b, p.ba, 2000, true)
	var live []LiveGrant
	p.ba.LiveGrants(func(g LiveGrant) { live = append(live, g) })
	require.ElementsMatch(t, []LiveGrant{{Owner: "the test's", Len: 3000}, {Owner: "the test's", Len: 2000, Write: true}}, live)
	p.b.send(p.ba, "block")
	get(t, blocked)
	over, cancel := context.WithCancel(t.Context())
	cancel()
	dst, _ := p.a.list(2500)
	require.ErrorIs(t, p.ab.Read(over, dst, read, 0), context.Canceled)
	src, _ := p.a.list(1000)
	require.ErrorIs(t, p.ab.Write(over, write, 0, src), context.Canceled)
	i = p.ab.Inspect()
	require.Equal(t, [2]int{1, 1}, [2]int{i.Reads, i.Writes})
	require.Equal(t, [2]int64{2500, 1000}, [2]int64{i.ReadBytes, i.WriteBytes})
	close(goOn)
	require.Eventually(t, func() bool { i := p.ab.Inspect(); return i.Reads+i.Writes == 0 && i.ReadBytes+i.WriteBytes == 0 }, wait, time.Millisecond)
	dst.Release()
	src.Release()
	st := p.ab.Stats()
	require.Equal(t, [2]uint64{1, 1}, [2]uint64{st.OneSidedReads, st.OneSidedWrites})
	require.NoError(t, p.ba.Revoke(t.Context(), []Grant{read, write}))
	p.ba.LiveGrants(func(g LiveGrant) { t.Errorf("%+v is still live", g) })
}
