package messenger

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/argonaut-rdma/argonaut/buffer"
	"github.com/argonaut-rdma/argonaut/conn"
	"github.com/argonaut-rdma/argonaut/test/env"
)

// A grant for one transfer ends with it, and what it lent is the owner's again.
// The grant travels in a message.
func TestGrantOnce(t *testing.T) {
	carriers(t, func(t *testing.T, scheme string) {
		p := newPair(t, scheme, Config{}, Config{}, nil, nil)
		server := receiveOne(t, p.accepted, "connection")
		src, want := randomList(t, p.client.cfg.Arena, 100_000)
		defer src.Release()
		used := make(chan Grant, 1)
		gs, err := p.c.GrantOnce(soon(t), src, false, func(g Grant) { used <- g })
		if err != nil {
			require.ErrorIs(t, err, ErrNotSupported)
			require.True(t, scheme == SchemeTCP || env.Device() != "")
			return
		}
		require.Len(t, gs, 1)
		require.True(t, gs[0].Once)
		require.Equal(t, 1, p.c.Stats().Grants)
		gs, rest, err := DecodeGrants(nil, AppendGrants(nil, gs))
		require.NoError(t, err)
		require.Empty(t, rest)
		dst, _ := randomList(t, p.server.cfg.Arena, 50_000)
		defer dst.Release()
		require.NoError(t, server.Pull(soon(t), dst, gs, 7))
		require.True(t, string(want[7:50_007]) == string(bytesOf(dst)))
		require.Equal(t, gs[0], receiveOne(t, used, "used"))
		require.Zero(t, p.c.Stats().Grants)
		require.NoError(t, p.c.Revoke(soon(t), gs), "it is not live")

		back, _ := randomList(t, p.client.cfg.Arena, 1000)
		defer back.Release()
		gs, err = p.c.GrantOnce(soon(t), back, true, nil)
		require.NoError(t, err)
		part, want := randomList(t, p.server.cfg.Arena, 900)
		defer part.Release()
		require.NoError(t, server.Push(soon(t), gs, 100, part))
		require.Eventually(t, func() bool { return p.c.Stats().Grants == 0 }, patience, time.Millisecond)
		require.True(t, string(want) == string(bytesOf(back)[100:]))

		gs, err = p.c.GrantOnce(soon(t), back, true, nil)
		require.NoError(t, err)
		require.Equal(t, 1, p.c.Stats().Grants)
		require.NoError(t, p.c.Revoke(soon(t), gs))
		require.Zero(t, p.c.Stats().Grants)
	})
}

// Where keys can not be confined, memory that is exposed is granted by the key of
// its region, and other memory in frames, on the same connection.
func TestGrantOfExposedMemory(t *testing.T) {
	dev := env.Core(t, withoutKeys{env.OpenDriver(t)})
	t.Cleanup(func() { require.NoError(t, dev.Close()) })
	arena := newArena(t)
	exposed, err := buffer.New(buffer.Config{Budget: 16 << 20, TrustFabric: true})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, exposed.Close(soon(t))) })
	p := newPair(t, schemeDevice, Config{}, Config{
		Arena: arena,
		Transports: []Transport{{Scheme: schemeDevice, Open: func(c conn.Config) (*conn.Endpoint, error) {
			c.Exposed = exposed
			return conn.NewEndpoint(dev, arena, c)
		}}},
	}, nil, nil)
	server := receiveOne(t, p.accepted, "connection")
	var all []Grant
	var lists []*buffer.List
	for _, a := range []*buffer.Arena{exposed, arena} {
		src, want := randomList(t, a, 100_000)
		lists = append(lists, src)
		gs, err := p.c.Grant(soon(t), src, false)
		require.NoError(t, err)
		require.Equal(t, a == arena, gs[0].Framed)
		dst, _ := randomList(t, p.server.cfg.Arena, 100_000)
		require.NoError(t, server.Pull(soon(t), dst, gs, 0))
		require.True(t, string(want) == string(bytesOf(dst)))
		dst.Release()
		all = append(all, gs...)
	}
	_, err = p.c.GrantOnce(soon(t), lists[0], false, nil)
	require.ErrorIs(t, err, ErrNotSupported, "a wide key can not be withdrawn")
	require.Equal(t, 2, p.c.Stats().Grants)
	require.NoError(t, p.c.Revoke(soon(t), all))
	require.Zero(t, p.c.Stats().Grants)
	for _, l := range lists {
		l.Release()
	}
}
