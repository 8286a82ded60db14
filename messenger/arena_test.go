package messenger

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/argonaut-rdma/argonaut/conn"
	"github.com/argonaut-rdma/argonaut/test/env"
)

// A message that can not be sent is the caller's mistake, not the session's end.
func TestDataOfAnotherArena(t *testing.T) {
	carriers(t, func(t *testing.T, scheme string) {
		p := newPair(t, scheme, Config{}, Config{}, nil, nil)
		foreign, _ := randomList(t, newArena(t), 10_000)
		m := NewMessage(1)
		m.Data = foreign
		_, err := p.c.Call(soon(t), m)
		require.ErrorIs(t, err, ErrInvalid)
		require.ErrorIs(t, p.c.Send(soon(t), m), ErrInvalid)
		_, err = p.c.TrySend(m)
		require.ErrorIs(t, err, ErrInvalid)
		m.Release()

		m = NewMessage(1)
		r, err := p.c.Call(soon(t), m)
		require.NoError(t, err)
		r.Release()
	})
}

func TestTransportOfAnotherArena(t *testing.T) {
	dev := env.Open(t)
	t.Cleanup(func() { require.NoError(t, dev.Close()) })
	other := newArena(t)
	_, err := New(Config{
		Name: EntityName{Client, -1}, Arena: newArena(t),
		Transports: []Transport{{Scheme: schemeDevice, Open: func(c conn.Config) (*conn.Endpoint, error) {
			return conn.NewEndpoint(dev, other, c)
		}}},
	})
	require.ErrorIs(t, err, ErrInvalid)
}

// A peer that listens but has no room is not one that nobody listens at.
func TestBusyPeerIsTriedAgain(t *testing.T) {
	dev := env.Open(t)
	t.Cleanup(func() { require.NoError(t, dev.Close()) })
	arena := newArena(t)
	p := newPair(t, schemeDevice, Config{
		Arena: arena,
		Transports: []Transport{{Scheme: schemeDevice, Open: func(c conn.Config) (*conn.Endpoint, error) {
			c.Credits, c.RecvBuffers = 8, 8 // room for one connection
			return conn.NewEndpoint(dev, arena, c)
		}}},
	}, Config{}, nil, nil)

	second := newMessenger(t, Config{})
	second.AddDispatcher(&handler{refused: func(*Connection) { t.Error("HandleRefused though the peer listens") }})
	c, err := second.ConnectTo(OSD, p.server.Addrs())
	require.NoError(t, err)
	require.Eventually(t, func() bool { return c.Err() != nil }, patience, 1e6)
	require.ErrorContains(t, c.Err(), "busy")
	require.Equal(t, StateConnecting, c.State())
	p.c.MarkDown()
	require.NoError(t, c.Ready(soon(t)))
}
