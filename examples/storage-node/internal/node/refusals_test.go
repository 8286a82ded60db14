package node

import (
	"bytes"
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/argonaut-rdma/argonaut/examples/storage-node/internal/fabric"
	"github.com/argonaut-rdma/argonaut/examples/storage-node/internal/store"
	"github.com/argonaut-rdma/argonaut/examples/storage-node/internal/wire"
	"github.com/argonaut-rdma/argonaut/messenger"
)

// What a client must not do in a PUT ends that PUT and leaves nothing of it.
func TestBadPuts(t *testing.T) {
	eachDevice(t, func(t *testing.T, device string) {
		e := newEnv(t, device, nil)
		c := e.connect(device)
		p := random(2 * store.ChunkSize)
		for name, bad := range map[string]struct {
			do   func(id uint64) error
			want wire.Status
		}{
			"checksum": {func(id uint64) error {
				w := c.window(id, 0, p)
				w.Sums[1]++
				return c.ask(wire.TypePutWindow, w, nil)
			}, wire.StatusChecksum},
			"no checksums": {func(id uint64) error {
				w := c.window(id, 0, p)
				w.Sums = nil
				return c.ask(wire.TypePutWindow, w, nil)
			}, wire.StatusChecksum},
			"twice": {func(id uint64) error {
				require.NoError(t, c.ask(wire.TypePutWindow, c.window(id, 0, p), nil))
				return c.ask(wire.TypePutWindow, c.window(id, 0, p), nil)
			}, wire.StatusBadRequest},
			"behind a partial chunk": {func(id uint64) error {
				require.NoError(t, c.ask(wire.TypePutWindow, c.window(id, 0, p[:10]), nil))
				return c.ask(wire.TypePutWindow, c.window(id, 10, p), nil)
			}, wire.StatusSize},
			"more than announced": {func(id uint64) error {
				require.NoError(t, c.ask(wire.TypePutWindow, c.window(id, 0, p), nil))
				return c.ask(wire.TypePutWindow, c.window(id, int64(len(p)), p), nil)
			}, wire.StatusSize},
			"commit too early": {func(id uint64) error {
				require.NoError(t, c.ask(wire.TypePutWindow, c.window(id, 0, p[:10]), nil))
				return c.ask(wire.TypePutCommit, &wire.PutCommit{Transfer: id, Size: 10}, nil)
			}, wire.StatusSize},
			"commit of another size": {func(id uint64) error {
				return c.ask(wire.TypePutCommit, &wire.PutCommit{Transfer: id, Size: 10}, nil)
			}, wire.StatusSize},
			"read it": {func(id uint64) error {
				gs, _ := c.grant(p, true)
				err := c.ask(wire.TypeGetWindow, &wire.GetWindow{Transfer: id, Length: 10, Grants: gs}, nil)
				require.NoError(t, c.ask(wire.TypeEnd, &wire.EndRequest{Transfer: id}, nil))
				return err
			}, wire.StatusBadRequest},
		} {
			id := c.begin("k", int64(len(p)))
			require.ErrorIs(t, bad.do(id), bad.want, name)
			e.clean(0)
			require.ErrorIs(t, c.ask(wire.TypePutWindow, c.window(id, 0, p), nil), wire.StatusNoTransfer, name)
			require.ErrorIs(t, c.ask(wire.TypePutCommit, &wire.PutCommit{Transfer: id}, nil), wire.StatusNoTransfer, name)
		}
		c.put("k", p)
		e.clean(1)
	})
}

func TestBadGets(t *testing.T) {
	eachDevice(t, func(t *testing.T, device string) {
		e := newEnv(t, device, nil)
		c := e.connect(device)
		p := random(5*store.ChunkSize + 123)
		c.put("k", p)
		gs, l := c.grant(make([]byte, 4*store.ChunkSize), true)
		for name, w := range map[string]wire.GetWindow{
			"behind the end":  {Offset: 5 * store.ChunkSize, Length: 124},
			"far behind":      {Offset: 1 << 62, Length: 1},
			"cut front":       {Offset: 1, Length: store.ChunkSize - 1},
			"cut back":        {Offset: 0, Length: store.ChunkSize - 1},
			"ends in a chunk": {Offset: store.ChunkSize, Length: 1},
		} {
			id := c.beginGet("k")
			w.Transfer, w.Grants = id, gs
			err := c.ask(wire.TypeGetWindow, &w, nil)
			require.True(t, errors.Is(err, wire.StatusRange) || errors.Is(err, wire.StatusBadRequest), "%s: %v", name, err)
			e.clean(1)
			require.ErrorIs(t, c.ask(wire.TypeEnd, &wire.EndRequest{Transfer: id}, nil), wire.StatusNoTransfer, name)
		}
		id := c.beginGet("k")
		var r wire.GetWindowReply
		require.NoError(t, c.ask(wire.TypeGetWindow, &wire.GetWindow{Transfer: id, Offset: store.ChunkSize, Length: 2 * store.ChunkSize, Grants: gs}, &r))
		require.Equal(t, sums(p[store.ChunkSize:3*store.ChunkSize]), r.Sums)
		require.NoError(t, c.conn.Revoke(context.Background(), gs))
		got := make([]byte, 2*store.ChunkSize)
		l.CopyTo(got)
		require.True(t, bytes.Equal(p[store.ChunkSize:3*store.ChunkSize], got))

		other := e.connect(device)
		require.ErrorIs(t, other.ask(wire.TypeEnd, &wire.EndRequest{Transfer: id}, nil), wire.StatusNoTransfer, "another connection's transfer")
		require.NoError(t, c.ask(wire.TypeEnd, &wire.EndRequest{Transfer: id}, nil))
		e.clean(1)
	})
}

