package conn

import (
	"bytes"
	"context"
	"crypto/rand"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/argonaut-rdma/argonaut/buffer"
	"github.com/argonaut-rdma/argonaut/test/env"
	"github.com/argonaut-rdma/argonaut/verbs"
)

// mapped is a file of random bytes, mapped for reading.
func mapped(t *testing.T, n int) []byte {
	t.Helper()
	data := make([]byte, n)
	rand.Read(data)
	name := filepath.Join(t.TempDir(), "object")
	require.NoError(t, os.WriteFile(name, data, 0o600))
	f, err := os.Open(name)
	require.NoError(t, err)
	defer f.Close()
	mem, err := unix.Mmap(int(f.Fd()), 0, n, unix.PROT_READ, unix.MAP_SHARED)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, unix.Munmap(mem)) })
	return mem
}

// A mapped file is sent, granted and read by the peer from where it is, and
// memory of the caller is read into; nothing is copied, and all is given back.
func TestCallersMemory(t *testing.T) {
	env.UserSpace(t, "before Linux 6.2 the kernel pins a shared mapping for writing, whatever it is registered for")
	each(t, func(t *testing.T, cfg nodeConfig) {
		ctx, cancel := context.WithTimeout(t.Context(), wait)
		defer cancel()
		file := mapped(t, 3<<20+77)
		anon, err := unix.Mmap(-1, 0, 1<<20, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, unix.Munmap(anon)) })

		p := newPair(t, cfg, cfg)
		c, err := buffer.NewRegCache(buffer.RegCacheConfig{PDs: []*verbs.PD{p.a.PD()}})
		require.NoError(t, err)
		p.a.Share(c)
		m, err := c.Add(file)
		require.NoError(t, err)
		r, err := m.Register(ctx, 0)
		require.NoError(t, err)
		for range 3 {
			require.NoError(t, p.ab.Send(ctx, Message{Head: []byte("file"), Payload: r.List()}))
			p.b.expect(p.ba, "file", file)
		}
		part := r.List()
		tail := part.Split(1 << 20)
		tail.Release()
		require.NoError(t, p.ab.Send(ctx, Message{Head: []byte("part"), Payload: part}))
		p.b.expect(p.ba, "part", file[:1<<20])
		// A receive that is being handled is held for a moment.
		require.Eventually(t, func() bool { return p.a.a.Account().Held == 0 }, wait, time.Millisecond)
		require.Zero(t, p.ab.Stats().CopiedOut, "nothing of it is copied")

		if p.ab.CanGrant() {
			// The peer reads it, and we read into memory of ours.
			l := r.List()
			gs, err := p.ab.Grant(ctx, l, false)
			require.NoError(t, err)
			dst, _ := p.b.list(100_000)
			require.NoError(t, p.ba.Read(ctx, dst, gs[0], 1<<20))
			require.True(t, bytes.Equal(file[1<<20:][:100_000], bytesOf(dst)))
			_, err = p.ab.Grant(ctx, l, true)
			require.ErrorIs(t, err, verbs.ErrInvalid, "it may not be written")
			require.NoError(t, p.ab.Revoke(ctx, gs))
			sgs, err := p.ba.Grant(ctx, dst, false)
			require.NoError(t, err)
			l.Truncate(100_000)
			require.ErrorIs(t, p.ab.Read(ctx, l, sgs[0], 0), verbs.ErrInvalid, "it may not be read into")
			require.NoError(t, p.ab.Err(), "which is no fault of the connection")
			l.Release()
			w, err := c.Add(anon)
			require.NoError(t, err)
			wr, err := w.Register(ctx, verbs.AccessLocalWrite)
			require.NoError(t, err)
			sink := wr.List()
			sink.Truncate(100_000)
			require.NoError(t, p.ab.Read(ctx, sink, sgs[0], 0))
			require.True(t, bytes.Equal(bytesOf(dst), anon[:100_000]))
			sink.Release()
			wr.Close()
			require.NoError(t, w.Close(ctx))
			dst.Release()
		}
		// Its owner has it back once the peer has all.
		r.Close()
		require.NoError(t, m.Close(ctx))

		// What is registered elsewhere is refused.
		other, err := buffer.NewRegCache(buffer.RegCacheConfig{})
		require.NoError(t, err)
		om, err := other.Add(file)
		require.NoError(t, err)
		or, err := om.Register(ctx, 0)
		require.NoError(t, err)
		ol := or.List()
		err = p.ab.Send(ctx, Message{Payload: ol})
		require.ErrorIs(t, err, verbs.ErrInvalid)
		require.ErrorContains(t, err, "RegCache without Endpoint.PD")
		ol.Release()
		or.Close()
		require.NoError(t, other.Close(ctx))

		// A registration that its owner still has does not keep the endpoint.
		m, err = c.Add(file)
		require.NoError(t, err)
		r, err = m.Register(ctx, 0)
		require.NoError(t, err)
		kept := r.List()
		require.NoError(t, p.ab.Send(ctx, Message{Head: []byte("last"), Payload: kept.Share()}))
		p.b.expect(p.ba, "last", file)
		require.NoError(t, p.a.Endpoint.Shutdown(ctx))
		require.Equal(t, file, kept.At(0).Bytes(), "the memory is the caller's still")
		kept.Release()
		r.Close()
		require.NoError(t, c.Close(ctx))
	})
}

// A Stream sends memory of the caller, too.
func TestCallersMemoryOnAStream(t *testing.T) {
	file := mapped(t, 1<<20+5)
	c, err := buffer.NewRegCache(buffer.RegCacheConfig{})
	require.NoError(t, err)
	m, err := c.Add(file)
	require.NoError(t, err)
	r, err := m.Register(t.Context(), 0)
	require.NoError(t, err)
	x, y := streams(t)
	l := r.List()
	sent := make(chan error)
	go func() { sent <- x.Write([]byte("head"), l) }() // ends when the peer has read all
	got := make([]byte, 4+len(file))
	require.NoError(t, y.ReadFull(got))
	require.NoError(t, <-sent)
	require.Equal(t, "head", string(got[:4]))
	require.True(t, bytes.Equal(file, got[4:]))
	l.Release()
	r.Close()
	require.NoError(t, c.Close(t.Context()))
}
