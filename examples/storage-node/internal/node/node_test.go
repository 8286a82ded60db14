package node

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/argonaut-rdma/argonaut/buffer"
	"github.com/argonaut-rdma/argonaut/examples/storage-node/internal/fabric"
	"github.com/argonaut-rdma/argonaut/examples/storage-node/internal/store"
	"github.com/argonaut-rdma/argonaut/examples/storage-node/internal/wire"
	"github.com/argonaut-rdma/argonaut/messenger"
	testenv "github.com/argonaut-rdma/argonaut/test/env"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m,
		goleak.IgnoreAnyFunction("github.com/panjf2000/ants/v2.(*poolCommon).purgeStaleWorkers"),
		goleak.IgnoreAnyFunction("github.com/panjf2000/ants/v2.(*poolCommon).ticktock"))
}

// adapter is the device that the tests run on: the one in software, or the RDMA device that the environment names.
var adapter = func() string {
	if d := testenv.Device(); d != "" {
		return d
	}
	return fabric.DeviceIWARP
}()

// env is a node in this process and connections to it that say what they like.
type env struct {
	t     *testing.T
	dir   string
	store *store.Store
	node  *Node
	fab   *fabric.Fabric
}

func newEnv(t *testing.T, device string, change func(*Config)) *env {
	t.Helper()
	e := &env{t: t, dir: t.TempDir()}
	var err error
	e.store, err = store.Open(store.Config{Dir: e.dir})
	require.NoError(t, err)
	choice := fabric.Choose(device, testenv.ListenAddr(), true)
	e.fab, err = fabric.Open(fabric.Config{Name: messenger.EntityName{Type: messenger.OSD, Num: 0}, Choice: choice, Arena: 16 << 20})
	require.NoError(t, err)
	cfg := Config{Store: e.store, Arena: e.fab.Arena, QueuePairs: e.fab.QueuePairs, Device: device}
	if change != nil {
		change(&cfg)
	}
	e.node = New(cfg)
	e.fab.Messenger.AddDispatcher(e.node)
	addrs, err := choice.ParseAddrs(testenv.ListenAddr())
	require.NoError(t, err)
	require.NoError(t, e.fab.Messenger.Bind(context.Background(), addrs))
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		e.node.Stop()
		nothing := func(string) {}
		require.NoError(t, e.fab.CloseMessenger(ctx, nothing))
		require.NoError(t, e.node.Close(ctx))
		require.NoError(t, e.fab.Close(ctx, nothing))
		require.NoError(t, e.store.Close())
	})
	return e
}

// conn is a connection to the node.
type conn struct {
	t    *testing.T
	fab  *fabric.Fabric
	conn *messenger.Connection
}

func (e *env) connect(device string) *conn {
	e.t.Helper()
	fab, err := fabric.Open(fabric.Config{Name: messenger.EntityName{Type: messenger.Client, Num: -1}, Choice: fabric.Choose(device, "", false), Arena: 16 << 20})
	require.NoError(e.t, err)
	e.t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		require.NoError(e.t, fab.Close(ctx, func(string) {}))
	})
	c, err := fab.Messenger.ConnectTo(messenger.OSD, e.fab.Messenger.Addrs())
	require.NoError(e.t, err)
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	require.NoError(e.t, c.Ready(ctx))
	return &conn{e.t, fab, c}
}

// raw sends a front and returns the answer's, and its data.
func (c *conn) raw(kind uint16, front []byte, data []byte) ([]byte, []byte, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	m := messenger.NewMessage(kind)
	m.Front = append(m.Front, front...)
	if data != nil {
		m.Data = &buffer.List{}
		if err := m.Data.AppendCopy(ctx, c.fab.Arena, buffer.Anonymous, data); err != nil {
			return nil, nil, err
		}
	}
	r, err := c.conn.Call(ctx, m)
	if err != nil {
		m.Release()
		return nil, nil, err
	}
	defer r.Release()
	var back []byte
	if r.Data != nil {
		back = make([]byte, r.Data.Len())
		r.Data.CopyTo(back)
	}
	return bytes.Clone(r.Front), back, nil
}

