package messenger_test

import (
	"context"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/argonaut-rdma/argonaut/buffer"
	. "github.com/argonaut-rdma/argonaut/messenger"
	"github.com/argonaut-rdma/argonaut/messenger/messengertest"
)

// star is node 0, to whom all others are connected.
func star(t *testing.T, n int) *messengertest.Cluster {
	t.Helper()
	cl := messengertest.New(t, messengertest.Config{Nodes: n + 1, Setup: func(n *messengertest.Node) { n.SetPolicy(OSD, LosslessPeer()) }})
	for _, from := range cl.Nodes[1:] {
		c, err := from.ConnectTo(OSD, cl.Nodes[0].Addrs())
		require.NoError(t, err)
		ready(t, c)
	}
	settle(time.Second)
	return cl
}

// However many connections there are, a page has as many as are asked for, and all
// pages together have each one once.
func TestInspectPages(t *testing.T) {
	under(t, func(t *testing.T) {
		const n = 7
		cl := star(t, n)
		m := cl.Nodes[0].Messenger
		for _, limit := range []int{1, 3, n, n + 1} {
			seen := map[string]bool{}
			last := uint64(0)
			q, pages := InspectQuery{Limit: limit}, 0
			for {
				in := m.Inspect(q)
				pages++
				require.LessOrEqual(t, len(in.Connections), limit)
				for _, c := range in.Connections {
					require.Greater(t, c.ID, last)
					require.False(t, seen[c.Peer])
					last, seen[c.Peer] = c.ID, true
				}
				if q.After = in.Next; q.After == 0 {
					break
				}
			}
			require.Len(t, seen, n)
			require.Equal(t, (n+limit-1)/limit, pages)
		}
		count := func(q InspectQuery) int { return len(m.Inspect(q).Connections) }
		require.Equal(t, n, count(InspectQuery{Limit: -1}))
		require.Equal(t, n, count(InspectQuery{Peer: "osd"}))
		require.Equal(t, 1, count(InspectQuery{Peer: "osd.3"}))
		require.Zero(t, count(InspectQuery{Peer: "mon"}))
		require.Equal(t, n, count(InspectQuery{State: "open"}))
		require.Zero(t, count(InspectQuery{State: "standby"}))
		one := m.Inspect(InspectQuery{Peer: "osd.3", Limit: 1})
		require.Equal(t, "osd.3", one.Connections[0].Peer)
		require.Zero(t, one.Next, "there are no others like it")
		cl.Net.CutAll()
		settle(time.Minute)
		require.Equal(t, n, count(InspectQuery{State: "standby"}))
	})
}

// By default a page is bounded.
func TestInspectIsBounded(t *testing.T) {
	under(t, func(t *testing.T) {
		const n = 105
		cl := messengertest.New(t, messengertest.Config{Nodes: 1, Setup: func(n *messengertest.Node) { n.SetPolicy(OSD, LosslessPeer()) }})
		m := cl.Nodes[0].Messenger
		for i := range n {
			a, err := ParseAddr("tcp://10.9.9.9:" + strconv.Itoa(1000+i))
			require.NoError(t, err)
			_, err = m.ConnectTo(OSD, AddrVec{a})
			require.NoError(t, err)
		}
		in := m.Inspect(InspectQuery{})
		require.Len(t, in.Connections, 100)
		require.Len(t, m.Inspect(InspectQuery{After: in.Next}).Connections, n-100)
	})
}

