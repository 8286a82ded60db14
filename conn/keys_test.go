package conn

import (
	"bytes"
	"context"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/argonaut-rdma/argonaut/buffer"
	"github.com/argonaut-rdma/argonaut/test/env"
	"github.com/argonaut-rdma/argonaut/verbs"
	"github.com/argonaut-rdma/argonaut/verbs/driver"
	"github.com/argonaut-rdma/argonaut/verbs/iwarp"
	"github.com/argonaut-rdma/argonaut/verbs/verbstest"
)

// without opens a device that lacks what f takes away.
func without(t *testing.T, f func(*driver.Caps)) *verbs.Device {
	t.Helper()
	return env.Core(t, verbstest.NewFaulty(env.OpenDriver(t), &verbstest.Script{Caps: f}))
}

func noScopedKeys(c *driver.Caps) { c.ScopedKeys = false }

func noKeys(c *driver.Caps) { c.ScopedKeys, c.MWConfines = false, false }

// windows opens a device whose grants are windows.
func windows(t *testing.T) *verbs.Device {
	t.Helper()
	d := without(t, noScopedKeys)
	if !d.Caps().MWConfines {
		require.NoError(t, d.Close())
		env.Need(t, false, "its windows do not confine, or it has none")
	}
	return d
}

// Where there are no scoped keys, but windows that confine, these give access:
// payload goes by rendezvous, and what is granted can be read and written, and
// withdrawn.
func TestWindows(t *testing.T) {
	cfg := Config{EagerMax: 16 << 10}
	p := newPair(t, nodeConfig{Config: cfg, device: windows(t)}, nodeConfig{Config: cfg, device: windows(t)})
	require.True(t, p.ab.CanGrant())
	for range 20 {
		data := p.a.send(p.ab, "fetch this", 100_000, 50_000, 3)
		p.b.expect(p.ba, "fetch this", data)
	}
	require.Eventually(t, func() bool { return p.ab.Stats().RendezvousSent == 20 }, wait, time.Millisecond)
	require.Eventually(t, func() bool { return p.a.a.Stats().Grants == 0 }, wait, time.Millisecond)

	ctx, cancel := context.WithTimeout(t.Context(), wait)
	defer cancel()
	src, data := p.b.list(100_000, 300)
	grants, err := p.ba.Grant(ctx, src, false)
	require.NoError(t, err)
	dst, _ := p.a.list(40_000)
	require.NoError(t, p.ab.Read(ctx, dst, grants[0], 5000))
	require.True(t, bytes.Equal(data[5000:45_000], bytesOf(dst)))
	out, before := p.b.list(1000)
	w, err := p.ba.Grant(ctx, out, true)
	require.NoError(t, err)
	what, _ := p.a.list(300)
	require.NoError(t, p.ab.Write(ctx, w[0], 100, what))
	p.a.send(p.ab, "written")
	p.b.expect(p.ba, "written", nil)
	copy(before[100:], bytesOf(what))
	require.True(t, bytes.Equal(before, bytesOf(out)))

	// More than can be bound at a time: one after the other, or not at all.
	many := make([]int, bindDepth)
	for i := range many {
		many[i] = 100
	}
	lots, _ := p.b.list(many...)
	var gs []Grant
	for range 3 {
		g, err := p.ba.Grant(ctx, lots, false)
		require.NoError(t, err)
		gs = append(gs, g...)
	}
	more, _ := p.b.list(100)
	lots.AppendList(more)
	_, err = p.ba.Grant(ctx, lots, false)
	require.ErrorIs(t, err, verbs.ErrLimit)
	require.NoError(t, p.ba.Revoke(ctx, gs))
	require.NoError(t, p.ba.Err())

	require.NoError(t, p.ba.Revoke(ctx, append(grants, w...)))
	require.Zero(t, p.b.a.Stats().Grants)
	require.Zero(t, count(p.b, verbs.KindMW))
	now := bytesOf(out)
	if p.ab.Write(ctx, w[0], 0, what) == nil {
		get(t, p.a.faults)
	}
	get(t, p.ab.Done())
	get(t, p.ba.Done())
	require.True(t, bytes.Equal(now, bytesOf(out)))
	for _, l := range []*buffer.List{src, dst, out, what, lots} {
		l.Release()
	}
}

