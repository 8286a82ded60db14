package conn

import (
	"bytes"
	"context"
	"crypto/rand"
	"log/slog"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/argonaut-rdma/argonaut/buffer"
	"github.com/argonaut-rdma/argonaut/test/env"
	"github.com/argonaut-rdma/argonaut/verbs"
)

// wait is longer than anything takes: a test that waits so long has failed.
const wait = 20 * time.Second

// node is an endpoint with a device and an arena of its own, and what its
// callbacks got.
type node struct {
	t   testing.TB
	dev *verbs.Device
	a   *buffer.Arena
	*Endpoint

	accepted chan *Conn
	messages chan received
	faults   chan fault
}

type received struct {
	c    *Conn
	head string
	data []byte // nil: no payload
	segs int
}

type fault struct {
	c   *Conn
	err error
}

type nodeConfig struct {
	Config
	budget       int64
	device       *verbs.Device // nil: one of its own
	huge         bool          // pages, if there are any
	failWhenFull bool          // buffer.Config's
	defaults     bool          // RecvSize and Credits as users get them, not small
}

// needKeys skips where the device has no keys to grant, or to send by rendezvous.
func needKeys(t *testing.T, d *verbs.Device) {
	t.Helper()
	env.Need(t, d.Caps().ScopedKeys, "it has no scoped keys")
}

// testLog is a logger whose lines are seen when the test fails.
func testLog(t testing.TB) *slog.Logger {
	w := new(logBuffer)
	t.Cleanup(func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		if t.Failed() && w.b.Len() > 0 {
			t.Logf("log:\n%s", w.b.Bytes())
		}
	})
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

type logBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (w *logBuffer) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.b.Write(p)
}

func (w *logBuffer) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.b.String()
}

// newNode makes a node; when the test ends, it is shut down, and must have
// given everything back.
func newNode(t testing.TB, cfg nodeConfig) *node {
	n := &node{t: t, accepted: make(chan *Conn, 100), messages: make(chan received, 10_000), faults: make(chan fault, 1000)}
	var err error
	n.dev = cfg.device
	if n.dev == nil {
		n.dev = env.Open(t)
	}
	if cfg.budget == 0 {
		cfg.budget = 32 << 20
	}
	n.a, err = buffer.New(buffer.Config{Budget: cfg.budget, NoHugePages: !cfg.huge, FailWhenFull: cfg.failWhenFull})
	require.NoError(t, err)
	if cfg.OnAccept == nil {
		cfg.OnAccept = func(c *Conn) bool { n.accepted <- c; return true }
	}
	if cfg.OnMessage == nil {
		cfg.OnMessage = n.onMessage
	}
	if cfg.OnFault == nil {
		cfg.OnFault = func(c *Conn, err error) { n.faults <- fault{c, err} }
	}
	if !cfg.defaults {
		if cfg.Credits == 0 {
			cfg.Credits = 16
		}
		if cfg.RecvSize == 0 {
			cfg.RecvSize = 16 << 10
		}
	}
	if cfg.Logger == nil {
		cfg.Logger = testLog(t)
	}
	n.Endpoint, err = NewEndpoint(n.dev, n.a, cfg.Config)
	require.NoError(t, err)
	t.Cleanup(n.end)
	return n
}

func (n *node) onMessage(c *Conn, m Message) {
	r := received{c: c, head: string(m.Head)}
	if m.Payload != nil {
		r.data = make([]byte, m.Payload.Len())
		r.segs = m.Payload.Segments()
		m.Payload.CopyTo(r.data)
		m.Payload.Release()
	}
	n.messages <- r
}

// end closes the node and checks that nothing is left.
func (n *node) end() {
	t := n.t
	require.NoError(t, n.Endpoint.Close())
	if t.Failed() {
		return // what it holds is no further news
	}
	n.clean()
	require.NoError(t, n.dev.Close())
	ctx, cancel := context.WithTimeout(context.Background(), wait)
	defer cancel()
	require.NoError(t, n.a.Close(ctx))
}

// clean checks that an endpoint that is closed has left nothing behind.
func (n *node) clean() {
	require.Empty(n.t, n.dev.Resources())
	acc := n.a.Account()
	require.Zero(n.t, acc.Posted, "%+v", n.a.Holders())
	require.Zero(n.t, acc.Held, "%+v", n.a.Holders())
	require.Equal(n.t, acc.Total, acc.Free)
	require.Zero(n.t, n.a.Stats().Grants)
}

func (n *node) listen() string {
	require.NoError(n.t, n.Listen(n.t.Context(), env.ListenAddr()))
	return n.Addr().String()
}

