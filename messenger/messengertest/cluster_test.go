package messengertest_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/argonaut-rdma/argonaut/buffer"
	"github.com/argonaut-rdma/argonaut/conn"
	"github.com/argonaut-rdma/argonaut/messenger"
	"github.com/argonaut-rdma/argonaut/messenger/messengertest"
	"github.com/argonaut-rdma/argonaut/verbs/iwarp"
)

// echo answers calls with what they said, and remembers what it got.
type echo struct {
	messenger.BaseDispatcher
	name string
	got  chan string
}

func (e *echo) Dispatch(ctx context.Context, m *messenger.Message) bool {
	defer m.Release()
	select {
	case e.got <- string(m.Front):
	default:
	}
	if m.TID == 0 {
		return true
	}
	r := messenger.NewMessage(m.Type)
	r.Front = append(append(r.Front, m.Front...), " at "+e.name...)
	if m.Data != nil {
		r.Data = m.Data.Share()
	}
	if m.Reply(ctx, r) != nil {
		r.Release()
	}
	return true
}

// overIWARP is a cluster's configuration for user-space iWARP: an adapter for each
// node, on its network. A poller that spins would keep virtual time from passing,
// and so would an adapter that asks its peer for signs of life.
func overIWARP(cfg messengertest.Config) messengertest.Config {
	cfg.Scheme = messenger.SchemeIWARP
	cfg.Transports = func(t testing.TB, n *messengertest.Node) []messenger.Transport {
		dev, err := iwarp.Open(iwarp.Config{Dial: n.Dial, Listen: n.Listen, PeerTimeout: -1})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, dev.Close()) })
		return []messenger.Transport{{Scheme: messenger.SchemeIWARP, Open: func(c conn.Config) (*conn.Endpoint, error) {
			c.Spin = -1
			return conn.NewEndpoint(dev, n.Arena, c)
		}}}
	}
	return cfg
}

// both runs a test on a cluster of each kind, under virtual time.
func both(t *testing.T, f func(t *testing.T, kind func(messengertest.Config) messengertest.Config)) {
	for name, kind := range map[string]func(messengertest.Config) messengertest.Config{
		"tcp": func(c messengertest.Config) messengertest.Config { return c }, "iwarp": overIWARP,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { f(t, kind) })
		})
	}
}

func say(t *testing.T, c *messenger.Connection, text string) string {
	t.Helper()
	m := messenger.NewMessage(1)
	m.Front = append(m.Front, text...)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	r, err := c.Call(ctx, m)
	require.NoError(t, err)
	defer r.Release()
	return string(r.Front)
}

func TestClusterTalks(t *testing.T) {
	both(t, func(t *testing.T, kind func(messengertest.Config) messengertest.Config) {
		i := 0
		cl := messengertest.New(t, kind(messengertest.Config{Nodes: 3, Setup: func(n *messengertest.Node) {
			n.AddDispatcher(&echo{name: fmt.Sprint(i)})
			i++
		}}))
		require.Len(t, cl.Nodes, 3)
		for from := range cl.Nodes {
			for to, n := range cl.Nodes {
				if from == to {
					continue
				}
				require.Equal(t, messenger.EntityName{Type: messenger.OSD, Num: int64(to)}, n.Name())
				c, err := cl.Nodes[from].ConnectTo(messenger.OSD, n.Addrs())
				require.NoError(t, err)
				require.Equal(t, fmt.Sprintf("hello at %d", to), say(t, c, "hello"))
				peer, addrs, _ := c.Peer()
				require.Equal(t, n.Name(), peer)
				require.Contains(t, addrs.String(), n.Host)
			}
		}
	})
}