// count is how many objects of a kind live on the node's device.
func count(n *node, k verbs.Kind) (live int) {
	for _, r := range n.dev.Resources() {
		if r.Kind == k {
			live++
		}
	}
	return live
}

// A device that runs out of windows sends payload eagerly, and says so to who
// asks for a grant.
func TestWindowsRunOut(t *testing.T) {
	env.UserSpace(t, "the limit is the adapter's")
	open := func() *verbs.Device {
		d, err := iwarp.OpenDriver(iwarp.Config{MaxMW: 3})
		require.NoError(t, err)
		return env.Core(t, verbstest.NewFaulty(d, &verbstest.Script{Caps: noScopedKeys}))
	}
	cfg := Config{EagerMax: 16 << 10}
	p := newPair(t, nodeConfig{Config: cfg, device: open()}, nodeConfig{Config: cfg, device: open()})
	for range 5 {
		data := p.a.send(p.ab, "three", 30_000, 30_000, 30_000)
		p.b.expect(p.ba, "three", data)
		data = p.a.send(p.ab, "four", 30_000, 30_000, 30_000, 30_000)
		p.b.expect(p.ba, "four", data)
	}
	require.NoError(t, p.ab.Err())
	l, _ := p.b.list(1, 1, 1, 1)
	_, err := p.ba.Grant(t.Context(), l, false)
	require.ErrorIs(t, err, verbs.ErrLimit)
	require.Zero(t, p.b.a.Stats().Grants)
	l.Release()
}

// What is granted by windows is withdrawn with the connection, bound or not.
func TestWindowsEndWithTheConnection(t *testing.T) {
	cfg := Config{EagerMax: 16 << 10}
	parked := cfg
	parked.Admit = func(*Conn, []byte, int64) bool { return false }
	for range 3 {
		p := newPair(t, nodeConfig{Config: cfg, device: windows(t)}, nodeConfig{Config: parked, device: windows(t)})
		l, _ := p.a.list(1000, 2000)
		_, err := p.ab.Grant(t.Context(), l, true)
		require.NoError(t, err)
		l.Release()
		p.a.send(p.ab, "never fetched", 100_000)
		p.ab.Close()
		get(t, p.ab.Done())
		require.Zero(t, p.a.a.Stats().Grants)
		require.Zero(t, count(p.a, verbs.KindMW))
	}
}

// A grant for one transfer ends with it, whoever gave it does not have to.
func TestGrantOnce(t *testing.T) {
	for name, open := range map[string]func(*testing.T) *verbs.Device{
		"scoped keys": func(t *testing.T) *verbs.Device { return env.Open(t) },
		"windows":     windows,
	} {
		t.Run(name, func(t *testing.T) {
			p := newPair(t, nodeConfig{device: open(t)}, nodeConfig{device: open(t)})
			if name == "scoped keys" {
				needKeys(t, p.a.dev)
			}
			env.Need(t, p.a.dev.Caps().SendInv, "it has no send with invalidate")
			ctx, cancel := context.WithTimeout(t.Context(), wait)
			defer cancel()
			p.a.send(p.ab, "hello")
			p.b.expect(p.ba, "hello", nil)
			used := make(chan Grant, 100)
			for range 20 {
				src, data := p.b.list(100_000, 70_000)
				gs, err := p.ba.GrantOnce(ctx, src, false, func(g Grant) { used <- g })
				require.NoError(t, err)
				src.Release() // the grants have it
				dst, _ := p.a.list(100_000)
				require.NoError(t, p.ab.Read(ctx, dst, gs[0], 0))
				require.True(t, bytes.Equal(data[:100_000], bytesOf(dst)))
				require.Equal(t, gs[0], get(t, used))
				require.Equal(t, 1, p.b.a.Stats().Grants)
				dst.Truncate(70_000)
				require.NoError(t, p.ab.Read(ctx, dst, gs[1], 0))
				require.Equal(t, gs[1], get(t, used))
				require.Zero(t, p.b.a.Stats().Grants)
				p.b.idle(0)
				require.NoError(t, p.ba.Revoke(ctx, gs), "nothing is left to revoke")

				sink, _ := p.b.list(70_000)
				gs, err = p.ba.GrantOnce(ctx, sink, true, func(g Grant) { used <- g })
				require.NoError(t, err)
				require.NoError(t, p.ab.Write(ctx, gs[0], 0, dst))
				require.Equal(t, gs[0], get(t, used))
				require.True(t, bytes.Equal(bytesOf(dst), bytesOf(sink)), "the data comes before its end")
				sink.Release()
				dst.Release()
			}
			// One that is not used is revoked as any other, and tells nobody.
			src, _ := p.b.list(10)
			gs, err := p.ba.GrantOnce(ctx, src, false, func(g Grant) { used <- g })
			require.NoError(t, err)
			require.NoError(t, p.ba.Revoke(ctx, gs))
			require.Zero(t, p.b.a.Stats().Grants)
			require.Empty(t, used)
			src.Release()
			require.NoError(t, p.ba.Err())
		})
	}
}