type decoder interface{ Decode([]byte) error }

// ask sends req and decodes the answer into reply, where there is one. It returns the status as an error.
func (c *conn) ask(kind uint16, req appender, reply decoder) error {
	front, _, err := c.raw(kind, req.Append(nil), nil)
	if err != nil {
		return err
	}
	s, _, err := wire.DecodeReply(front)
	if err != nil {
		return err
	}
	if s != wire.StatusOK {
		return s
	}
	if reply != nil {
		return reply.Decode(front)
	}
	return nil
}

// begin begins a PUT of a size.
func (c *conn) begin(key string, size int64) uint64 {
	c.t.Helper()
	var r wire.PutReply
	require.NoError(c.t, c.ask(wire.TypePut, &wire.PutRequest{Key: key, Size: size}, &r))
	return r.Transfer
}

// beginGet begins a GET.
func (c *conn) beginGet(key string) uint64 {
	c.t.Helper()
	var r wire.GetReply
	require.NoError(c.t, c.ask(wire.TypeGet, &wire.GetRequest{Key: key, Length: -1}, &r))
	require.False(c.t, r.Eager)
	return r.Transfer
}

// grant makes a buffer with a copy of p, granted to the node until the test ends.
func (c *conn) grant(p []byte, write bool) ([]messenger.Grant, *buffer.List) {
	c.t.Helper()
	ctx := context.Background()
	l := &buffer.List{}
	require.NoError(c.t, l.AppendCopy(ctx, c.fab.Arena, buffer.Anonymous, p))
	gs, err := c.conn.Grant(ctx, l, write)
	require.NoError(c.t, err)
	c.t.Cleanup(func() {
		_ = c.conn.Revoke(ctx, gs) // the connection may have ended, and the grant with it
		l.Release()
	})
	return gs, l
}

func sums(p []byte) []uint32 {
	var s []uint32
	for len(p) > 0 {
		n := min(len(p), store.ChunkSize)
		s = append(s, store.Checksum(p[:n]))
		p = p[n:]
	}
	return s
}

func (c *conn) window(transfer uint64, off int64, p []byte) *wire.PutWindow {
	c.t.Helper()
	gs, _ := c.grant(p, false)
	return &wire.PutWindow{Transfer: transfer, Offset: off, Length: uint32(len(p)), Sums: sums(p), Grants: gs}
}

func random(n int) []byte {
	p := make([]byte, n)
	r := rand.NewChaCha8([32]byte{byte(n), 3})
	r.Read(p)
	return p
}

func (c *conn) put(key string, p []byte) {
	c.t.Helper()
	id := c.begin(key, int64(len(p)))
	for off := 0; off < len(p); off += wire.MaxWindow {
		end := min(off+wire.MaxWindow, len(p))
		require.NoError(c.t, c.ask(wire.TypePutWindow, c.window(id, int64(off), p[off:end]), nil))
	}
	var r wire.InfoReply
	require.NoError(c.t, c.ask(wire.TypePutCommit, &wire.PutCommit{Transfer: id, Size: int64(len(p))}, &r))
	require.EqualValues(c.t, len(p), r.Info.Size)
}

// holders prints who holds what of an arena, when it is printed.
type holders struct{ a *buffer.Arena }

func (h holders) String() string { return fmt.Sprint(h.a.Holders()) }

// clean waits until the node has no transfers and holds nothing, and checks that it has so many blob files.
func (e *env) clean(blobs int) {
	e.t.Helper()
	var r wire.NodeReply
	require.Eventually(e.t, func() bool {
		var err error
		r, err = e.node.Report()
		require.NoError(e.t, err)
		return r.Transfers == 0 && r.Held == 0
	}, 10*time.Second, time.Millisecond, "%+v %v", &r, holders{e.fab.Arena})
	files, err := filepath.Glob(filepath.Join(e.dir, "blobs", "*", "*"))
	require.NoError(e.t, err)
	require.Len(e.t, files, blobs)
}

