package messenger

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/argonaut-rdma/argonaut/buffer"
	"github.com/argonaut-rdma/argonaut/conn"
	"github.com/argonaut-rdma/argonaut/test/env"
	"github.com/argonaut-rdma/argonaut/verbs/driver"
)

// schemeDevice is the scheme of the device that tests run on.
var schemeDevice = func() string {
	if env.Device() != "" {
		return SchemeRDMA
	}
	return SchemeIWARP
}()

// carriers runs a test on each carrier: a plain stream, and RDMA by the device
// that tests run on. Where that is one of the kernel, only on the device: the
// stream is no different there.
func carriers(t *testing.T, f func(t *testing.T, scheme string)) {
	schemes := []string{SchemeTCP, schemeDevice}
	if env.Device() != "" {
		schemes = schemes[1:]
	}
	for _, scheme := range schemes {
		t.Run(scheme, func(t *testing.T) { f(t, scheme) })
	}
}

// grantors is carriers, and RDMA by a device that can not confine keys: the
// configuration is for the side that grants.
func grantors(t *testing.T, f func(t *testing.T, scheme string, grantor Config)) {
	carriers(t, func(t *testing.T, scheme string) { f(t, scheme, Config{}) })
	t.Run("frames", func(t *testing.T) {
		dev := env.Core(t, withoutKeys{env.OpenDriver(t)})
		t.Cleanup(func() { require.NoError(t, dev.Close()) })
		arena := newArena(t)
		f(t, schemeDevice, Config{
			Arena: arena,
			Transports: []Transport{{Scheme: schemeDevice, Open: func(c conn.Config) (*conn.Endpoint, error) {
				return conn.NewEndpoint(dev, arena, c)
			}}},
		})
	})
}

// withoutKeys is a device without scoped keys.
type withoutKeys struct{ driver.Device }

func (d withoutKeys) Caps() driver.Caps {
	c := d.Device.Caps()
	c.ScopedKeys, c.MWConfines = false, false
	return c
}

// anyAddr is an address of a scheme to bind to.
func anyAddr(scheme string) AddrVec { return AddrVec{{URL: scheme + "://" + env.ListenAddr()}} }

// patience bounds what tests wait for: long enough for a busy machine under the
// race detector, and never waited out by a test that passes.
const patience = 30 * time.Second

func soon(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

func newArena(t testing.TB) *buffer.Arena {
	t.Helper()
	cfg := buffer.Config{Budget: 64 << 20}
	if env.Device() != "" {
		cfg.Initial = 16 << 20 // under emulation it takes a second to register it all
	}
	a, err := buffer.New(cfg)
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, a.Close(soon(t)), "memory is still held")
	})
	return a
}

// testLog writes what a messenger logs to the test's log.
type testLog struct{ t testing.TB }

func (l testLog) Write(p []byte) (int, error) {
	l.t.Log(string(bytes.TrimSpace(p)))
	return len(p), nil
}

// newMessenger makes a messenger that has the device of the tests, and ends it
// with the test.
func newMessenger(t testing.TB, cfg Config) *Messenger {
	t.Helper()
	if cfg.Name.Type == 0 {
		cfg.Name = EntityName{Client, -1}
	}
	if cfg.Arena == nil {
		cfg.Arena = newArena(t)
	}
	if cfg.BackoffMin == 0 {
		cfg.BackoffMin, cfg.BackoffMax = 5*time.Millisecond, 50*time.Millisecond
	}
	if cfg.Logger == nil && testing.Verbose() {
		cfg.Logger = slog.New(slog.NewTextHandler(testLog{t}, nil))
	}
	if cfg.Transports == nil {
		dev := env.Open(t)
		t.Cleanup(func() { require.NoError(t, dev.Close()) })
		cfg.Transports = []Transport{{Scheme: schemeDevice, Open: func(c conn.Config) (*conn.Endpoint, error) {
			return conn.NewEndpoint(dev, cfg.Arena, c)
		}}}
	}
	if *secureAll && cfg.Auth == nil && cfg.Modes == nil {
		cfg = secured(cfg)
	}
	m, err := New(cfg)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, m.Close()) })
	return m
}

// handler is a dispatcher of func fields.
type handler struct {
	BaseDispatcher
	dispatch func(context.Context, *Message) bool
	fast     func(*Message) bool
	connect  func(*Connection)
	accept   func(*Connection)
	reset    func(*Connection)
	refused  func(*Connection)
}