// exposed makes nodes on a device that can not confine, with memory for payload
// that all of the fabric may touch.
func exposed(t *testing.T, caps func(*driver.Caps), cfg Config) nodeConfig {
	t.Helper()
	x, err := buffer.New(buffer.Config{Budget: 16 << 20, TrustFabric: true, NoHugePages: true})
	require.NoError(t, err)
	t.Cleanup(func() { // after the node's end
		ctx, cancel := context.WithTimeout(context.Background(), wait)
		defer cancel()
		require.NoError(t, x.Close(ctx))
	})
	cfg.Exposed = x
	return nodeConfig{Config: cfg, device: without(t, caps)}
}

// xlist is a list of exposed memory.
func (n *node) xlist(size int64) (*buffer.List, []byte) {
	n.t.Helper()
	l, err := n.cfg.Exposed.GetList(context.Background(), size, buffer.Anonymous)
	require.NoError(n.t, err)
	data := make([]byte, size)
	for i := range data {
		data[i] = byte(i * 31)
	}
	l.CopyFrom(data)
	return l, data
}

// On a trusted fabric, payload of exposed memory goes by rendezvous where keys do
// not confine; other payload does not, and no other memory has remote rights.
func TestExposed(t *testing.T) {
	for name, caps := range map[string]func(*driver.Caps){
		"no keys": noKeys,
		"sinks of READs are remotely writable": func(c *driver.Caps) {
			noKeys(c)
			c.ReadSinkNeedsRemoteWrite = true
		},
		"deregistration is no barrier": func(c *driver.Caps) {
			noKeys(c)
			c.DeregBarrier = false
		},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := Config{EagerMax: 16 << 10}
			p := newPair(t, exposed(t, caps, cfg), exposed(t, caps, cfg))
			require.False(t, p.ab.CanGrant(), "not any memory")
			wide := 0
			for _, r := range p.a.dev.Resources() {
				if r.Kind == verbs.KindMR && r.RKey != 0 {
					wide++
				}
			}
			require.Equal(t, 1, wide, "regions with remote rights")
			ctx, cancel := context.WithTimeout(t.Context(), wait)
			defer cancel()
			for range 10 {
				l, data := p.a.xlist(300_000)
				require.NoError(t, p.ab.Send(ctx, Message{Head: []byte("exposed"), Payload: l}))
				p.b.expect(p.ba, "exposed", data)
			}
			require.Eventually(t, func() bool { return p.ab.Stats().RendezvousSent == 10 }, wait, time.Millisecond)
			data := p.a.send(p.ab, "not exposed", 300_000)
			p.b.expect(p.ba, "not exposed", data)
			require.EqualValues(t, 10, p.ab.Stats().RendezvousSent)
			require.Zero(t, p.a.cfg.Exposed.Account().Held)

			src, data := p.b.xlist(100_000)
			gs, err := p.ba.Grant(ctx, src, false)
			require.NoError(t, err)
			again, err := p.ba.Grant(ctx, src, false)
			require.NoError(t, err)
			require.Equal(t, gs, again, "the same key")
			dst, _ := p.a.xlist(50_000)
			require.NoError(t, p.ab.Read(ctx, dst, gs[0], 1000))
			require.True(t, bytes.Equal(data[1000:51_000], bytesOf(dst)))
			require.NoError(t, p.ba.Revoke(ctx, gs))
			require.Equal(t, 1, p.b.cfg.Exposed.Stats().Grants, "it was granted twice")
			src.Release()
			require.NotZero(t, p.b.cfg.Exposed.Account().Held, "until the connection is gone")
			other, _ := p.b.list(10)
			_, err = p.ba.Grant(ctx, other, false)
			require.ErrorIs(t, err, ErrNotSupported)
			_, err = p.ba.GrantOnce(ctx, dst, false, nil)
			require.Error(t, err, "of another endpoint's arena")
			mine, _ := p.b.xlist(10)
			_, err = p.ba.GrantOnce(ctx, mine, false, nil)
			require.ErrorIs(t, err, ErrNotSupported)
			for _, l := range []*buffer.List{dst, other, mine} {
				l.Release()
			}
			p.ab.Close()
			get(t, p.ba.Done())
			require.Zero(t, p.b.cfg.Exposed.Account().Held)
			require.Zero(t, p.b.cfg.Exposed.Stats().Grants)
		})
	}
}

