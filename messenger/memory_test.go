package messenger

import (
	"context"
	"crypto/rand"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/argonaut-rdma/argonaut/buffer"
	"github.com/argonaut-rdma/argonaut/verbs"
)

// Memory of the caller is sent, granted and pulled into from where it is, on
// every carrier, and is the caller's again when the peer has acknowledged it.
func TestCallersMemory(t *testing.T) {
	grantors(t, func(t *testing.T, scheme string, grantor Config) {
		p := newPair(t, scheme, Config{}, grantor, nil, nil)
		sc := receiveOne(t, p.accepted, "accepted connection")
		c, err := p.client.NewRegCache(buffer.RegCacheConfig{})
		require.NoError(t, err)
		mem := make([]byte, 3<<20+77)
		rand.Read(mem)
		m, err := c.AddPinned(mem)
		require.NoError(t, err)
		r, err := m.Register(soon(t), 0)
		require.NoError(t, err)
		for range 3 {
			q := NewMessage(7)
			q.Data = r.List()
			a, err := p.c.Call(soon(t), q)
			require.NoError(t, err)
			require.Equal(t, mem, bytesOf(a.Data))
			a.Release()
		}
		l := r.List()
		gs, err := p.c.Grant(soon(t), l, false)
		require.NoError(t, err)
		dst, _ := randomList(t, p.server.cfg.Arena, int64(len(mem)))
		require.NoError(t, sc.Pull(soon(t), dst, gs, 0))
		require.Equal(t, mem, bytesOf(dst))
		require.NoError(t, p.c.Revoke(soon(t), gs))

		// What is registered for reading is not written.
		_, err = p.c.Grant(soon(t), l, true)
		require.ErrorIs(t, err, ErrInvalid)
		other, want := randomList(t, p.server.cfg.Arena, 100_000)
		sgs, err := sc.Grant(soon(t), other, false)
		require.NoError(t, err)
		l.Truncate(100_000)
		require.ErrorIs(t, p.c.Pull(soon(t), l, sgs, 0), ErrInvalid)
		l.Release()
		w, err := m.Register(soon(t), verbs.AccessLocalWrite)
		require.NoError(t, err)
		l = w.List()
		l.Truncate(100_000)
		require.NoError(t, p.c.Pull(soon(t), l, sgs, 0))
		require.Equal(t, want, mem[:100_000])
		l.Release()
		require.NoError(t, sc.Revoke(soon(t), sgs))
		dst.Release()
		other.Release()
		w.Close()
		r.Close()
		require.NoError(t, m.Close(soon(t)))

		// A registration that is left does not keep the messenger.
		m, err = c.AddPinned(mem)
		require.NoError(t, err)
		r, err = m.Register(soon(t), 0)
		require.NoError(t, err)
		require.NoError(t, p.client.Shutdown(soon(t)))
		r.Close()
		require.NoError(t, c.Close(context.Background()))
	})
}
