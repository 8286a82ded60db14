package messenger

import (
	"bytes"
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/argonaut-rdma/argonaut/buffer"
	"github.com/argonaut-rdma/argonaut/conn"
	"github.com/argonaut-rdma/argonaut/test/env"
)

// Where the bytes of a grant travel in frames, a revoked buffer is the caller's
// again: what he writes into it then reaches nobody.
func TestRevokedWhileItIsPulled(t *testing.T) {
	grantors(t, func(t *testing.T, scheme string, grantor Config) {
		const n, rounds = 3 << 20, 20
		pulls := make(chan error, rounds)
		sh := &handler{dispatch: func(ctx context.Context, m *Message) bool {
			defer m.Release()
			gs, _, err := DecodeGrants(nil, m.Front)
			if err != nil {
				pulls <- err
				return true
			}
			dst, err := m.Conn.m.cfg.Arena.GetList(ctx, n, buffer.Anonymous)
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

// smallRDMA is a configuration whose device can not confine keys, and which takes
// most bytes in a message.
func smallRDMA(t *testing.T, most int64) Config {
	dev := env.Core(t, withoutKeys{env.OpenDriver(t)})
	t.Cleanup(func() { require.NoError(t, dev.Close()) })
	arena := newArena(t)
	return Config{Arena: arena, Transports: []Transport{{Scheme: schemeDevice, Open: func(c conn.Config) (*conn.Endpoint, error) {
		c.MaxMessage = most
		return conn.NewEndpoint(dev, arena, c)
	}}}}
}

// On RDMA too frames are no larger than either side takes.
func TestFramesWithinMaxMessage(t *testing.T) {
	const n, small, large = 300_000, 64 << 10, 1 << 20
	for _, most := range []struct{ server, client int64 }{{small, small}, {small, large}, {large, small}, {large, large}} {
		p := newPair(t, schemeDevice, smallRDMA(t, most.server), smallRDMA(t, most.client), nil, nil)
		sc := receiveOne(t, p.accepted, "accepted connection")
		src, want := randomList(t, p.client.cfg.Arena, n)
		dst, _ := randomList(t, p.server.cfg.Arena, n)
		gs, err := p.c.Grant(soon(t), src, false)
		require.NoError(t, err)
		require.True(t, gs[0].Framed)
		require.NoError(t, sc.Pull(soon(t), dst, gs, 0))
		require.Equal(t, want, bytesOf(dst))
		require.NoError(t, p.c.Revoke(soon(t), gs))
		dst.CopyFrom(bytes.Repeat([]byte{7}, n))
		gs, err = p.c.Grant(soon(t), src, true)
		require.NoError(t, err)
		require.NoError(t, sc.Push(soon(t), gs, 0, dst))
		require.Equal(t, bytesOf(dst), bytesOf(src))
		require.NoError(t, p.c.Revoke(soon(t), gs))
		src.Release()
		dst.Release()
	}
}

// The grants of many small buffers go in as many frames as it takes.
func TestFramesWithinMaxFront(t *testing.T) {
	const buffers, size = 2000, 100
	pieces := func(a *buffer.Arena) *buffer.List {
		b, err := a.Get(soon(t), 2*buffers*size, buffer.Anonymous)
		require.NoError(t, err)
		defer b.Release()
		l := buffer.NewList()
		for i := range buffers { // none is next to another
			l.Append(b.Retain().Slice(2*i*size, (2*i+1)*size))
		}
		l.CopyFrom(bytes.Repeat([]byte{1, 2, 3, 4, 5, 6, 7}, buffers*size/7+1)[:buffers*size])
		return l
	}
	grantors(t, func(t *testing.T, scheme string, grantor Config) {
		grantor.MaxFront = 4 << 10
		p := newPair(t, scheme, Config{}, grantor, nil, nil)
		sc := receiveOne(t, p.accepted, "accepted connection")
		src := pieces(p.client.cfg.Arena)
		defer src.Release()
		dst, _ := randomList(t, p.server.cfg.Arena, src.Len())
		defer dst.Release()
		gs, err := p.c.Grant(soon(t), src, false)
		require.NoError(t, err)
		if scheme != SchemeTCP && !gs[0].Framed {
			require.NoError(t, p.c.Revoke(soon(t), gs))
			return // the adapter's own keys: no frames
		}
		require.Len(t, gs, buffers)
		require.NoError(t, sc.Pull(soon(t), dst, gs, 0))
		require.Equal(t, bytesOf(src), bytesOf(dst))
		part := dst.Share()
		part.Split(50_001).Release()
		require.NoError(t, sc.Pull(soon(t), part, gs, 33_333))
		require.Equal(t, bytesOf(src)[33_333:33_333+50_001], bytesOf(part))
		part.Release()
		require.NoError(t, p.c.Revoke(soon(t), gs))
		gs, err = p.c.Grant(soon(t), src, true)
		require.NoError(t, err)
		dst.CopyFrom(bytes.Repeat([]byte{9, 8, 7}, buffers*size/3+1)[:buffers*size])
		require.NoError(t, sc.Push(soon(t), gs, 0, dst))
		require.Equal(t, bytesOf(dst), bytesOf(src))
		require.NoError(t, p.c.Revoke(soon(t), gs))
		require.Zero(t, p.server.Stats().Faults)
	})
}

// What a peer asks for and would not take, or what is dropped on its way out, ends
// the pull or push that it is of.
func TestFramesThatAreTooLarge(t *testing.T) {
	p := newPair(t, SchemeTCP, Config{MaxData: 64 << 10}, Config{}, nil, nil)
	sc := receiveOne(t, p.accepted, "accepted connection")
	src, _ := randomList(t, p.client.cfg.Arena, 100_000)
	defer src.Release()
	gs, err := p.c.Grant(soon(t), src, false)
	require.NoError(t, err)
	dst, _ := randomList(t, p.server.cfg.Arena, 100_000)
	defer dst.Release()
	sc.mu.Lock()
	l := sc.link
	b := l.t.frames()
	sc.mu.Unlock()
	b.chunk = pullChunk // as a peer of another make may
	require.ErrorIs(t, sc.Pull(soon(t), dst, gs, 0), ErrTooLarge)
	for _, typ := range []uint16{typePull, typePush} {
		m := NewMessage(typ)
		w := &pull{ch: make(chan error, 1)}
		require.NoError(t, b.await(soon(t), m, w))
		sc.unsendable(l, 0, typ, m.TID, ErrTooLarge)
		m.Release()
		require.ErrorIs(t, receiveOne(t, w.ch, "end"), ErrTooLarge)
	}
	require.NoError(t, p.c.Revoke(soon(t), gs))
}
