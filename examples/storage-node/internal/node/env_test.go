package node

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"path/filepath"
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
	cfg := Config{Store: e.store, Arena: e.fab.Arena, QueuePairs: e.fab.QueuePairs, Device: func() string { return device }}
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