// Grants that nobody made: whatever becomes of the connection, the node gives back what it took and serves others.
func TestForgedGrants(t *testing.T) {
	eachDevice(t, func(t *testing.T, device string) {
		e := newEnv(t, device, nil)
		good := e.connect(device)
		p := random(store.ChunkSize + 5)
		good.put("k", p)
		for _, forge := range []func(g *messenger.Grant){
			func(g *messenger.Grant) { g.RKey ^= 0x5a5a00 },
			func(g *messenger.Grant) { g.Addr += 1 << 30 },
			func(g *messenger.Grant) { g.Epoch++ },
			func(g *messenger.Grant) { g.Write = !g.Write },
			func(g *messenger.Grant) { *g = messenger.Grant{Addr: 0xdead0000, Len: g.Len, Write: g.Write} },
		} {
			for _, get := range []bool{false, true} {
				c := e.connect(device)
				var err error
				if get {
					id := c.beginGet("k")
					gs, l := c.grant(make([]byte, store.ChunkSize), true)
					forge(&gs[0])
					err = c.ask(wire.TypeGetWindow, &wire.GetWindow{Transfer: id, Length: store.ChunkSize, Grants: gs}, nil)
					if device == fabric.DeviceTCP && err == nil {
						// The stream drops what it finds no grant for: the transfer goes on.
						require.NoError(t, c.ask(wire.TypeEnd, &wire.EndRequest{Transfer: id}, nil))
						err = errors.New("nothing came")
					}
					require.Equal(t, make([]byte, store.ChunkSize), l.At(0).Bytes(), "nothing lands")
				} else {
					w := c.window(c.begin("never", -1), 0, p)
					forge(&w.Grants[0])
					err = c.ask(wire.TypePutWindow, w, nil)
				}
				require.Error(t, err)
				e.clean(1)
				c.conn.MarkDown() // not every device ends it over that, and the node has room for few
			}
		}
		require.NoError(t, good.ask(wire.TypeStat, &wire.KeyRequest{Key: "k"}, nil))
	})
}

// A front that is no message of the protocol is refused, whatever type it has.
func TestGarbageFronts(t *testing.T) {
	e := newEnv(t, adapter, nil)
	c := e.connect(adapter)
	for kind := wire.TypePut; kind < wire.TypeReply; kind++ {
		for _, front := range [][]byte{{}, {wire.Version}, {wire.Version + 1}, bytes.Repeat([]byte{0xff}, 100), append([]byte{wire.Version}, random(500)...)} {
			if kind == wire.TypeNode && len(front) == 1 && front[0] == wire.Version {
				continue // all there is to it
			}
			answer, _, err := c.raw(kind, front, nil)
			require.NoError(t, err)
			s, _, err := wire.DecodeReply(answer)
			require.NoError(t, err)
			if len(front) > 0 && front[0] != wire.Version {
				require.Equal(t, wire.StatusVersion, s, "type %#x", kind)
			} else {
				require.Equal(t, wire.StatusBadRequest, s, "type %#x, %d bytes", kind, len(front))
			}
		}
	}
	answer, _, err := c.raw(0x7fff, []byte("?"), nil)
	require.NoError(t, err)
	s, _, err := wire.DecodeReply(answer)
	require.NoError(t, err)
	require.Equal(t, wire.StatusBadRequest, s)

	// Eager data that is not what it is said to be.
	for _, bad := range []struct {
		req  wire.PutRequest
		data []byte
		want wire.Status
	}{
		{wire.PutRequest{Key: "k", Size: 3, Eager: true, Sums: sums([]byte("abc"))}, []byte("abd"), wire.StatusChecksum},
		{wire.PutRequest{Key: "k", Size: 3, Eager: true}, []byte("abc"), wire.StatusChecksum},
		{wire.PutRequest{Key: "k", Size: 4, Eager: true, Sums: sums([]byte("abc"))}, []byte("abc"), wire.StatusSize},
		{wire.PutRequest{Key: "k", Size: 1, Eager: true}, nil, wire.StatusSize},
		{wire.PutRequest{Key: "k", Size: -1, Eager: true, Sums: sums(random(wire.MaxEager + 1))}, random(wire.MaxEager + 1), wire.StatusBadRequest},
		{wire.PutRequest{Key: "", Size: 0, Eager: true}, nil, wire.StatusBadKey},
	} {
		answer, _, err := c.raw(wire.TypePut, bad.req.Append(nil), bad.data)
		require.NoError(t, err)
		s, words, err := wire.DecodeReply(answer)
		require.NoError(t, err)
		require.Equal(t, bad.want, s, "%+v: %s", bad.req, words)
	}
	e.clean(0)
}