func (h *handler) Dispatch(ctx context.Context, m *Message) bool {
	return h.dispatch != nil && h.dispatch(ctx, m)
}
func (h *handler) FastDispatch(m *Message) bool { return h.fast != nil && h.fast(m) }
func (h *handler) HandleConnect(c *Connection) {
	if h.connect != nil {
		h.connect(c)
	}
}
func (h *handler) HandleAccept(c *Connection) {
	if h.accept != nil {
		h.accept(c)
	}
}
func (h *handler) HandleReset(c *Connection) {
	if h.reset != nil {
		h.reset(c)
	}
}
func (h *handler) HandleRefused(c *Connection) {
	if h.refused != nil {
		h.refused(c)
	}
}

// echo answers every message with its own front, middle and data.
func echo(ctx context.Context, m *Message) bool {
	defer m.Release()
	r := NewMessage(m.Type + 1)
	r.Front = append(r.Front, m.Front...)
	r.Middle = append(r.Middle, m.Middle...)
	if m.Data != nil {
		r.Data = m.Data.Share()
	}
	if m.Reply(ctx, r) != nil {
		r.Release()
	}
	return true
}

// pair is a server and a client connected to it over loopback.
type pair struct {
	server, client *Messenger
	c              *Connection // the client's
	accepted       chan *Connection
	resets         chan *Connection // the server's
}

// newPairOf is newPair with policies.
func newPairOf(t testing.TB, scheme string, server, client Policy, sh *handler) *pair {
	t.Helper()
	p := &pair{server: newMessenger(t, Config{Name: EntityName{OSD, 0}}), client: newMessenger(t, Config{})}
	p.server.SetPolicy(Client, server)
	p.client.SetPolicy(OSD, client)
	p.server.AddDispatcher(sh)
	require.NoError(t, p.server.Bind(soon(t), anyAddr(scheme)))
	var err error
	p.c, err = p.client.ConnectTo(OSD, p.server.Addrs())
	require.NoError(t, err)
	require.NoError(t, p.c.Ready(soon(t)))
	return p
}

func newPair(t testing.TB, scheme string, scfg, ccfg Config, sh, ch *handler) *pair {
	t.Helper()
	p := &pair{accepted: make(chan *Connection, 16), resets: make(chan *Connection, 16)}
	if scfg.Name.Type == 0 {
		scfg.Name = EntityName{OSD, 0}
	}
	p.server, p.client = newMessenger(t, scfg), newMessenger(t, ccfg)
	if sh == nil {
		sh = &handler{dispatch: echo}
	}
	if sh.accept == nil {
		sh.accept = func(c *Connection) { p.accepted <- c }
	}
	if sh.reset == nil {
		sh.reset = func(c *Connection) { p.resets <- c }
	}
	p.server.AddDispatcher(sh)
	if ch != nil {
		p.client.AddDispatcher(ch)
	}
	require.NoError(t, p.server.Bind(soon(t), anyAddr(scheme)))
	var err error
	p.c, err = p.client.ConnectTo(OSD, p.server.Addrs())
	require.NoError(t, err)
	require.NoError(t, p.c.Ready(soon(t)))
	return p
}

func receiveOne[T any](t testing.TB, ch <-chan T, what string) T {
	t.Helper()
	select {
	case v := <-ch:
		return v
	case <-time.After(patience):
		t.Fatalf("no %s within %v", what, patience)
		panic("unreachable")
	}
}

// randomList is n random bytes in buffers of a, and a copy of them.
func randomList(t testing.TB, a *buffer.Arena, n int64) (*buffer.List, []byte) {
	t.Helper()
	l, err := a.GetList(soon(t), n, buffer.Anonymous)
	require.NoError(t, err)
	p := make([]byte, n)
	chacha := rand.NewChaCha8([32]byte{byte(n), byte(n >> 8)})
	chacha.Read(p)
	l.CopyFrom(p)
	return l, p
}

func bytesOf(l *buffer.List) []byte {
	p := make([]byte, l.Len())
	l.CopyTo(p)
	return p
}

// syncSlice collects from many goroutines.
type syncSlice[T any] struct {
	mu sync.Mutex
	v  []T
}

func (s *syncSlice[T]) add(v T) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.v = append(s.v, v)
}

func (s *syncSlice[T]) all() []T {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]T(nil), s.v...)
}

// newLogger collects what is logged.
func newLogger(to *syncSlice[string]) *slog.Logger {
	return slog.New(slog.NewTextHandler(logSlice{to}, nil))
}

type logSlice struct{ to *syncSlice[string] }

func (l logSlice) Write(p []byte) (int, error) {
	l.to.add(string(p))
	return len(p), nil
}

// String is for messages of failed tests, which are made when they fail.
func (s *syncSlice[T]) String() string { return fmt.Sprint(s.all()) }
