package messenger

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/argonaut-rdma/argonaut/buffer"
)

// Where the bytes of a grant travel in frames, a revoked buffer is the caller's
// again: what he writes into it then reaches nobody.
func TestRevokedWhileItIsPulled(t *testing.T) {
	grantors(t, func(t *testing.T, scheme string, grantor Config) {
		const n, rounds = 3 << 20, 20
		var server *Messenger
		pulls := make(chan error, rounds)
		sh := &handler{dispatch: func(ctx context.Context, m *Message) bool {
			defer m.Release()
			gs, _, err := DecodeGrants(nil, m.Front)
			if err != nil {
				pulls <- err
				return true
			}
			dst, err := server.cfg.Arena.GetList(ctx, n, buffer.Anonymous)
			if err != nil {
				pulls <- err
				return true
			}
			defer dst.Release()
			err = m.Conn.Pull(ctx, dst, gs, 0)
			if err == nil {
				for _, b := range bytesOf(dst) {
					if b != 1 {
						t.Error("a byte that was written after Revoke")
						break
					}
				}
			}
			pulls <- err
			return true
		}}
		p := newPair(t, scheme, Config{}, grantor, sh, nil)
		server = p.server
		src, _ := randomList(t, p.client.cfg.Arena, n)
		defer src.Release()
		fill := func(v byte) {
			for i := range src.Segments() {
				b := src.At(i).Bytes()
				for j := range b {
					b[j] = v
				}
			}
		}
		for range rounds {
			fill(1)
			gs, err := p.c.Grant(soon(t), src, false)
			require.NoError(t, err)
			if scheme != SchemeTCP && !gs[0].Framed {
				require.NoError(t, p.c.Revoke(soon(t), gs))
				return // the adapter's own keys: package conn's tests
			}
			m := NewMessage(1)
			m.Front = AppendGrants(m.Front, gs)
			require.NoError(t, p.c.Send(soon(t), m))
			require.NoError(t, p.c.Revoke(soon(t), gs))
			fill(2)
			if err := receiveOne(t, pulls, "end of a pull"); err != nil {
				require.ErrorIs(t, err, ErrStaleGrant)
			}
		}
	})
}

// A pull asks for no more at a time than its own end accepts.
func TestPullWithinMaxData(t *testing.T) {
	p := newPair(t, SchemeTCP, Config{MaxData: 64 << 10}, Config{}, nil, nil)
	sc := receiveOne(t, p.accepted, "accepted connection")
	src, want := randomList(t, p.client.cfg.Arena, 300_000)
	defer src.Release()
	gs, err := p.c.Grant(soon(t), src, false)
	require.NoError(t, err)
	dst, _ := randomList(t, p.server.cfg.Arena, 300_000)
	defer dst.Release()
	require.NoError(t, sc.Pull(soon(t), dst, gs, 0))
	require.Equal(t, want, bytesOf(dst))
}
