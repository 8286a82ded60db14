package messenger_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	. "github.com/argonaut-rdma/argonaut/messenger"
)

// StatefulTest: the server keeps the session of a client that is away; when the
// server drops it the client learns, and loses what was queued.
func TestStateful(t *testing.T) {
	under(t, func(t *testing.T) {
		d := newDuo(t, LosslessClient(), StatefulServer())
		c := d.connect(t, 0)
		c.SetUser("mine")
		send(t, c, 1)
		settle(time.Second)
		server := d.serverSide(t)
		server.SetUser("client's")
		d.Net.CutAll()
		settle(time.Second)
		send(t, c, 2)
		settle(time.Second)
		require.Equal(t, "client's", server.User(), "the session is the same")
		require.Equal(t, StateOpen, server.State())
		require.Equal(t, []uint32{1, 2}, d.rec[1].received())
		require.Zero(t, d.rec[0].count("remote reset"))

		d.Nodes[1].MarkDownAll()
		settle(time.Second)
		require.Equal(t, 1, d.rec[0].count("remote reset"))
		require.Zero(t, d.rec[1].count("reset"), "our own MarkDown is no fault")
		require.EqualValues(t, 1, c.Stats().RemoteResets)
		send(t, c, 3)
		settle(time.Second)
		require.Equal(t, []uint32{1, 2, 3}, d.rec[1].received())
		require.Equal(t, "mine", c.User())
	})
}

func (d *duo) serverSide(t *testing.T) *Connection {
	t.Helper()
	c, err := d.Nodes[1].ConnectTo(OSD, d.Nodes[0].Addrs())
	require.NoError(t, err)
	return c
}

// StatelessTest: a lossy session ends with its transport, on both sides.
func TestStateless(t *testing.T) {
	under(t, func(t *testing.T) {
		d := newDuo(t, LossyClient(), StatelessServer())
		c := d.connect(t, 0)
		send(t, c, 1)
		settle(time.Second)
		d.Net.CutAll()
		settle(time.Second)
		require.Equal(t, StateClosed, c.State())
		require.Equal(t, 1, d.rec[0].count("reset"))
		require.Equal(t, 1, d.rec[1].count("reset"))
		m := NewMessage(1)
		require.ErrorIs(t, c.Send(t.Context(), m), ErrReset)
		m.Release()
		again := d.connect(t, 0)
		require.NotSame(t, c, again)
		send(t, again, 2)
		settle(time.Second)
		require.Equal(t, []uint32{1, 2}, d.rec[1].received())
	})
}

// ClientStandbyTest: with nothing to send a peer waits in standby, and something
// to send ends that, on either side.
func TestStandby(t *testing.T) {
	under(t, func(t *testing.T) {
		d := newDuo(t, LosslessPeer(), LosslessPeer())
		c := d.connect(t, 0)
		send(t, c, 1)
		settle(time.Second)
		back := d.serverSide(t)
		for i := range uint32(3) {
			d.Net.CutAll()
			settle(time.Minute)
			require.Equal(t, StateStandby, c.State())
			require.Equal(t, StateStandby, back.State())
			require.Zero(t, d.Net.Connections())
			if i%2 == 0 {
				send(t, back, 10+i)
			} else {
				send(t, c, 10+i)
			}
			settle(time.Second)
			require.Equal(t, StateOpen, c.State())
		}
		require.Equal(t, []uint32{1, 11}, d.rec[1].received())
		require.Equal(t, []uint32{10, 12}, d.rec[0].received())
		// A keepalive does, too.
		d.Net.CutAll()
		settle(time.Minute)
		c.SendKeepalive()
		settle(time.Second)
		require.Equal(t, StateOpen, c.State())
	})
}

// AnonTest: anonymous connections are never shared.
func TestAnonymous(t *testing.T) {
	under(t, func(t *testing.T) {
		d := newDuo(t, LossyClient(), StatelessServer())
		seen := map[*Connection]bool{d.connect(t, 0): true}
		for i := range uint32(3) {
			c, err := d.Nodes[0].ConnectAnonymous(OSD, d.Nodes[1].Addrs())
			require.NoError(t, err)
			require.False(t, seen[c])
			seen[c] = true
			send(t, c, i)
		}
		settle(time.Second)
		require.Len(t, d.rec[1].received(), 3)
		require.Equal(t, 4, d.Nodes[1].Stats().Open)
	})
}

// MarkdownTest: marked down from within handlers that hold a lock of the
// user's, again and again.
func TestMarkdown(t *testing.T) {
	rounds := 1000
	if testing.Short() {
		rounds = 100
	}
	under(t, func(t *testing.T) {
		d := newDuo(t, LossyClient(), StatelessServer())
		var lock sync.Mutex
		var round, handled, answered int // handlers that ran, of the server, of the client; under lock
		d.rec[1].hook = func(ctx context.Context, m *Message) {
			lock.Lock()
			defer lock.Unlock()
			handled++
			if round%2 == 0 { // the client's handler gets something, too
				a := NewMessage(1)
				if m.Conn.Send(ctx, a) != nil {
					a.Release()
				}
				return
			}
			m.Conn.MarkDown()
		}
		d.rec[0].hook = func(_ context.Context, m *Message) {
			lock.Lock()
			defer lock.Unlock()
			answered++
			m.Conn.MarkDown()
		}
		var left int // rounds whose messages are not dropped by the client
		for i := range rounds {
			lock.Lock()
			c := d.connect(t, 0)
			for range 3 {
				m := NewMessage(1)
				if c.Send(t.Context(), m) != nil {
					m.Release()
				}
			}
			if i%3 == 0 {
				c.MarkDown()
			} else {
				left++
			}
			before := handled
			round = i
			lock.Unlock()
			settle(time.Millisecond)
			lock.Lock()
			if i%3 != 0 {
				require.Greater(t, handled, before, "round %d: the server's handler has not run", i)
			}
			lock.Unlock()
		}
		t.Logf("%d rounds, %d left to the handlers: the server's ran %d times, the client's %d", rounds, left, handled, answered)
		require.GreaterOrEqual(t, handled, left)
		require.NotZero(t, answered)
		d.Nodes[0].MarkDownAll()
		settle(time.Second)
		require.Zero(t, d.Nodes[0].Stats().Open+d.Nodes[1].Stats().Open)
		require.Zero(t, d.Net.Connections())
	})
}