func eachDevice(t *testing.T, f func(t *testing.T, device string)) {
	for _, device := range []string{adapter, fabric.DeviceTCP} {
		t.Run(device, func(t *testing.T) { f(t, device) })
	}
}

// Windows may come in any order; they are written in that of the object.
func TestWindowsOutOfOrder(t *testing.T) {
	eachDevice(t, func(t *testing.T, device string) {
		e := newEnv(t, device, nil)
		c := e.connect(device)
		p := random(3*wire.MaxWindow + 777)
		id := c.begin("k", -1)
		var wg sync.WaitGroup
		var windows []*wire.PutWindow
		for off := 0; off < len(p); off += wire.MaxWindow {
			windows = append(windows, c.window(id, int64(off), p[off:min(off+wire.MaxWindow, len(p))]))
		}
		errs := make([]error, len(windows))
		for i := len(windows) - 1; i > 0; i-- {
			wg.Go(func() { errs[i] = c.ask(wire.TypePutWindow, windows[i], nil) })
		}
		errs[0] = c.ask(wire.TypePutWindow, windows[0], nil)
		wg.Wait()
		require.NoError(t, errors.Join(errs...))
		require.NoError(t, c.ask(wire.TypePutCommit, &wire.PutCommit{Transfer: id, Size: int64(len(p))}, nil))
		o, err := e.store.Open("k")
		require.NoError(t, err)
		defer o.Close()
		got := make([]byte, len(p))
		_, err = o.ReadAt([][]byte{got}, 0, nil)
		require.NoError(t, err)
		require.True(t, bytes.Equal(p, got))
		e.clean(1)
	})
}

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

// More windows than the terms allow are refused, and the transfer is none the worse.
func TestTooManyWindows(t *testing.T) {
	e := newEnv(t, adapter, nil)
	c := e.connect(adapter)
	p := random(store.ChunkSize)
	id := c.begin("k", -1)
	var wg sync.WaitGroup
	statuses := make(chan error, 100)
	// All but the first are in nobody's way yet: they wait for it. One more than the queue holds is taken out of it.
	for i := 1; i <= 40; i++ {
		w := c.window(id, int64(i)*store.ChunkSize, p)
		wg.Go(func() { statuses <- c.ask(wire.TypePutWindow, w, nil) })
	}
	wg.Go(func() {
		require.NoError(t, c.ask(wire.TypeEnd, &wire.EndRequest{Transfer: id}, nil))
	})
	wg.Wait()
	close(statuses)
	for err := range statuses {
		require.True(t, errors.Is(err, wire.StatusBusy) || errors.Is(err, wire.StatusNoTransfer), "%v", err)
	}
	e.clean(0)
}

// A client can neither read through what it made up nor beyond what it began.
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

