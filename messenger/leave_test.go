package messenger

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/argonaut-rdma/argonaut/test/env"
)

// A client that has had its reply and shuts down leaves nothing at the server:
// the reply is acknowledged, and the server's own shutdown does not wait for a
// peer who would have to connect to it.
func TestClientLeavesNothing(t *testing.T) {
	carriers(t, func(t *testing.T, scheme string) {
		pairs := map[string][2]Policy{
			"client": {StatefulServer(), LosslessClient()},
			"peer":   {LosslessPeer(), LosslessPeer()},
		}
		for name, pol := range pairs {
			t.Run(name, func(t *testing.T) {
				p := newPairOf(t, scheme, pol[0], pol[1], &handler{dispatch: echo})
				m := NewMessage(7)
				m.Data, _ = randomList(t, p.client.cfg.Arena, 20_000)
				r, err := p.c.Call(soon(t), m)
				require.NoError(t, err)
				r.Release()
				require.NoError(t, p.client.Shutdown(soon(t)))
				require.Eventually(t, func() bool { return p.server.cfg.Arena.Account().Held == 0 }, 20*time.Second, time.Millisecond,
					"the server still keeps its reply")
				begin := time.Now()
				require.NoError(t, p.server.Shutdown(soon(t)))
				require.Less(t, time.Since(begin), 3*time.Second)
			})
		}
	})
}

// A message that turns out to be too large for the transport gives its room in
// the queue back: who waits for it goes on.
func TestTooLargeMakesRoom(t *testing.T) {
	pol := LosslessPeer()
	pol.QueueMessages = 1
	var d [2]*dialer
	var m [2]*Messenger
	got := make(chan uint16, 10)
	for i := range m {
		d[i] = &dialer{}
		m[i] = newDialing(t, Config{Name: EntityName{OSD, int64(i)}, BackoffMin: 2 * time.Millisecond, BackoffMax: 20 * time.Millisecond}, d[i])
		m[i].SetPolicy(OSD, pol)
		m[i].AddDispatcher(&handler{dispatch: func(_ context.Context, m *Message) bool { got <- m.Type; m.Release(); return true }})
		require.NoError(t, m[i].Bind(soon(t), anyAddr(schemeDevice)))
	}
	d[0].down.Store(true)
	d[1].down.Store(true)
	c, err := m[0].ConnectTo(OSD, m[1].Addrs())
	require.NoError(t, err)
	big := NewMessage(1)
	big.Grow(4 << 20)
	big.Front = big.Front[:4<<20]
	require.NoError(t, c.Send(soon(t), big))
	sent := make(chan error, 1)
	go func() { // ends when there is room
		x := NewMessage(2)
		err := c.Send(soon(t), x)
		if err != nil {
			x.Release()
		}
		sent <- err
	}()
	require.Eventually(t, func() bool { c.mu.Lock(); defer c.mu.Unlock(); return c.waiting.n > 0 }, 20*time.Second, time.Millisecond)
	d[0].down.Store(false)
	d[1].down.Store(false)
	require.NoError(t, c.Ready(soon(t)))
	require.NoError(t, receiveOne(t, sent, "the Send that waited"))
	require.Equal(t, uint16(2), receiveOne(t, got, "its message"))
}

// A peer that ends a connection on purpose is no fault of the path: who is told of
// it learns so, and where the policy has standby, and there is nothing to send,
// nobody connects to it.
func TestClosedByThePeer(t *testing.T) {
	env.UserSpace(t, "under emulation there may be no time to say it")
	carriers(t, func(t *testing.T, scheme string) {
		t.Run("lossy", func(t *testing.T) {
			accepted := make(chan *Connection, 1)
			reset := make(chan *Connection, 1)
			p := newPairOf(t, scheme, StatelessServer(), LossyClient(), &handler{accept: func(c *Connection) { accepted <- c }})
			p.client.AddDispatcher(&handler{reset: func(c *Connection) { reset <- c }})
			receiveOne(t, accepted, "connection").MarkDown()
			c := receiveOne(t, reset, "HandleReset")
			require.ErrorIs(t, c.Err(), ErrPeerClosed)
			err := c.Send(soon(t), NewMessage(1))
			require.ErrorIs(t, err, ErrReset)
			require.ErrorIs(t, err, ErrPeerClosed)
		})
		t.Run("standby", func(t *testing.T) {
			accepted := make(chan *Connection, 1)
			p := newPairOf(t, scheme, StatefulServer(), LosslessPeer(), &handler{dispatch: echo, accept: func(c *Connection) { accepted <- c }})
			sc := quiet(t, p.c, accepted)
			attempts := p.client.Stats().Attempts
			sc.MarkDown()
			require.Eventually(t, func() bool { return p.c.State() == StateStandby }, patience, time.Millisecond)
			require.ErrorIs(t, p.c.Err(), ErrPeerClosed)
			require.Equal(t, attempts, p.client.Stats().Attempts)
		})
		t.Run("shutdown", func(t *testing.T) {
			accepted := make(chan *Connection, 1)
			p := newPairOf(t, scheme, StatefulServer(), LosslessPeer(), &handler{dispatch: echo, accept: func(c *Connection) { accepted <- c }})
			quiet(t, p.c, accepted)
			require.NoError(t, p.server.Shutdown(soon(t)))
			require.Eventually(t, func() bool { return p.c.State() == StateStandby }, patience, time.Millisecond)
			require.ErrorIs(t, p.c.Err(), ErrPeerClosed)
		})
	})
}

// quiet has a message and its answer acknowledged, so that nothing is on its way, which
// a closed socket would answer with a reset. It returns the other end of c.
func quiet(t *testing.T, c *Connection, accepted <-chan *Connection) *Connection {
	t.Helper()
	r, err := c.Call(soon(t), NewMessage(1))
	require.NoError(t, err)
	r.Release()
	sc := receiveOne(t, accepted, "connection")
	require.Eventually(t, func() bool {
		return c.Stats().UnackedMessages == 0 && sc.Stats().UnackedMessages == 0
	}, patience, time.Millisecond)
	return sc
}
