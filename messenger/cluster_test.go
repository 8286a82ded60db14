package messenger_test

import (
	"context"
	"encoding/binary"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	. "github.com/argonaut-rdma/argonaut/messenger"
	"github.com/argonaut-rdma/argonaut/messenger/messengertest"
)

// recorder is a dispatcher that notes what happens, and answers calls.
type recorder struct {
	BaseDispatcher
	mu     sync.Mutex
	got    []uint32
	events []string
	hook   func(ctx context.Context, m *Message)
}

func (r *recorder) Dispatch(ctx context.Context, m *Message) bool {
	defer m.Release()
	if r.hook != nil {
		r.hook(ctx, m)
	}
	if len(m.Front) >= 4 {
		r.mu.Lock()
		r.got = append(r.got, binary.LittleEndian.Uint32(m.Front))
		r.mu.Unlock()
	}
	if m.TID != 0 {
		a := NewMessage(m.Type)
		a.Front = append(a.Front, m.Front...)
		if m.Reply(ctx, a) != nil {
			a.Release()
		}
	}
	return true
}

func (r *recorder) note(s string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events = append(r.events, s)
}

func (r *recorder) HandleConnect(*Connection)     { r.note("connect") }
func (r *recorder) HandleAccept(*Connection)      { r.note("accept") }
func (r *recorder) HandleReset(*Connection)       { r.note("reset") }
func (r *recorder) HandleRemoteReset(*Connection) { r.note("remote reset") }
func (r *recorder) HandleRefused(*Connection)     { r.note("refused") }

func (r *recorder) received() []uint32 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]uint32(nil), r.got...)
}

func (r *recorder) count(event string) (n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, e := range r.events {
		if e == event {
			n++
		}
	}
	return n
}

// steps counts frames of handshakes, and holds or fails some.
type steps struct {
	mu    sync.Mutex
	count map[string]int // by name, of those received; "> NAME" of those sent
	on    map[string]func() error
}

func newSteps() *steps { return &steps{count: map[string]int{}, on: map[string]func() error{}} }

func (s *steps) step(p Step) error {
	name := p.Frame
	if p.Sending {
		name = "> " + name
	}
	s.mu.Lock()
	s.count[name]++
	f := s.on[name]
	s.mu.Unlock()
	if f != nil {
		return f()
	}
	return nil
}

func (s *steps) n(name string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.count[name]
}

func (s *steps) set(name string, f func() error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.on[name] = f
}

// once fails the first time only.
func once() func() error {
	var done atomic.Bool
	return func() error {
		if done.CompareAndSwap(false, true) {
			return errors.New("the test fails this step")
		}
		return nil
	}
}

// duo is two nodes under virtual time.
type duo struct {
	*messengertest.Cluster
	rec   [2]*recorder
	steps [2]*steps
}

func newDuo(t *testing.T, p0, p1 Policy, more ...func(i int, cfg *Config)) *duo {
	d := &duo{}
	i := 0
	d.Cluster = messengertest.New(t, messengertest.Config{
		Configure: func(_ *messengertest.Node, cfg *Config) {
			d.steps[i] = newSteps()
			cfg.Inject = &Inject{Step: d.steps[i].step}
			cfg.IdleTimeout = -1
			for _, f := range more {
				f(i, cfg)
			}
		},
		Setup: func(n *messengertest.Node) {
			n.SetPolicy(OSD, [...]Policy{p0, p1}[i])
			d.rec[i] = &recorder{}
			n.AddDispatcher(d.rec[i])
			i++
		},
	})
	return d
}

func (d *duo) connect(t *testing.T, from int) *Connection {
	t.Helper()
	c, err := d.Nodes[from].ConnectTo(OSD, d.Nodes[1-from].Addrs())
	require.NoError(t, err)
	return c
}

func send(t *testing.T, c *Connection, n uint32) {
	t.Helper()
	m := NewMessage(1)
	m.Front = binary.LittleEndian.AppendUint32(m.Front, n)
	require.NoError(t, c.Send(t.Context(), m))
}

func ready(t *testing.T, c *Connection) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	require.NoError(t, c.Ready(ctx))
}

