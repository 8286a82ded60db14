package messenger_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	. "github.com/argonaut-rdma/argonaut/messenger"
)

// The default policy is that of all types without one of their own, whoever
// connects.
func TestDefaultPolicy(t *testing.T) {
	under(t, func(t *testing.T) {
		d := newDuo(t, LosslessPeer(), LosslessPeer())
		mds := func(num int64, p Policy) *Messenger {
			n := d.Nodes[0]
			m, err := New(Config{Name: EntityName{Type: MDS, Num: num}, Arena: n.Arena, DialStream: n.Dial, ListenStream: n.Listen, IdleTimeout: -1})
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, m.Close()) })
			m.SetPolicy(OSD, LosslessPeer())
			m.SetDefaultPolicy(p)
			return m
		}
		lossless := func(m *Messenger) bool {
			c, err := m.ConnectTo(OSD, d.Nodes[1].Addrs())
			require.NoError(t, err)
			require.NoError(t, callOn(t, c, 1))
			before := c.Stats().Reconnects
			d.Net.CutAll()
			settle(time.Second)
			return c.State() != StateClosed && callOn(t, c, 2) == nil && c.Stats().Reconnects == before+1
		}
		require.False(t, lossless(mds(1, Policy{})), "an MDS is served as a stateless client at first")
		d.Nodes[1].SetDefaultPolicy(StatefulServer())
		require.True(t, lossless(mds(2, Policy{})))
		require.True(t, lossless(mds(3, LossyClient())), "OSDs have their own")
		d.Nodes[1].SetPolicy(MDS, StatelessServer())
		require.False(t, lossless(mds(4, Policy{})))
	})
}

// A disposable session, lossless so far, is over with the next fault: its handlers
// are told, and nothing is sent again.
func TestMarkDisposable(t *testing.T) {
	under(t, func(t *testing.T) {
		d := newDuo(t, LosslessPeer(), LosslessPeer())
		c := d.connect(t, 0)
		send(t, c, 1)
		settle(time.Second)
		d.Net.CutAll()
		settle(time.Second)
		send(t, c, 2)
		settle(time.Second)
		require.EqualValues(t, 1, c.Stats().Reconnects, "so far it is lossless")

		c.MarkDisposable()
		send(t, c, 3)
		settle(time.Second)
		require.Equal(t, []uint32{1, 2, 3}, d.rec[1].received())
		require.Zero(t, d.rec[0].count("reset"))
		d.Net.Split([]string{d.Nodes[0].Host}, []string{d.Nodes[1].Host})
		send(t, c, 4) // does not arrive
		settle(time.Second)
		require.Zero(t, c.Stats().UnackedMessages)
		d.Net.CutAll()
		settle(time.Second)
		require.Equal(t, StateClosed, c.State())
		require.Equal(t, 1, d.rec[0].count("reset"))
		d.Net.Heal()
		settle(time.Minute)
		require.Equal(t, []uint32{1, 2, 3}, d.rec[1].received())
		require.Zero(t, d.Nodes[0].Stats().Replayed)
		m := NewMessage(1)
		require.ErrorIs(t, c.Send(t.Context(), m), ErrReset)
		m.Release()
	})
}
