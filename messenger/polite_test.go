package messenger_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	. "github.com/argonaut-rdma/argonaut/messenger"
)

// refusesSends requires that c takes nothing any more.
func refusesSends(t *testing.T, c *Connection) {
	t.Helper()
	m := NewMessage(1)
	defer m.Release()
	require.ErrorIs(t, c.Send(t.Context(), m), ErrClosed)
	_, err := c.TrySend(m)
	require.ErrorIs(t, err, ErrClosed)
	_, err = c.Call(t.Context(), m)
	require.ErrorIs(t, err, ErrClosed)
}

// The end of one connection delivers what has been accepted, through a reconnect where
// the session is lossless; nobody is told of a reset, and the messenger goes on.
func TestConnectionShutdownLossless(t *testing.T) {
	under(t, func(t *testing.T) {
		d := newDuo(t, LosslessClient(), StatefulServer())
		c := d.connect(t, 0)
		ready(t, c)
		d.Net.SetLatency(func(string, string) time.Duration { return 50 * time.Millisecond })
		for i := range uint32(100) {
			send(t, c, i)
		}
		d.Net.CutAll()
		done := make(chan error, 2)
		for range 2 {
			go func() { done <- c.Shutdown(t.Context()) }() // ends with the connection
		}
		settle(0)
		require.NotEqual(t, StateClosed, c.State())
		refusesSends(t, c)
		require.NoError(t, <-done)
		require.NoError(t, <-done)
		require.Equal(t, StateClosed, c.State())
		refusesSends(t, c)
		settle(time.Second)
		require.Len(t, d.rec[1].received(), 100)
		require.Zero(t, d.rec[0].count("reset"))
		require.Zero(t, c.Stats().Undelivered)
		require.NotZero(t, c.Stats().Reconnects)
		require.NoError(t, c.Shutdown(t.Context()), "again")
		require.NoError(t, d.Nodes[0].Loopback().Shutdown(t.Context()))
		require.NoError(t, callOn(t, d.Nodes[0].Loopback(), 7))
		require.NoError(t, callOn(t, d.connect(t, 0), 8))
	})
}

// On a lossy session it has been sent, and read, also what was accepted before there was
// a transport; either side may begin, and from a handler.
func TestConnectionShutdownLossy(t *testing.T) {
	under(t, func(t *testing.T) {
		d := newDuo(t, LossyClient(), StatelessServer())
		d.Net.SetLatency(func(string, string) time.Duration { return 50 * time.Millisecond })
		c := d.connect(t, 0)
		for i := range uint32(100) {
			send(t, c, i)
		}
		require.NoError(t, c.Shutdown(t.Context()))
		require.Equal(t, StateClosed, c.State())
		settle(time.Second)
		require.Len(t, d.rec[1].received(), 100)
		require.Zero(t, d.rec[0].count("reset"))
		require.Equal(t, 1, d.rec[1].count("reset"), "that of the peer, who has not asked for it")

		ended := make(chan error, 1)
		d.rec[1].hook = func(ctx context.Context, m *Message) {
			for i := range uint32(100) {
				send(t, m.Conn, i)
			}
			ended <- m.Conn.Shutdown(ctx)
		}
		c = d.connect(t, 0)
		send(t, c, 100)
		require.NoError(t, <-ended)
		settle(time.Second)
		require.Len(t, d.rec[0].received(), 100)
		require.Equal(t, StateClosed, c.State())
		require.Equal(t, 1, d.rec[0].count("reset"))
		require.Equal(t, 1, d.rec[1].count("reset"), "not its own")

		// Nobody is there.
		c, err := d.Nodes[0].ConnectTo(OSD, AddrVec{{URL: "tcp://10.9.9.9:7000"}})
		require.NoError(t, err)
		for i := range uint32(3) {
			send(t, c, i)
		}
		err = c.Shutdown(t.Context())
		require.ErrorAs(t, err, new(*FaultError))
		require.ErrorContains(t, err, "3 messages not delivered")
		require.Equal(t, StateClosed, c.State())
	})
}

// At the end of the context it ends as MarkDown does, and says what was not delivered.
func TestConnectionShutdownEndsAtItsDeadline(t *testing.T) {
	under(t, func(t *testing.T) {
		policy := LosslessPeer()
		policy.QueueMessages = 3
		d := newDuo(t, policy, LosslessPeer())
		c := d.connect(t, 0)
		ready(t, c)
		d.Net.Split([]string{d.Nodes[0].Host}, []string{d.Nodes[1].Host})
		for i := range uint32(3) {
			send(t, c, i)
		}
		waits := make(chan error, 1)
		go func() { // ends with the shutdown
			m := NewMessage(1)
			err := c.Send(context.Background(), m)
			if err != nil {
				m.Release()
			}
			waits <- err
		}()
		settle(time.Second)
		require.Empty(t, waits)
		begin := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		err := c.Shutdown(ctx)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorContains(t, err, "osd.1: 3 messages not delivered")
		require.Equal(t, 5*time.Second, time.Since(begin))
		require.ErrorIs(t, <-waits, ErrClosed)
		require.Equal(t, StateClosed, c.State())
		s := c.Stats()
		require.EqualValues(t, 3, s.Undelivered)
		require.Zero(t, s.UnackedMessages+s.QueuedMessages)
		settle(time.Minute)
		require.Zero(t, d.rec[0].count("reset"))
	})
}
