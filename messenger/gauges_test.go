package messenger_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/argonaut-rdma/argonaut/buffer"
	. "github.com/argonaut-rdma/argonaut/messenger"
)

// What waits for a handler is counted, and for how long: of each connection, and of
// all of a messenger.
func TestUndispatched(t *testing.T) {
	under(t, func(t *testing.T) {
		d := newDuo(t, LosslessPeer(), LosslessPeer())
		c := d.connect(t, 0)
		ready(t, c)
		far := d.connect(t, 1)
		block := make(chan struct{})
		d.rec[1].hook = func(context.Context, *Message) { <-block }
		send(t, c, 0) // is being handled
		settle(time.Second)
		require.Zero(t, far.Stats().Undispatched)
		require.Zero(t, d.Nodes[1].Stats().OldestUndispatched)
		send(t, c, 1)
		settle(3 * time.Second)
		send(t, c, 2)
		for n := range uint32(3) {
			send(t, d.Nodes[1].Loopback(), n)
		}
		settle(4 * time.Second)
		require.Equal(t, 2, far.Stats().Undispatched)
		require.InDelta(t, 7, far.Stats().OldestUndispatched.Seconds(), 0.1)
		require.Equal(t, 2, d.Nodes[1].Loopback().Stats().Undispatched)
		require.InDelta(t, 4, d.Nodes[1].Loopback().Stats().OldestUndispatched.Seconds(), 0.1)
		require.Equal(t, 4, d.Nodes[1].Stats().Undispatched)
		require.InDelta(t, 7, d.Nodes[1].Stats().OldestUndispatched.Seconds(), 0.1)
		close(block)
		settle(time.Second)
		require.Zero(t, d.Nodes[1].Stats().Undispatched)
		require.Zero(t, d.Nodes[1].Stats().OldestUndispatched)
	})
}

// So is what waits to be sent.
func TestOldestQueued(t *testing.T) {
	under(t, func(t *testing.T) {
		d := newDuo(t, LosslessPeer(), LosslessPeer())
		d.Net.Split([]string{d.Nodes[0].Host}, []string{d.Nodes[1].Host})
		c := d.connect(t, 0)
		require.Zero(t, c.Stats().OldestQueued)
		send(t, c, 1)
		settle(30 * time.Second)
		send(t, c, 2)
		settle(10 * time.Second)
		st := c.Stats()
		require.Equal(t, 2, st.QueuedMessages)
		require.EqualValues(t, 8, st.QueuedBytes)
		require.Equal(t, 40*time.Second, st.OldestQueued)
		d.Net.Heal()
		settle(time.Minute)
		require.Equal(t, []uint32{1, 2}, d.rec[1].received())
		require.Zero(t, c.Stats().OldestQueued)
		require.Zero(t, c.Stats().QueuedBytes)
	})
}

// What was queued and turns out to be more than the peer takes is dropped, and
// counted; what is behind it is sent.
func TestDropped(t *testing.T) {
	under(t, func(t *testing.T) {
		d := newDuo(t, LosslessPeer(), LosslessPeer(), func(i int, cfg *Config) {
			if i == 1 {
				cfg.MaxData = 4096
			}
		})
		d.Net.Split([]string{d.Nodes[0].Host}, []string{d.Nodes[1].Host})
		c := d.connect(t, 0)
		m := NewMessage(1)
		var err error
		m.Data, err = d.Nodes[0].Arena.GetList(t.Context(), 5000, buffer.Anonymous)
		require.NoError(t, err)
		require.NoError(t, c.Send(t.Context(), m))
		send(t, c, 1)
		settle(time.Second)
		require.Zero(t, d.Nodes[0].Stats().Dropped)
		d.Net.Heal()
		settle(time.Minute)
		st := d.Nodes[0].Stats()
		require.EqualValues(t, 1, st.Dropped)
		require.EqualValues(t, 1, st.Undelivered)
		require.Equal(t, []uint32{1}, d.rec[1].received())
	})
}
