package messenger_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	. "github.com/argonaut-rdma/argonaut/messenger"
)

// The transport is cut while a call is being served, and the peer can not dial:
// the caller, who has nothing to send, goes and gets the reply, as soon as the
// peer can be reached.
func TestCallUnderWayIsNoStandby(t *testing.T) {
	for _, away := range []time.Duration{0, 20 * time.Second} {
		under(t, func(t *testing.T) {
			d := newDuo(t, LosslessPeer(), LosslessPeer())
			client := unbound(t, d, 7)
			c, err := client.ConnectTo(OSD, d.Nodes[1].Addrs())
			require.NoError(t, err)
			ready(t, c)
			d.rec[1].hook = func(_ context.Context, m *Message) {
				time.Sleep(time.Second) // the request is acknowledged meanwhile
				d.Net.Split([]string{d.Nodes[0].Host}, []string{d.Nodes[1].Host})
				d.Net.CutAll()
				time.Sleep(time.Second)
			}
			time.AfterFunc(2*time.Second+away, d.Net.Heal)
			require.NoError(t, callOn(t, c, 3))
			require.EqualValues(t, 1, c.Stats().Reconnects)

			d.rec[1].hook = nil
			d.Net.CutAll()
			settle(time.Minute)
			require.Equal(t, StateStandby, c.State(), "without a call it waits")
		})
	}
}

// unbound is a messenger on node 0's host that nobody can connect to.
func unbound(t *testing.T, d *duo, num int64) *Messenger {
	n := d.Nodes[0]
	m, err := New(Config{Name: EntityName{Type: OSD, Num: num}, Arena: n.Arena, DialStream: n.Dial, ListenStream: n.Listen, IdleTimeout: -1})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, m.Close()) })
	m.SetPolicy(OSD, LosslessPeer())
	return m
}