// settle lets d of virtual time pass.
func settle(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func under(t *testing.T, f func(t *testing.T)) { synctest.Test(t, f) }

// ConnectionRaceTest: both connect at once, and get one session, by one
// transport, without a reconnect.
func TestConnectionRace(t *testing.T) {
	under(t, func(t *testing.T) {
		d := newDuo(t, LosslessPeer(), LosslessPeer())
		// Both idents are on their way before either is answered.
		var both sync.WaitGroup
		both.Add(2)
		for _, s := range d.steps {
			var first sync.Once
			s.set("CLIENT_IDENT", func() error {
				first.Do(both.Done)
				both.Wait()
				return nil
			})
		}
		c := [2]*Connection{d.connect(t, 0), d.connect(t, 1)}
		send(t, c[0], 1)
		send(t, c[1], 2)
		ready(t, c[0])
		ready(t, c[1])
		settle(time.Second)
		require.Equal(t, []uint32{1}, d.rec[1].received())
		require.Equal(t, []uint32{2}, d.rec[0].received())
		// The other attempt was told to wait, or came too late for even that.
		require.LessOrEqual(t, d.steps[0].n("> WAIT")+d.steps[1].n("> WAIT"), 1)
		require.Equal(t, 1, d.steps[0].n("> SERVER_IDENT")+d.steps[1].n("> SERVER_IDENT"))
		for i, n := range d.Nodes {
			require.Equal(t, 1, n.Stats().Open)
			require.Zero(t, n.Stats().Reconnects)
			again, err := n.ConnectTo(OSD, d.Nodes[1-i].Addrs())
			require.NoError(t, err)
			require.Same(t, c[i], again, "users' references stay valid")
		}
		require.Equal(t, 1, d.Net.Connections())
	})
}

// MissingServerIdenTest: a fault between CLIENT_IDENT and SERVER_IDENT; the
// client connects again.
func TestMissingServerIdent(t *testing.T) {
	under(t, func(t *testing.T) {
		d := newDuo(t, LosslessPeer(), LosslessPeer())
		d.steps[1].set("> SERVER_IDENT", once())
		c := d.connect(t, 0)
		send(t, c, 1)
		settle(5 * time.Second)
		require.Equal(t, []uint32{1}, d.rec[1].received())
		require.Equal(t, 2, d.steps[1].n("CLIENT_IDENT"))
		require.Equal(t, 1, d.Nodes[1].Stats().Open)
	})
}

// MissingServerIdenTest2: the client has not got SERVER_IDENT and has nothing to
// send; the server connects, from standby, and both find the session.
func TestMissingServerIdentServerReconnects(t *testing.T) {
	under(t, func(t *testing.T) {
		d := newDuo(t, LosslessPeer(), LosslessPeer())
		d.steps[0].set("SERVER_IDENT", once())
		c := d.connect(t, 0)
		settle(5 * time.Second)
		require.Equal(t, StateStandby, c.State())
		back := d.connect(t, 1)
		require.Equal(t, StateStandby, back.State())
		send(t, back, 7)
		settle(5 * time.Second)
		require.Equal(t, []uint32{7}, d.rec[0].received())
		require.Equal(t, StateOpen, c.State())
		require.Equal(t, 1, d.steps[0].n("> SESSION_RESET"))
		require.Zero(t, d.rec[1].count("remote reset"), "the reset is not a full one")
	})
}

// ReconnectTest: after a cut one SESSION_RECONNECT, one SESSION_RECONNECT_OK and
// no retry.
func TestReconnect(t *testing.T) {
	under(t, func(t *testing.T) {
		d := newDuo(t, LosslessClient(), StatefulServer())
		c := d.connect(t, 0)
		send(t, c, 1)
		settle(time.Second)
		d.Net.CutAll()
		send(t, c, 2)
		settle(time.Second)
		require.Equal(t, []uint32{1, 2}, d.rec[1].received())
		require.Equal(t, 1, d.steps[1].n("SESSION_RECONNECT"))
		require.Equal(t, 1, d.steps[0].n("SESSION_RECONNECT_OK"))
		require.Equal(t, 1, d.steps[1].n("CLIENT_IDENT"))
		require.Zero(t, d.steps[0].n("SESSION_RETRY")+d.steps[0].n("SESSION_RETRY_GLOBAL"))
		require.EqualValues(t, 1, c.Stats().Reconnects)
	})
}

// ReconnectRaceTest: both connect again at once; one transport goes on.
func TestReconnectRace(t *testing.T) {
	under(t, func(t *testing.T) {
		d := newDuo(t, LosslessPeer(), LosslessPeer())
		c := [2]*Connection{d.connect(t, 0)}
		send(t, c[0], 1)
		settle(time.Second)
		c[1] = d.connect(t, 1)
		var both sync.WaitGroup
		both.Add(2)
		for _, s := range d.steps {
			var first sync.Once
			s.set("SESSION_RECONNECT", func() error {
				first.Do(both.Done)
				both.Wait()
				return nil
			})
		}
		// A message each is on its way when the transport is cut: both have a
		// reason to connect.
		d.Net.SetLatency(func(string, string) time.Duration { return 10 * time.Millisecond })
		send(t, c[0], 2)
		send(t, c[1], 3)
		settle(time.Millisecond)
		d.Net.CutAll()
		settle(10 * time.Second)
		require.Equal(t, []uint32{1, 2}, d.rec[1].received())
		require.Equal(t, []uint32{3}, d.rec[0].received())
		n := func(name string) int { return d.steps[0].n(name) + d.steps[1].n(name) }
		require.Equal(t, 2, n("SESSION_RECONNECT"))
		require.Equal(t, 1, n("> SESSION_RECONNECT_OK"))
		require.Equal(t, 1, n("> WAIT"))
		require.Zero(t, n("> SESSION_RETRY")+n("> SESSION_RESET"))
		require.Equal(t, 1, d.Net.Connections())
	})
}

// ConnectionRaceReuseBannerTest: the peer's transport takes over while our own
// attempt is at its banner.
func TestConnectionRaceAtTheBanner(t *testing.T) {
	under(t, func(t *testing.T) {
		d := newDuo(t, LosslessPeer(), LosslessPeer())
		hold := make(chan struct{})
		d.steps[1].set("BANNER", func() error { // of what node 0 opens, and of node 1's own
			<-hold
			return nil
		})
		c := d.connect(t, 0)
		send(t, c, 1)
		settle(100 * time.Millisecond)
		back := d.connect(t, 1)
		send(t, back, 2)
		settle(100 * time.Millisecond)
		close(hold)
		settle(20 * time.Second)
		require.Equal(t, []uint32{1}, d.rec[1].received())
		require.Equal(t, []uint32{2}, d.rec[0].received())
		require.Equal(t, 1, d.Net.Connections())
		require.Equal(t, 1, d.Nodes[0].Stats().Open)
	})
}

// StatefulTest: the server keeps the session of a client that is away; when the
// server drops it the client learns, and loses what was queued.
func TestStateful(t *testing.T) {
	under(t, func(t *testing.T) {
		d := newDuo(t, LosslessClient(), StatefulServer())
		c := d.connect(t, 0)
		c.SetUser("mine")
		send(t, c, 1)
		settle(time.Second)
		server := d.serverSide(t)
		server.SetUser("client's")
		d.Net.CutAll()
		settle(time.Second)
		send(t, c, 2)
		settle(time.Second)
		require.Equal(t, "client's", server.User(), "the session is the same")
		require.Equal(t, StateOpen, server.State())
		require.Equal(t, []uint32{1, 2}, d.rec[1].received())
		require.Zero(t, d.rec[0].count("remote reset"))

		d.Nodes[1].MarkDownAll()
		settle(time.Second)
		require.Equal(t, 1, d.rec[0].count("remote reset"))
		require.Zero(t, d.rec[1].count("reset"), "our own MarkDown is no fault")
		require.EqualValues(t, 1, c.Stats().RemoteResets)
		send(t, c, 3)
		settle(time.Second)
		require.Equal(t, []uint32{1, 2, 3}, d.rec[1].received())
		require.Equal(t, "mine", c.User())
	})
}

func (d *duo) serverSide(t *testing.T) *Connection {
	t.Helper()
	c, err := d.Nodes[1].ConnectTo(OSD, d.Nodes[0].Addrs())
	require.NoError(t, err)
	return c
}

// StatelessTest: a lossy session ends with its transport, on both sides.
func TestStateless(t *testing.T) {
	under(t, func(t *testing.T) {
		d := newDuo(t, LossyClient(), StatelessServer())
		c := d.connect(t, 0)
		send(t, c, 1)
		settle(time.Second)
		d.Net.CutAll()
		settle(time.Second)
		require.Equal(t, StateClosed, c.State())
		require.Equal(t, 1, d.rec[0].count("reset"))
		require.Equal(t, 1, d.rec[1].count("reset"))
		m := NewMessage(1)
		require.ErrorIs(t, c.Send(t.Context(), m), ErrReset)
		m.Release()
		again := d.connect(t, 0)
		require.NotSame(t, c, again)
		send(t, again, 2)
		settle(time.Second)
		require.Equal(t, []uint32{1, 2}, d.rec[1].received())
	})
}

// ClientStandbyTest: with nothing to send a peer waits in standby, and something
// to send ends that, on either side.
func TestStandby(t *testing.T) {
	under(t, func(t *testing.T) {
		d := newDuo(t, LosslessPeer(), LosslessPeer())
		c := d.connect(t, 0)
		send(t, c, 1)
		settle(time.Second)
		back := d.serverSide(t)
		for i := range uint32(3) {
			d.Net.CutAll()
			settle(time.Minute)
			require.Equal(t, StateStandby, c.State())
			require.Equal(t, StateStandby, back.State())
			require.Zero(t, d.Net.Connections())
			if i%2 == 0 {
				send(t, back, 10+i)
			} else {
				send(t, c, 10+i)
			}
			settle(time.Second)
			require.Equal(t, StateOpen, c.State())
		}
		require.Equal(t, []uint32{1, 11}, d.rec[1].received())
		require.Equal(t, []uint32{10, 12}, d.rec[0].received())
		// A keepalive does, too.
		d.Net.CutAll()
		settle(time.Minute)
		c.SendKeepalive()
		settle(time.Second)
		require.Equal(t, StateOpen, c.State())
	})
}

// AnonTest: anonymous connections are never shared.
func TestAnonymous(t *testing.T) {
	under(t, func(t *testing.T) {
		d := newDuo(t, LossyClient(), StatelessServer())
		seen := map[*Connection]bool{d.connect(t, 0): true}
		for i := range uint32(3) {
			c, err := d.Nodes[0].ConnectAnonymous(OSD, d.Nodes[1].Addrs())
			require.NoError(t, err)
			require.False(t, seen[c])
			seen[c] = true
			send(t, c, i)
		}
		settle(time.Second)
		require.Len(t, d.rec[1].received(), 3)
		require.Equal(t, 4, d.Nodes[1].Stats().Open)
	})
}

// Backoff: attempts at a peer that is away come after 0.2 s, doubling to 15 s,
// and the peer that comes back is found.
func TestBackoffIsCephs(t *testing.T) {
	under(t, func(t *testing.T) {
		d := newDuo(t, LosslessClient(), StatefulServer())
		var mu sync.Mutex
		var at []time.Duration
		begin := time.Now()
		d.steps[1].set("BANNER", func() error {
			mu.Lock()
			defer mu.Unlock()
			at = append(at, time.Since(begin).Round(time.Millisecond))
			if len(at) < 11 {
				return errors.New("away")
			}
			return nil
		})
		send(t, d.connect(t, 0), 1)
		settle(2 * time.Minute)
		require.Equal(t, []uint32{1}, d.rec[1].received())
		ms := time.Millisecond
		require.Equal(t, []time.Duration{0, 200 * ms, 600 * ms, 1400 * ms, 3000 * ms, 6200 * ms, 12600 * ms, 25400 * ms,
			40400 * ms, 55400 * ms, 70400 * ms}, at)
	})
}

// A split: both ends learn by silence, keep what they have sent, and go on when
// it has healed.
func TestSplit(t *testing.T) {
	under(t, func(t *testing.T) {
		d := newDuo(t, LosslessPeer(), LosslessPeer())
		c := d.connect(t, 0)
		send(t, c, 1)
		settle(time.Second)
		d.Net.Split([]string{d.Nodes[0].Host}, []string{d.Nodes[1].Host})
		for i := range uint32(10) {
			send(t, c, 2+i)
		}
		settle(2 * time.Minute)
		require.Equal(t, []uint32{1}, d.rec[1].received())
		require.NotEqual(t, StateOpen, c.State())
		require.Equal(t, 10, c.Stats().UnackedMessages)
		d.Net.Heal()
		settle(time.Minute)
		require.Equal(t, []uint32{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}, d.rec[1].received())
		require.Zero(t, c.Stats().UnackedMessages)
	})
}

// A wrong target: a daemon at an address that was another's before refuses what
// is meant for that one, and gets none of its messages.
func TestWrongTarget(t *testing.T) {
	under(t, func(t *testing.T) {
		d := newDuo(t, LosslessPeer(), LosslessPeer())
		addrs := d.Nodes[1].Addrs()
		addrs[0].Nonce++
		c, err := d.Nodes[0].ConnectTo(OSD, addrs)
		require.NoError(t, err)
		send(t, c, 1)
		settle(time.Minute)
		require.Equal(t, StateConnecting, c.State())
		require.Empty(t, d.rec[1].received())
		require.NotZero(t, d.Nodes[1].Stats().HandshakesFailed)
	})
}

// Calls under way survive a cut: the reply comes by the next transport.
func TestCallsSurvive(t *testing.T) {
	under(t, func(t *testing.T) {
		d := newDuo(t, LosslessClient(), StatefulServer())
		c := d.connect(t, 0)
		d.rec[1].hook = func(ctx context.Context, _ *Message) {
			d.Net.CutAll()
			time.Sleep(time.Second)
		}
		r, err := c.Call(t.Context(), NewMessage(3))
		require.NoError(t, err)
		r.Release()
		require.EqualValues(t, 1, c.Stats().Reconnects)
	})
}

// MarkdownTest: marked down from within handlers that hold a lock of the
// user's, again and again.
func TestMarkdown(t *testing.T) {
	rounds := 1000
	if testing.Short() {
		rounds = 100
	}
	under(t, func(t *testing.T) {
		d := newDuo(t, LossyClient(), StatelessServer())
		var lock sync.Mutex
		var round, handled, answered int // handlers that ran, of the server, of the client; under lock
		d.rec[1].hook = func(ctx context.Context, m *Message) {
			lock.Lock()
			defer lock.Unlock()
			handled++
			if round%2 == 0 { // the client's handler gets something, too
				a := NewMessage(1)
				if m.Conn.Send(ctx, a) != nil {
					a.Release()
				}
				return
			}
			m.Conn.MarkDown()
		}
		d.rec[0].hook = func(_ context.Context, m *Message) {
			lock.Lock()
			defer lock.Unlock()
			answered++
			m.Conn.MarkDown()
		}
		var left int // rounds whose messages are not dropped by the client
		for i := range rounds {
			lock.Lock()
			c := d.connect(t, 0)
			for range 3 {
				m := NewMessage(1)
				if c.Send(t.Context(), m) != nil {
					m.Release()
				}
			}
			if i%3 == 0 {
				c.MarkDown()
			} else {
				left++
			}
			before := handled
			round = i
			lock.Unlock()
			settle(time.Millisecond)
			lock.Lock()
			if i%3 != 0 {
				require.Greater(t, handled, before, "round %d: the server's handler has not run", i)
			}
			lock.Unlock()
		}
		t.Logf("%d rounds, %d left to the handlers: the server's ran %d times, the client's %d", rounds, left, handled, answered)
		require.GreaterOrEqual(t, handled, left)
		require.NotZero(t, answered)
		d.Nodes[0].MarkDownAll()
		settle(time.Second)
		require.Zero(t, d.Nodes[0].Stats().Open+d.Nodes[1].Stats().Open)
		require.Zero(t, d.Net.Connections())
	})
}
