package messenger

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestSendBeforeConnected(t *testing.T) {
	carriers(t, func(t *testing.T, scheme string) {
		server := newMessenger(t, Config{Name: EntityName{OSD, 1}})
		got := make(chan string, 1)
		server.AddDispatcher(&handler{dispatch: func(_ context.Context, m *Message) bool {
			defer m.Release()
			got <- string(m.Front)
			return true
		}})
		require.NoError(t, server.Bind(soon(t), anyAddr(scheme)))
		client := newMessenger(t, Config{})
		c, err := client.ConnectTo(OSD, server.Addrs())
		require.NoError(t, err)
		m := NewMessage(1)
		m.Front = append(m.Front, "early"...)
		require.NoError(t, c.Send(soon(t), m))
		require.Equal(t, "early", receiveOne(t, got, "message"))
	})
}

func TestConnectToIsReused(t *testing.T) {
	carriers(t, func(t *testing.T, scheme string) {
		p := newPair(t, scheme, Config{}, Config{}, nil, nil)
		again, err := p.client.ConnectTo(OSD, p.server.Addrs())
		require.NoError(t, err)
		require.Same(t, p.c, again)
		p.c.MarkDown()
		again, err = p.client.ConnectTo(OSD, p.server.Addrs())
		require.NoError(t, err)
		require.NotSame(t, p.c, again)
		require.NoError(t, again.Ready(soon(t)))
	})
}

func TestNobodyListens(t *testing.T) {
	carriers(t, func(t *testing.T, scheme string) {
		server := newMessenger(t, Config{Name: EntityName{OSD, 1}})
		require.NoError(t, server.Bind(soon(t), anyAddr(scheme)))
		addrs := server.Addrs()
		require.NoError(t, server.Close())

		refused := make(chan *Connection, 100)
		client := newMessenger(t, Config{})
		client.AddDispatcher(&handler{refused: func(c *Connection) { refused <- c }})
		c, err := client.ConnectTo(OSD, addrs)
		require.NoError(t, err)
		require.Same(t, c, receiveOne(t, refused, "HandleRefused"))
		ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
		defer cancel()
		m := NewMessage(1)
		defer m.Release()
		_, err = c.Call(ctx, m)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorContains(t, err, "refused")
		require.Equal(t, StateConnecting, c.State())
	})
}

func TestClientReconnectsUntilTheServerIsThere(t *testing.T) {
	carriers(t, func(t *testing.T, scheme string) {
		server := newMessenger(t, Config{Name: EntityName{OSD, 1}})
		require.NoError(t, server.Bind(soon(t), anyAddr(scheme)))
		addrs := server.Addrs()
		require.NoError(t, server.Close())
		client := newMessenger(t, Config{})
		refused := make(chan *Connection, 1000)
		client.AddDispatcher(&handler{refused: func(c *Connection) { refused <- c }})
		for i := range addrs {
			addrs[i].Nonce = 0 // the incarnation will be another one
		}
		c, err := client.ConnectTo(OSD, addrs)
		require.NoError(t, err)
		receiveOne(t, refused, "HandleRefused")

		second := newMessenger(t, Config{Name: EntityName{OSD, 1}})
		second.AddDispatcher(&handler{dispatch: echo})
		require.NoError(t, second.Bind(soon(t), addrs))
		r, err := c.Call(soon(t), NewMessage(1))
		require.NoError(t, err)
		r.Release()
	})
}

func TestWrongIncarnationRefuses(t *testing.T) {
	carriers(t, func(t *testing.T, scheme string) {
		server := newMessenger(t, Config{Name: EntityName{OSD, 1}, Nonce: 5})
		require.NoError(t, server.Bind(soon(t), anyAddr(scheme)))
		addrs := server.Addrs()
		require.EqualValues(t, 5, addrs[0].Nonce)
		addrs[0].Nonce = 6
		c, err := newMessenger(t, Config{}).ConnectTo(OSD, addrs)
		require.NoError(t, err)
		require.Eventually(t, func() bool { return server.Stats().HandshakesFailed > 0 }, patience, time.Millisecond)
		require.NotEqual(t, StateOpen, c.State())
		require.Zero(t, server.Stats().ConnectionsCreated)
		require.NotZero(t, server.Stats().WrongPeers)
		require.Eventually(t, func() bool { return errors.Is(c.Err(), ErrWrongPeer) }, patience, time.Millisecond, "the dialer is told")
		require.ErrorContains(t, c.Err(), "here is osd.1 at")
	})
}

func TestWrongKindOfPeer(t *testing.T) {
	carriers(t, func(t *testing.T, scheme string) {
		p := newPair(t, scheme, Config{}, Config{}, nil, nil)
		reset := make(chan *Connection, 1)
		client := newMessenger(t, Config{})
		client.AddDispatcher(&handler{reset: func(c *Connection) { reset <- c }})
		c, err := client.ConnectTo(Mon, p.server.Addrs())
		require.NoError(t, err)
		err = c.Ready(soon(t))
		require.ErrorIs(t, err, ErrWrongPeer)
		require.NotErrorIs(t, err, ErrProtocol)
		require.ErrorContains(t, err, "peer is osd, not mon")
		require.EqualValues(t, 1, client.Stats().WrongPeers)
		require.Same(t, c, receiveOne(t, reset, "HandleReset"))
	})
}

func TestRegisteredClientReplacesItself(t *testing.T) {
	carriers(t, func(t *testing.T, scheme string) {
		server := newMessenger(t, Config{Name: EntityName{OSD, 0}})
		server.SetPolicy(Client, StatelessRegisteredServer())
		server.AddDispatcher(&handler{dispatch: echo})
		require.NoError(t, server.Bind(soon(t), anyAddr(scheme)))
		reset := make(chan *Connection, 1)
		var cs []*Connection
		for range 2 { // the same incarnation, as after a fault that only it has noticed
			client := newMessenger(t, Config{Name: EntityName{Client, 7}, Nonce: 99})
			client.AddDispatcher(&handler{reset: func(c *Connection) { reset <- c }})
			c, err := client.ConnectTo(OSD, server.Addrs())
			require.NoError(t, err)
			require.NoError(t, c.Ready(soon(t)))
			cs = append(cs, c)
		}
		require.Same(t, cs[0], receiveOne(t, reset, "reset of the first"))
		r, err := cs[1].Call(soon(t), NewMessage(1))
		require.NoError(t, err)
		r.Release()
		require.Equal(t, 1, server.Stats().Open)
	})
}

func TestFeaturesAreRequired(t *testing.T) {
	carriers(t, func(t *testing.T, scheme string) {
		server := newMessenger(t, Config{Name: EntityName{OSD, 0}})
		pol := StatelessServer()
		pol.Required, pol.Supported = 1<<5, 1<<5|1<<6
		server.SetPolicy(Client, pol)
		require.NoError(t, server.Bind(soon(t), anyAddr(scheme)))
		poor, rich := newMessenger(t, Config{}), newMessenger(t, Config{})
		c, err := poor.ConnectTo(OSD, server.Addrs())
		require.NoError(t, err)
		require.ErrorIs(t, c.Ready(soon(t)), ErrFeatures)
		pol = LossyClient()
		pol.Supported = 1<<5 | 1<<7
		rich.SetPolicy(OSD, pol)
		c, err = rich.ConnectTo(OSD, server.Addrs())
		require.NoError(t, err)
		require.NoError(t, c.Ready(soon(t)))
		_, _, features := c.Peer()
		require.Equal(t, baseFeatures|1<<5, features)
	})
}