func TestExposedIsAnArenaOfItsOwn(t *testing.T) {
	d := env.Open(t)
	defer func() { require.NoError(t, d.Close()) }()
	plain, err := buffer.New(buffer.Config{Budget: 16 << 20})
	require.NoError(t, err)
	x, err := buffer.New(buffer.Config{Budget: 16 << 20, TrustFabric: true})
	require.NoError(t, err)
	_, err = NewEndpoint(d, x, Config{})
	require.ErrorIs(t, err, verbs.ErrInvalid)
	require.ErrorContains(t, err, "Config.Exposed")
	_, err = NewEndpoint(d, plain, Config{Exposed: plain})
	require.ErrorIs(t, err, verbs.ErrInvalid)
	require.Empty(t, d.Resources())
	require.NoError(t, plain.Close(t.Context()))
	require.NoError(t, x.Close(t.Context()))
}

// asking is a log handler that asks the connection before it writes a line.
type asking struct {
	slog.Handler
	c atomic.Pointer[Conn]
}

func (h *asking) Handle(ctx context.Context, r slog.Record) error {
	if c := h.c.Load(); c != nil {
		c.Inspect()
	}
	return h.Handler.Handle(ctx, r)
}

// A logger may ask for what it is told about, also of keys that can not be withdrawn.
func TestLoggerMayAsk(t *testing.T) {
	var failing atomic.Int32
	s := &verbstest.Script{Call: func(c verbstest.Call) verbstest.Fault {
		if c.Op == verbstest.CallDeregister && failing.Load() > 0 {
			failing.Add(-1)
			return verbstest.Fault{Err: errInjected}
		}
		return verbstest.Fault{}
	}}
	b := newNode(t, nodeConfig{Config: Config{Admit: func(*Conn, []byte, int64) bool { return false }}})
	needKeys(t, b.dev)
	addr := b.listen()
	log := new(logBuffer)
	h := &asking{Handler: slog.NewTextHandler(log, nil)}
	a := newNode(t, nodeConfig{device: openFaulty(t, s), Config: Config{Logger: slog.New(h)}})
	c, err := a.Dial(t.Context(), addr)
	require.NoError(t, err)
	h.c.Store(c)
	granted, _ := a.list(1000)
	defer granted.Release()
	_, err = c.Grant(t.Context(), granted, false)
	require.NoError(t, err)
	a.send(c, "not admitted", 200_000) // announced, and not fetched
	failing.Store(2)                   // a key of each
	c.Close()
	get(t, c.Done())
	require.Equal(t, 2, s.Fired())
	require.Contains(t, log.String(), "of a grant: ")
	require.Contains(t, log.String(), "of a rendezvous: ")
}