// A split is noticed by silence, a session outlives it, and an hour of it takes no
// time.
func TestClusterSplitsAndHeals(t *testing.T) {
	both(t, func(t *testing.T, kind func(messengertest.Config) messengertest.Config) {
		e := &echo{name: "b", got: make(chan string, 10)}
		i := 0
		cl := messengertest.New(t, kind(messengertest.Config{Setup: func(n *messengertest.Node) {
			n.SetPolicy(messenger.OSD, messenger.LosslessPeer())
			if i++; i == 2 {
				n.AddDispatcher(e)
			}
		}}))
		c, err := cl.Nodes[0].ConnectTo(messenger.OSD, cl.Nodes[1].Addrs())
		require.NoError(t, err)
		require.Equal(t, "before at b", say(t, c, "before"))
		require.Equal(t, "before", <-e.got)
		begin := time.Now()
		cl.Net.Split([]string{cl.Nodes[0].Host}, []string{cl.Nodes[1].Host})
		m := messenger.NewMessage(1)
		m.Front = append(m.Front, "meanwhile"...)
		require.NoError(t, c.Send(t.Context(), m))
		time.Sleep(time.Hour)
		require.Empty(t, e.got)
		require.NotEqual(t, messenger.StateOpen, c.State(), "silence was noticed")
		cl.Net.Heal()
		require.Equal(t, "meanwhile", <-e.got)
		require.Equal(t, "after at b", say(t, c, "after"))
		require.NotZero(t, c.Stats().Reconnects)
		require.GreaterOrEqual(t, time.Since(begin), time.Hour)
	})
}

// A cut is noticed at once; what was sent comes exactly once, payload too.
func TestClusterIsCut(t *testing.T) {
	both(t, func(t *testing.T, kind func(messengertest.Config) messengertest.Config) {
		e := &echo{name: "b", got: make(chan string, 200)}
		i := 0
		cl := messengertest.New(t, kind(messengertest.Config{Seed: 7, Setup: func(n *messengertest.Node) {
			n.SetPolicy(messenger.OSD, messenger.LosslessPeer())
			if i++; i == 2 {
				n.AddDispatcher(e)
			}
		}}))
		c, err := cl.Nodes[0].ConnectTo(messenger.OSD, cl.Nodes[1].Addrs())
		require.NoError(t, err)
		require.NoError(t, c.Ready(t.Context()))
		data, err := cl.Nodes[0].Arena.GetList(t.Context(), 8<<10, buffer.Anonymous)
		require.NoError(t, err)
		defer data.Release()
		for k := range 100 {
			m := messenger.NewMessage(1)
			m.Front = fmt.Appendf(m.Front, "%d", k)
			m.Data = data.Share()
			require.NoError(t, c.Send(t.Context(), m))
			switch {
			case k%30 == 17:
				cl.Net.Cut(cl.Nodes[0].Host, cl.Nodes[1].Host)
			case k%5 == 0:
				time.Sleep(time.Millisecond)
			}
		}
		for k := range 100 {
			require.Equal(t, fmt.Sprint(k), <-e.got)
		}
		time.Sleep(time.Minute)
		require.Empty(t, e.got, "twice")
		require.NotZero(t, c.Stats().Reconnects)
	})
}

// failing is a test that may fail, and go on.
type failing struct {
	testing.TB
	cleanups []func()
	errors   []string
}

func (f *failing) Cleanup(c func()) { f.cleanups = append(f.cleanups, c) }
func (f *failing) Errorf(format string, a ...any) {
	f.errors = append(f.errors, fmt.Sprintf(format, a...))
}

func (f *failing) end() {
	for i := len(f.cleanups) - 1; i >= 0; i-- {
		f.cleanups[i]()
	}
}

// Memory that is still held when the test ends fails it.
func TestHeldMemoryFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &failing{TB: t}
		cl := messengertest.New(f, messengertest.Config{})
		l, err := cl.Nodes[1].Arena.GetList(t.Context(), 1000, buffer.Anonymous)
		require.NoError(t, err)
		f.end()
		require.Len(t, f.errors, 1)
		require.True(t, strings.HasPrefix(f.errors[0], cl.Nodes[1].Host+": memory is still held"), f.errors[0])
		l.Release()
		require.NoError(t, cl.Nodes[1].Arena.Close(t.Context()), "and then it is back")

		f = &failing{TB: t}
		messengertest.New(f, messengertest.Config{})
		f.end()
		require.Empty(t, f.errors)
	})
}