// What waits is told by priority, with its age, and sent in that order; what a lost
// transport had is sent again before it.
func TestInspectQueues(t *testing.T) {
	under(t, func(t *testing.T) {
		d := newDuo(t, LosslessPeer(), LosslessPeer())
		look := func() ConnInspection {
			all := d.Nodes[0].Inspect(InspectQuery{}).Connections
			require.Len(t, all, 1)
			return all[0]
		}
		n := byte(0)
		put := func(c *Connection, priority uint16) {
			n++
			m := NewMessage(1)
			m.Front = append(m.Front, n, 0, 0, 0)
			m.Priority = priority
			require.NoError(t, c.Send(t.Context(), m))
		}
		c := d.connect(t, 0)
		ready(t, c)
		settle(time.Second)
		require.Empty(t, look().Queue)
		d.Net.Split([]string{d.Nodes[0].Host}, []string{d.Nodes[1].Host})
		put(c, PriorityDefault)
		put(c, PriorityDefault)
		settle(time.Second)
		i := look()
		require.Equal(t, "open", i.State)
		require.Equal(t, 2, i.Stats.UnackedMessages)
		require.Zero(t, i.Session.Replay)
		require.Zero(t, i.NextAttempt)

		d.Net.CutAll()
		settle(time.Second)
		put(c, PriorityLow)
		settle(30 * time.Second)
		put(c, PriorityHigh)
		settle(10 * time.Second)
		put(c, PriorityHigh)
		settle(5 * time.Second)
		i = look()
		require.Equal(t, "connecting", i.State)
		require.Nil(t, i.Transport)
		require.Equal(t, 2, i.Session.Replay)
		require.Equal(t, 2, i.Stats.UnackedMessages)
		require.Equal(t, []QueueInspection{
			{Priority: PriorityHigh, Messages: 2, Oldest: 15 * time.Second},
			{Priority: PriorityLow, Messages: 1, Oldest: 45 * time.Second},
		}, i.Queue)
		require.Equal(t, 45*time.Second, i.Stats.OldestQueued)
		require.NotEmpty(t, i.LastError)
		require.NotZero(t, i.NextAttempt)

		d.Net.Heal()
		settle(time.Minute)
		i = look()
		require.Equal(t, "open", i.State)
		require.Empty(t, i.Queue)
		require.Zero(t, i.Session.Replay)
		require.EqualValues(t, 5, d.Nodes[1].Stats().MessagesReceived)
		require.Equal(t, []uint32{1, 2, 4, 5, 3}, d.rec[1].received())
	})
}

// Transfers under way are told at both ends.
func TestInspectTransfers(t *testing.T) {
	under(t, func(t *testing.T) {
		d := newDuo(t, LosslessPeer(), LosslessPeer())
		c := d.connect(t, 0)
		ready(t, c)
		settle(time.Second)
		far, err := d.Nodes[1].ConnectTo(OSD, d.Nodes[0].Addrs())
		require.NoError(t, err)
		list := func(i int, n int64) *buffer.List {
			l, err := d.Nodes[i].Arena.GetList(t.Context(), n, buffer.Anonymous)
			require.NoError(t, err)
			return l
		}
		src, dst, out, in := list(1, 10_000), list(1, 5000), list(0, 10_000), list(0, 3000)
		defer func() {
			for _, l := range []*buffer.List{src, dst, out, in} {
				l.Release()
			}
		}()
		read, err := far.Grant(t.Context(), src, false)
		require.NoError(t, err)
		write, err := far.Grant(t.Context(), dst, true)
		require.NoError(t, err)
		d.Net.Split([]string{d.Nodes[0].Host}, []string{d.Nodes[1].Host})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 2)
		go func() { done <- c.Pull(ctx, out, read, 0) }() // end with ctx
		go func() { done <- c.Push(ctx, write, 0, in) }()
		settle(time.Second)
		g := d.Nodes[0].Inspect(InspectQuery{}).Connections[0].Grants
		require.Equal(t, GrantsInspection{In: 2, InBytes: 13_000}, g)
		cancel()
		require.ErrorIs(t, <-done, context.Canceled)
		require.ErrorIs(t, <-done, context.Canceled)
		d.Net.Heal()
		settle(time.Minute)
		require.Zero(t, d.Nodes[0].Inspect(InspectQuery{}).Connections[0].Grants)
		require.Equal(t, 2, d.Nodes[1].Inspect(InspectQuery{}).Connections[0].Grants.Out)
		require.NoError(t, far.Revoke(t.Context(), append(read, write...)))
		require.Zero(t, d.Nodes[1].Inspect(InspectQuery{}).Connections[0].Grants)
	})
}
