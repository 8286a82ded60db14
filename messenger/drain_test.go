package messenger_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	. "github.com/argonaut-rdma/argonaut/messenger"
)

// Resume while Drain waits: that ends, and says why.
func TestResumeEndsADrain(t *testing.T) {
	under(t, func(t *testing.T) {
		d := newDuo(t, LosslessClient(), StatefulServer())
		c := d.connect(t, 0)
		ready(t, c)
		held := make(chan *Message, 1)
		d.rec[1].hook = func(_ context.Context, m *Message) { held <- m.Retain() } // answered, not released
		require.NoError(t, callOn(t, c, 1))
		m := <-held
		drained := make(chan error, 1)
		go func() { drained <- d.Nodes[1].Drain(context.Background()) }() // ends with Resume
		settle(time.Second)
		require.Empty(t, drained)
		d.Nodes[1].Resume()
		settle(0)
		require.ErrorIs(t, <-drained, ErrResumed)
		d.Nodes[1].Resume()
		require.True(t, d.Nodes[1].Health().Ready)

		go func() { drained <- d.Nodes[1].Drain(context.Background()) }() // ends with the message
		settle(time.Second)
		require.Empty(t, drained)
		m.Release()
		require.NoError(t, <-drained)
	})
}

// What a peer that is away has not got is not drained, though it is the peer who
// would have to connect.
func TestDrainWaitsForAPeerThatIsAway(t *testing.T) {
	under(t, func(t *testing.T) {
		d := newDuo(t, LosslessClient(), StatefulServer())
		c := d.connect(t, 0)
		send(t, c, 1)
		settle(time.Second)
		sc := d.serverSide(t)
		d.Net.Split([]string{d.Nodes[0].Host}, []string{d.Nodes[1].Host})
		d.Net.CutAll()
		settle(time.Second)
		send(t, sc, 9)
		require.Equal(t, StateStandby, sc.State())
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		err := d.Nodes[1].Drain(ctx)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorContains(t, err, "osd.0: queue not sent")
		d.Net.Heal()
		require.NoError(t, d.Nodes[1].Drain(t.Context()))
		require.Equal(t, []uint32{9}, d.rec[0].received())
	})
}

// Handlers under way may need calls on the loopback to end.
func TestDrainAndTheLoopback(t *testing.T) {
	under(t, func(t *testing.T) {
		d := newDuo(t, LosslessClient(), StatefulServer())
		c := d.connect(t, 0)
		ready(t, c)
		inner := make(chan error, 1)
		d.rec[1].hook = func(ctx context.Context, m *Message) {
			if m.Conn == d.Nodes[1].Loopback() {
				return
			}
			time.Sleep(10 * time.Second)
			r, err := d.Nodes[1].Loopback().Call(ctx, NewMessage(2))
			if err == nil {
				r.Release()
			}
			inner <- err
		}
		replied := make(chan error, 1)
		go func() { replied <- callOn(t, c, 1) }() // ends with the reply
		settle(time.Second)
		require.NoError(t, d.Nodes[1].Drain(t.Context()))
		require.NoError(t, <-inner)
		require.NoError(t, <-replied)
	})
}