// Every range of a small object and many of a larger one come back right, eager or not, with the right checksums.
func TestRangeChecksums(t *testing.T) {
	e := newEnv(t, fabric.DeviceTCP, nil)
	c := e.connect(fabric.DeviceTCP)
	p := random(3*store.ChunkSize + 1000)
	c.put("k", p)
	r := rand.New(rand.NewPCG(1, 1))
	edges := []int64{0, 1, store.ChunkSize - 1, store.ChunkSize, store.ChunkSize + 1, 2 * store.ChunkSize, int64(len(p)) - 1}
	for range 300 {
		from, n := edges[r.IntN(len(edges))], r.Int64N(wire.MaxEager+1)
		front, data, err := c.raw(wire.TypeGet, (&wire.GetRequest{Key: "k", Offset: from, Length: n}).Append(nil), nil)
		require.NoError(t, err)
		var reply wire.GetReply
		require.NoError(t, reply.Decode(front))
		require.True(t, reply.Eager)
		want := p[from:min(from+n, int64(len(p)))]
		require.True(t, bytes.Equal(want, data), "%d bytes at %d", n, from)
		var wantSums []uint32
		for off, rest := from, want; len(rest) > 0; {
			k := min(int64(len(rest)), store.ChunkSize-off%store.ChunkSize)
			wantSums = append(wantSums, store.Checksum(rest[:k]))
			off, rest = off+k, rest[k:]
		}
		require.Equal(t, wantSums, reply.Sums, "%d bytes at %d", n, from)
	}
	e.clean(1)
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

// A client that begins and then says nothing does not keep its transfer.
func TestIdle(t *testing.T) {
	e := newEnv(t, adapter, func(c *Config) { c.TransferIdle = 20 * time.Millisecond })
	c := e.connect(adapter)
	id := c.begin("k", 1<<20)
	e.clean(0)
	require.ErrorIs(t, c.ask(wire.TypePutCommit, &wire.PutCommit{Transfer: id}, nil), wire.StatusNoTransfer)
}

func TestTransferLimit(t *testing.T) {
	e := newEnv(t, adapter, func(c *Config) { c.MaxTransfers = 2 })
	c := e.connect(adapter)
	first := c.begin("a", -1)
	c.begin("b", -1)
	require.ErrorIs(t, c.ask(wire.TypePut, &wire.PutRequest{Key: "c", Size: -1}, nil), wire.StatusBusy)
	require.NoError(t, c.ask(wire.TypeEnd, &wire.EndRequest{Transfer: first}, nil))
	require.Eventually(t, func() bool { r, _ := e.node.Report(); return r.Transfers == 1 }, 10*time.Second, time.Millisecond)
	c.begin("c", -1)
	require.Equal(t, 2, e.node.Stop())
	require.ErrorIs(t, c.ask(wire.TypePut, &wire.PutRequest{Key: "d", Size: -1}, nil), wire.StatusShuttingDown)
	require.NoError(t, e.node.Drain(context.Background()))
	e.clean(0)
}

// More transfers at a time than there is memory for: they wait for each other and all come through.
func TestLittleMemory(t *testing.T) {
	eachDevice(t, func(t *testing.T, device string) {
		e := newEnv(t, device, func(c *Config) { c.TransferBytes = 2 * wire.MaxWindow })
		p := random(3*wire.MaxWindow + 5)
		var wg sync.WaitGroup
		for i := range 6 {
			c := e.connect(device)
			wg.Go(func() {
				key := fmt.Sprint(i)
				c.put(key, p)
				id := c.beginGet(key)
				gs, l := c.grant(make([]byte, wire.MaxWindow), true)
				require.NoError(t, c.ask(wire.TypeGetWindow, &wire.GetWindow{Transfer: id, Offset: wire.MaxWindow, Length: wire.MaxWindow, Grants: gs}, nil))
				require.NoError(t, c.conn.Revoke(context.Background(), gs))
				got := make([]byte, wire.MaxWindow)
				l.CopyTo(got)
				require.True(t, bytes.Equal(p[wire.MaxWindow:2*wire.MaxWindow], got))
				require.NoError(t, c.ask(wire.TypeEnd, &wire.EndRequest{Transfer: id}, nil))
			})
		}
		wg.Wait()
		e.clean(6)
	})
}

// The client goes while its PUT is under way: its transfer ends, the blob goes.
func TestClientGone(t *testing.T) {
	eachDevice(t, func(t *testing.T, device string) {
		e := newEnv(t, device, nil)
		c := e.connect(device)
		id := c.begin("k", -1)
		require.NoError(t, c.ask(wire.TypePutWindow, c.window(id, 0, random(store.ChunkSize)), nil))
		r, err := e.node.Report()
		require.NoError(t, err)
		require.EqualValues(t, 1, r.Transfers)
		c.conn.MarkDown()
		e.clean(0)
		require.Eventually(t, func() bool { r, _ := e.node.Report(); return r.Connections == 0 && r.QueuePairs == 0 }, 10*time.Second, time.Millisecond)
	})
}