func get[T any](t testing.TB, ch <-chan T) T {
	t.Helper()
	select {
	case v := <-ch:
		return v
	case <-time.After(wait):
		buf := make([]byte, 1<<20)
		t.Fatalf("nothing came within %v\n%s", wait, buf[:runtime.Stack(buf, true)])
		panic("unreachable")
	}
}

// pair is two nodes and a connection, from a to b.
type pair struct {
	a, b   *node
	ab, ba *Conn
}

func newPair(t testing.TB, ca, cb nodeConfig) *pair {
	p := &pair{b: newNode(t, cb)}
	p.a = newNode(t, ca)
	addr := p.b.listen()
	ctx, cancel := context.WithTimeout(t.Context(), wait)
	defer cancel()
	var err error
	p.ab, err = p.a.Dial(ctx, addr)
	require.NoError(t, err)
	if cb.OnAccept == nil {
		p.ba = get(t, p.b.accepted)
	}
	return p
}

// list is a list of random bytes in pieces of the given sizes, and the bytes.
func (n *node) list(sizes ...int) (*buffer.List, []byte) {
	l := buffer.NewList()
	var all []byte
	for _, size := range sizes {
		b, err := n.a.Get(context.Background(), size, buffer.Anonymous)
		require.NoError(n.t, err)
		rand.Read(b.Bytes())
		all = append(all, b.Bytes()...)
		l.Append(b)
	}
	return l, all
}

func (n *node) send(c *Conn, head string, sizes ...int) []byte {
	n.t.Helper()
	var l *buffer.List
	var data []byte
	if len(sizes) > 0 {
		l, data = n.list(sizes...)
	}
	ctx, cancel := context.WithTimeout(context.Background(), wait)
	defer cancel()
	require.NoError(n.t, c.Send(ctx, Message{Head: []byte(head), Payload: l}))
	return data
}

func (n *node) expect(c *Conn, head string, data []byte) received {
	n.t.Helper()
	var r received
	select {
	case r = <-n.messages:
	default:
		select {
		case r = <-n.messages:
		case <-c.Done():
			require.NoError(n.t, c.Err(), "instead of %q", head)
		case <-time.After(wait):
			r = get(n.t, n.messages)
		}
	}
	require.Same(n.t, c, r.c)
	require.Equal(n.t, head, r.head)
	require.Equal(n.t, len(data), len(r.data))
	require.True(n.t, string(data) == string(r.data), "payload of %q differs", head)
	return r
}

// violated waits for c to end for a fault of the peer's in the protocol.
func (n *node) violated(t *testing.T, c *Conn) *FaultError {
	t.Helper()
	f := get(t, n.faults)
	require.Same(t, c, f.c)
	require.ErrorIs(t, f.err, ErrProtocol)
	var fe *FaultError
	require.ErrorAs(t, f.err, &fe)
	require.Equal(t, FaultPeer, fe.Kind)
	get(t, c.Done())
	return fe
}

// idle waits until the only references in the node's arena are those of
// connections.
func (n *node) idle(held int64) {
	n.t.Helper()
	require.Eventually(n.t, func() bool { return n.a.Account().Held == held }, wait, time.Millisecond)
}

// each runs a test over every way to receive, and with and without rendezvous.
func each(t *testing.T, f func(t *testing.T, cfg nodeConfig)) {
	ways := map[string]Config{
		"default":         {},
		"rendezvous":      {EagerMax: 16 << 10},
		"eager":           {Rendezvous: -1},
		"own queues":      {noSRQ: true, EagerMax: 16 << 10},
		"no scoped keys":  {noScopedKeys: true},
		"no copies":       {CopyBreak: -1, EagerMax: 16 << 10},
		"always fetched":  {EagerMax: -1, CopyBreak: -1},
		"mixed":           {EagerMax: 100_000},
		"small and short": {EagerMax: 4 << 10, Credits: 8, SendDepth: 8, OpDepth: 4, RecvSize: 4 << 10, Rendezvous: 1},
	}
	if env.Device() != "" {
		// Without keys nothing is ever fetched: these are then the same as others.
		for _, name := range []string{"rendezvous", "eager", "no scoped keys", "always fetched", "mixed"} {
			delete(ways, name)
		}
		if testing.Short() { // under emulation: what differs to the device
			delete(ways, "no copies")
			delete(ways, "small and short")
		}
	}
	for name, cfg := range ways {
		t.Run(name, func(t *testing.T) { f(t, nodeConfig{Config: cfg}) })
	}
}
