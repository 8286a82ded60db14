package messenger

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/argonaut-rdma/argonaut/buffer"
)

func TestPullAndPush(t *testing.T) {
	grantors(t, func(t *testing.T, scheme string, grantor Config) {
		const n = 9<<20 + 123
		type result struct {
			pulled []byte
			err    error
		}
		results := make(chan result, 1)
		sh := &handler{dispatch: func(ctx context.Context, m *Message) bool {
			defer m.Release()
			gs, rest, err := DecodeGrants(nil, m.Front)
			if err != nil {
				results <- result{nil, err}
				return true
			}
			ws, _, err := DecodeGrants(nil, rest)
			if err != nil {
				results <- result{nil, err}
				return true
			}
			dst, err := m.Conn.m.cfg.Arena.GetList(ctx, n-100, buffer.Anonymous)
			if err != nil {
				results <- result{nil, err}
				return true
			}
			defer dst.Release()
			if err = m.Conn.Pull(ctx, dst, gs, 100); err == nil {
				err = m.Conn.Push(ctx, ws, 7, dst)
			}
			results <- result{bytesOf(dst), err}
			echo(ctx, m.Retain())
			return true
		}}
		p := newPair(t, scheme, Config{}, grantor, sh, nil)
		require.True(t, p.c.CanGrant())
		src, want := randomList(t, p.client.cfg.Arena, n)
		defer src.Release()
		dst, _ := randomList(t, p.client.cfg.Arena, n)
		defer dst.Release()
		gs, err := p.c.Grant(soon(t), src, false)
		require.NoError(t, err)
		ws, err := p.c.Grant(soon(t), dst, true)
		require.NoError(t, err)
		require.Equal(t, len(gs)+len(ws), p.c.Stats().Grants)
		m := NewMessage(1)
		m.Front = AppendGrants(AppendGrants(m.Front, gs), ws)
		r, err := p.c.Call(soon(t), m)
		require.NoError(t, err)
		r.Release()
		res := receiveOne(t, results, "result")
		require.NoError(t, res.err)
		require.Equal(t, want[100:], res.pulled)
		require.Equal(t, want[100:], bytesOf(dst)[7:7+n-100], "the push is there before what was sent after it")

		require.NoError(t, p.c.Revoke(soon(t), gs))
		require.NoError(t, p.c.Revoke(soon(t), ws))
		require.Zero(t, p.c.Stats().Grants)
		m = NewMessage(1)
		m.Front = AppendGrants(AppendGrants(m.Front, gs), ws)
		require.NoError(t, p.c.Send(soon(t), m))
		res = receiveOne(t, results, "result")
		require.ErrorIs(t, res.err, ErrBadGrant)
		if scheme == SchemeTCP || gs[0].Framed {
			require.ErrorIs(t, res.err, ErrStaleGrant)
		} else {
			require.NotErrorIs(t, res.err, ErrStaleGrant, "on RDMA it ends the connection")
		}
	})
}

func TestPullOutOfRange(t *testing.T) {
	grantors(t, func(t *testing.T, scheme string, grantor Config) {
		p := newPair(t, scheme, Config{}, grantor, nil, nil)
		sc := receiveOne(t, p.accepted, "accepted connection")
		src, _ := randomList(t, p.client.cfg.Arena, 10_000)
		defer src.Release()
		gs, err := p.c.Grant(soon(t), src, false)
		require.NoError(t, err)
		dst, _ := randomList(t, p.server.cfg.Arena, 5000)
		defer dst.Release()
		require.ErrorIs(t, sc.Pull(soon(t), dst, gs, 5001), ErrInvalid)
		require.ErrorIs(t, sc.Push(soon(t), gs, 0, dst), ErrInvalid, "a read grant")
		require.NoError(t, sc.Pull(soon(t), dst, gs, 5000))
		forged := append([]Grant(nil), gs...)
		forged[0].Len += 1 << 20 // claims more than was granted
		err = sc.Pull(soon(t), dst, forged, 9000)
		require.ErrorIs(t, err, ErrBadGrant)
		if scheme != SchemeTCP && !gs[0].Framed { // the adapter sees to it, and ends the connection
			return
		}
		forged[0] = gs[0]
		forged[0].RKey += 1000
		require.ErrorIs(t, sc.Pull(soon(t), dst, forged, 0), ErrBadGrant)
		require.EqualValues(t, 2, p.client.Stats().BadGrants)

		w, err := p.c.Grant(soon(t), src, true)
		require.NoError(t, err)
		require.NoError(t, sc.Push(soon(t), w, 0, dst))
		forged[0] = w[0]
		forged[0].Len += 1 << 20
		require.ErrorIs(t, sc.Push(soon(t), forged, 9000, dst), ErrBadGrant)
		forged[0] = gs[0]
		forged[0].Write = true // it was granted for reading
		require.ErrorIs(t, sc.Push(soon(t), forged, 0, dst), ErrBadGrant)
		require.EqualValues(t, 4, p.client.Stats().BadGrants)
		require.NoError(t, sc.Pull(soon(t), dst, gs, 5000))
	})
}
