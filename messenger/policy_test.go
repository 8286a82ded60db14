package messenger_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	. "github.com/argonaut-rdma/argonaut/messenger"
)

// A policy is that of connections made afterwards: a session that exists keeps its
// rules, features and throttles when the peer connects again, with a new transport
// or with a new session.
func TestPolicyOfASessionThatExists(t *testing.T) {
	under(t, func(t *testing.T) {
		d := newDuo(t, LosslessPeer(), LosslessPeer())
		c := d.connect(t, 0)
		ready(t, c)
		now := LosslessPeerReuse()
		now.MaxMessages, now.Required = 1, 1<<50
		d.Nodes[1].SetPolicy(OSD, now)
		var kept []*Message
		d.rec[1].hook = func(_ context.Context, m *Message) { kept = append(kept, m.Retain()) }

		d.Net.CutAll()
		for n := range uint32(3) {
			send(t, c, n)
		}
		settle(time.Second)
		require.EqualValues(t, 1, c.Stats().Reconnects)
		require.Len(t, d.rec[1].received(), 3, "no throttle")

		c.MarkDown()
		settle(time.Second)
		c = d.connect(t, 0)
		for n := range uint32(3) {
			send(t, c, n)
		}
		settle(time.Second)
		require.Len(t, d.rec[1].received(), 6, "no feature is required")
		require.Zero(t, d.rec[1].count("remote reset"))

		// Who is new meets the new one.
		fresh := unbound(t, d, 7)
		c, err := fresh.ConnectTo(OSD, d.Nodes[1].Addrs())
		require.NoError(t, err)
		settle(time.Second)
		require.ErrorIs(t, c.Err(), ErrFeatures)
		now.Required = 0
		d.Nodes[1].SetPolicy(OSD, now)
		for n := range uint32(3) {
			send(t, c, n)
		}
		settle(time.Minute)
		require.Equal(t, StateOpen, c.State())
		require.Len(t, d.rec[1].received(), 7)
		d.rec[1].hook = nil
		for _, m := range kept {
			m.Release()
		}
		settle(time.Second)
		require.Len(t, d.rec[1].received(), 9)
	})
}
