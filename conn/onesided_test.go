package conn

import (
	"bytes"
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/argonaut-rdma/argonaut/buffer"
	"github.com/argonaut-rdma/argonaut/test/env"
	"github.com/argonaut-rdma/argonaut/verbs"
)

func bytesOf(l *buffer.List) []byte {
	b := make([]byte, l.Len())
	l.CopyTo(b)
	return b
}

func TestOneSided(t *testing.T) {
	for name, cfg := range map[string]Config{"default": {}, "short": {OpDepth: 4}} {
		t.Run(name, func(t *testing.T) {
			p := newPair(t, nodeConfig{Config: cfg}, nodeConfig{Config: cfg})
			needKeys(t, p.b.dev)
			p.a.send(p.ab, "hello")
			p.b.expect(p.ba, "hello", nil)
			ctx, cancel := context.WithTimeout(t.Context(), wait)
			defer cancel()

			// Read: pieces that do not match, at offsets.
			src, data := p.b.list(100_000, 300, 70_000)
			grants, err := p.ba.Grant(ctx, src, false)
			require.NoError(t, err)
			require.Len(t, grants, 3)
			for _, c := range []struct {
				g, off int
				sizes  []int
			}{{0, 0, []int{100_000}}, {0, 5000, []int{1, 2, 3, 40_000, 5, 7000, 9}}, {1, 299, []int{1}}, {2, 0, []int{70_000}}} {
				dst, _ := p.a.list(c.sizes...)
				require.NoError(t, p.ab.Read(ctx, dst, grants[c.g], uint64(c.off)))
				from := []int{0, 100_000, 100_300}[c.g] + c.off
				require.True(t, bytes.Equal(data[from:from+int(dst.Len())], bytesOf(dst)))
				dst.Release()
			}

			// Write, seen by the peer when a message sent afterwards has come.
			dst, before := p.b.list(50_000)
			wgrants, err := p.ba.Grant(ctx, dst, true)
			require.NoError(t, err)
			out, what := p.a.list(1000, 20_000, 7)
			require.NoError(t, p.ab.Write(ctx, wgrants[0], 123, out))
			out.Release()
			p.a.send(p.ab, "written")
			p.b.expect(p.ba, "written", nil)
			copy(before[123:], what)
			require.True(t, bytes.Equal(before, bytesOf(dst)))

			// What can not be right is refused without a word to the peer.
			one, _ := p.a.list(2)
			require.ErrorIs(t, p.ab.Read(ctx, one, grants[1], 299), verbs.ErrInvalid)
			require.ErrorIs(t, p.ab.Read(ctx, one, grants[1], 1<<63), verbs.ErrInvalid)
			require.ErrorIs(t, p.ab.Read(ctx, one, wgrants[0], 0), verbs.ErrInvalid)
			require.ErrorIs(t, p.ab.Write(ctx, grants[0], 0, one), verbs.ErrInvalid)
			stale := grants[0]
			stale.Epoch++
			require.ErrorIs(t, p.ab.Read(ctx, one, stale, 0), ErrStaleGrant)
			require.NoError(t, p.ab.Err())
			require.EqualValues(t, 4, p.ab.Stats().OneSidedReads)

			// Revoked: the access ends the connection, and reaches nothing.
			require.NoError(t, p.ba.Revoke(ctx, append(grants, wgrants...)))
			require.NoError(t, p.ba.Revoke(ctx, grants))
			require.Zero(t, p.b.a.Stats().Grants)
			now := bytesOf(dst)
			err = p.ab.Write(ctx, wgrants[0], 0, one)
			if err == nil { // the transport has taken it; the violation follows
				err = get(t, p.a.faults).err
			}
			var f *FaultError
			require.ErrorAs(t, err, &f)
			require.Equal(t, FaultPeer, f.Kind, "%v", err)
			get(t, p.ab.Done())
			get(t, p.ba.Done())
			if env.Device() == "" { // others may see no more than that the connection is gone
				require.ErrorIs(t, p.ba.Err(), ErrViolation)
			}
			require.True(t, bytes.Equal(now, bytesOf(dst)))
			require.Error(t, p.ab.Read(ctx, one, grants[0], 0))
			_, err = p.ba.Grant(ctx, src, false)
			require.Error(t, err)
			for _, l := range []*buffer.List{src, dst, one} {
				l.Release()
			}
		})
	}
}

// TestGrantsEndWithTheConnection: what is not revoked is when the connection is
// gone.
func TestGrantsEndWithTheConnection(t *testing.T) {
	p := newPair(t, nodeConfig{}, nodeConfig{})
	needKeys(t, p.a.dev)
	l, _ := p.a.list(1000, 2000)
	_, err := p.ab.Grant(t.Context(), l, false)
	require.NoError(t, err)
	_, err = p.ab.Grant(t.Context(), l, true)
	require.NoError(t, err)
	require.Equal(t, 4, p.a.a.Stats().Grants)
	l.Release() // the grants have references of their own
	p.ab.Close()
	get(t, p.ab.Done())
	require.Zero(t, p.a.a.Stats().Grants)
}

// A connection knows its own grants by what they are of, not by the epoch alone.
func TestGranted(t *testing.T) {
	p := newPair(t, nodeConfig{}, nodeConfig{})
	needKeys(t, p.a.dev)
	l, _ := p.a.list(1000)
	defer l.Release()
	gs, err := p.ab.Grant(t.Context(), l, false)
	require.NoError(t, err)
	other, err := p.a.Dial(t.Context(), p.b.Addr().String())
	require.NoError(t, err)
	forged := gs[0]
	forged.Epoch = other.Epoch()
	require.True(t, p.ab.Granted(gs[0]))
	require.False(t, p.ab.Granted(forged))
	require.False(t, other.Granted(gs[0]))
	require.False(t, other.Granted(forged))
	require.NoError(t, p.ab.Revoke(t.Context(), gs))
	require.False(t, p.ab.Granted(gs[0]))
}

// TestAbandonedRead: a Read whose context ends gives its buffers back when the
// transfer is over, not before.
func TestAbandonedRead(t *testing.T) {
	p := newPair(t, nodeConfig{}, nodeConfig{})
	needKeys(t, p.b.dev)
	p.a.send(p.ab, "hello")
	p.b.expect(p.ba, "hello", nil)
	src, _ := p.b.list(1 << 20)
	grants, err := p.ba.Grant(t.Context(), src, false)
	require.NoError(t, err)
	src.Release()
	base := p.a.a.Account()
	for range 50 {
		dst, _ := p.a.list(1 << 20)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		err := p.ab.Read(ctx, dst, grants[0], 0)
		if err != nil {
			require.ErrorIs(t, err, context.Canceled)
		}
		dst.Release()
	}
	require.NoError(t, p.ba.Err())
	// A Read that is waited for comes after the abandoned ones.
	dst, _ := p.a.list(1)
	require.NoError(t, p.ab.Read(t.Context(), dst, grants[0], 0))
	dst.Release()
	p.a.idle(base.Held)
}

func TestNoScopedKeys(t *testing.T) {
	cfg := nodeConfig{Config: Config{noScopedKeys: true}}
	p := newPair(t, cfg, cfg)
	require.False(t, p.ab.CanGrant())
	l, _ := p.a.list(10)
	_, err := p.ab.Grant(t.Context(), l, false)
	require.ErrorIs(t, err, ErrNotSupported)
	l.Release()
}
