package messenger

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// losslessPair is the two ends of a lossless session that a client has opened.
func losslessPair(t *testing.T, scheme string, cfg Config) (server, client *Messenger, c, sc *Connection) {
	t.Helper()
	accepted := make(chan *Connection, 4)
	server, client = newMessenger(t, Config{Name: EntityName{OSD, 0}}), newMessenger(t, cfg)
	server.SetPolicy(Client, StatefulServer())
	client.SetPolicy(OSD, LosslessClient())
	server.AddDispatcher(&handler{dispatch: echo, accept: func(c *Connection) { accepted <- c }})
	require.NoError(t, server.Bind(soon(t), anyAddr(scheme)))
	c, err := client.ConnectTo(OSD, server.Addrs())
	require.NoError(t, err)
	require.NoError(t, c.Ready(soon(t)))
	return server, client, c, receiveOne(t, accepted, "accepted connection")
}

// A grant holds for the transport that it was made on. After a reconnect of the
// same session it reaches nothing, although the keys of frames are counted anew,
// so that a key of old is one of a new grant's, too.
func TestGrantsEndWithTheirTransport(t *testing.T) {
	grantors(t, func(t *testing.T, scheme string, grantor Config) {
		server, client, c, sc := losslessPair(t, scheme, grantor)

		src, want := randomList(t, client.cfg.Arena, 10_000)
		defer src.Release()
		dst, _ := randomList(t, server.cfg.Arena, 10_000)
		defer dst.Release()
		old, err := c.Grant(soon(t), src, false)
		require.NoError(t, err)
		oldW, err := c.Grant(soon(t), src, true)
		require.NoError(t, err)
		require.NoError(t, sc.Pull(soon(t), dst, old, 0))
		require.Equal(t, want, bytesOf(dst))

		c.mu.Lock()
		l := c.link
		c.mu.Unlock()
		l.fail("test", errors.New("the test cuts it"))
		require.Eventually(t, func() bool { return c.Stats().Reconnects == 1 && sc.Stats().State == StateOpen }, patience, time.Millisecond)
		require.NoError(t, c.Ready(soon(t)))
		r, err := c.Call(soon(t), NewMessage(1)) // both ends have the new transport
		require.NoError(t, err)
		r.Release()
		require.Zero(t, c.Stats().Grants, "they have ended")
		require.NoError(t, c.Revoke(soon(t), old), "and need not be revoked")

		gs, err := c.Grant(soon(t), src, false)
		require.NoError(t, err)
		ws, err := c.Grant(soon(t), src, true)
		require.NoError(t, err)
		framed := scheme == SchemeTCP || gs[0].Framed
		require.NotEqual(t, old[0].Epoch, gs[0].Epoch)
		if framed {
			require.Equal(t, old[0].RKey, gs[0].RKey, "the key of another grant")
		}
		before := client.Stats().BadGrants
		// As they are, and as they would be but for the transport that they name.
		for _, g := range [][]Grant{old, ofEpoch(gs, old[0].Epoch)} {
			require.ErrorIs(t, sc.Pull(soon(t), dst, g, 0), ErrStaleGrant)
		}
		dst.CopyFrom(make([]byte, 10_000))
		for _, g := range [][]Grant{oldW, ofEpoch(ws, oldW[0].Epoch)} {
			require.ErrorIs(t, sc.Push(soon(t), g, 0, dst), ErrStaleGrant)
		}
		require.Equal(t, want, bytesOf(src), "nothing was written")
		if framed {
			require.Equal(t, before+4, client.Stats().BadGrants)
		}
		require.Equal(t, StateOpen, sc.State(), "the connection goes on")
		require.NoError(t, sc.Pull(soon(t), dst, gs, 0))
		require.Equal(t, want, bytesOf(dst))
		require.NoError(t, c.Revoke(soon(t), gs))
		require.NoError(t, c.Revoke(soon(t), ws))
	})
}

// ofEpoch are gs with another epoch.
func ofEpoch(gs []Grant, epoch uint32) []Grant {
	out := append([]Grant(nil), gs...)
	for i := range out {
		out[i].Epoch = epoch
	}
	return out
}
