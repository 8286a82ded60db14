package messenger_test

import (
	"context"
	"fmt"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/argonaut-rdma/argonaut/conn"
	. "github.com/argonaut-rdma/argonaut/messenger"
	"github.com/argonaut-rdma/argonaut/messenger/messengertest"
	"github.com/argonaut-rdma/argonaut/verbs/iwarp"
)

func callOn(t *testing.T, c *Connection, n byte) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	m := NewMessage(9)
	m.Front = append(m.Front, n, 0, 0, 0)
	r, err := c.Call(ctx, m)
	if err != nil {
		m.Release()
		return err
	}
	require.Equal(t, []byte{n, 0, 0, 0}, r.Front)
	r.Release()
	return nil
}

// SimpleTest: a round trip, a new address, marked down, a dead server, and the
// loopback.
func TestSimple(t *testing.T) {
	under(t, func(t *testing.T) {
		d := newDuo(t, LosslessPeerReuse(), LosslessPeerReuse())
		c := d.connect(t, 0)
		require.NoError(t, callOn(t, c, 1))
		require.Same(t, c, d.connect(t, 0), "one connection per peer")

		// Rebind: a new entity for its peers. The old one is gone for good.
		before := d.Nodes[1].Addrs()
		require.NoError(t, d.Nodes[1].Rebind(t.Context()))
		after := d.Nodes[1].Addrs()
		require.Len(t, after, 1)
		require.NotEqual(t, before[0].URL, after[0].URL)
		require.NotEqual(t, before[0].Nonce, after[0].Nonce)
		fresh := d.connect(t, 0)
		require.NotSame(t, c, fresh)
		require.NoError(t, callOn(t, fresh, 2))
		send(t, c, 99)
		settle(time.Minute)
		require.Equal(t, StateConnecting, c.State())
		require.NotContains(t, d.rec[1].received(), uint32(99))
		require.NotZero(t, d.rec[0].count("refused"))
		c.MarkDown()
		require.Zero(t, c.Stats().UnackedMessages+c.Stats().QueuedMessages)

		// MarkDown: the next one is another connection, and the peer learns.
		fresh.MarkDown()
		m := NewMessage(1)
		require.ErrorIs(t, fresh.Send(t.Context(), m), ErrClosed)
		m.Release()
		require.NoError(t, callOn(t, d.connect(t, 0), 3))
		require.Zero(t, d.rec[0].count("reset"))
		settle(time.Second)
		require.Equal(t, 1, d.rec[1].count("remote reset"))

		require.NoError(t, callOn(t, d.Nodes[0].Loopback(), 4))
		own, err := d.Nodes[0].ConnectTo(OSD, d.Nodes[0].Addrs())
		require.NoError(t, err)
		require.Same(t, d.Nodes[0].Loopback(), own)
	})
}

// Shutdown lets calls that are being served be answered, also those whose
// handler has returned, and takes no new ones.
func TestShutdownLetsHandlersReply(t *testing.T) {
	under(t, func(t *testing.T) {
		d := newDuo(t, LosslessClient(), StatefulServer())
		c := d.connect(t, 0)
		begun := make(chan struct{}, 2)
		d.rec[1].hook = func(context.Context, *Message) {
			begun <- struct{}{}
			time.Sleep(20 * time.Second)
		}
		results := make(chan error, 2)
		go func() { results <- callOn(t, c, 1) }() // ends with its reply
		<-begun
		down := make(chan error, 1)
		go func() { // ends with the shutdown
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			down <- d.Nodes[1].Shutdown(ctx)
		}()
		settle(time.Second)
		late := NewMessage(1)
		require.NoError(t, c.Send(t.Context(), late), "it waits for a server that comes back")
		require.NoError(t, <-results)
		require.NoError(t, <-down)
		require.Empty(t, begun, "the late one has not been handled")
		settle(time.Second)
		require.Equal(t, 1, c.Stats().UnackedMessages+c.Stats().QueuedMessages, "nor taken for received")
	})
}

// Shutdown waits for what has been sent to be acknowledged, over a cut, too.
func TestShutdownFlushesLossless(t *testing.T) {
	under(t, func(t *testing.T) {
		d := newDuo(t, LosslessClient(), StatefulServer())
		c := d.connect(t, 0)
		ready(t, c)
		d.Net.SetLatency(func(string, string) time.Duration { return 50 * time.Millisecond })
		for i := range uint32(100) {
			send(t, c, i)
		}
		d.Net.CutAll()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		require.NoError(t, d.Nodes[0].Shutdown(ctx))
		settle(time.Second)
		require.Len(t, d.rec[1].received(), 100)
	})
}

// TimeoutTest: a connection without use ends after IdleTimeout; a lossless
// session goes to standby, and comes back.
func TestIdleTimeout(t *testing.T) {
	under(t, func(t *testing.T) {
		d := newDuo(t, LosslessPeer(), LosslessPeer(), func(_ int, cfg *Config) { cfg.IdleTimeout = time.Second })
		c := d.connect(t, 0)
		require.NoError(t, callOn(t, c, 1))
		settle(5 * time.Second)
		require.Equal(t, StateStandby, c.State())
		require.Zero(t, d.Net.Connections())
		require.NoError(t, callOn(t, c, 2))
	})
}

// A node with several transports: the best that both have is taken, another one
// when that fails, and the session comes back on it.
func TestSeveralTransports(t *testing.T) {
	network := messengertest.NewNetwork(1)
	var rec [2]*recorder
	i := 0
	var rdma [2]func(bool) // lets the node's adapter connect, or not
	cl := messengertest.New(t, messengertest.Config{
		Net: network,
		Transports: func(t testing.TB, n *messengertest.Node) []Transport {
			ok := make(chan bool, 1)
			ok <- true
			rdma[i] = func(b bool) { <-ok; ok <- b }
			dev, err := iwarp.Open(iwarp.Config{Listen: n.Listen, Dial: func(ctx context.Context, addr string) (net.Conn, error) {
				b := <-ok
				ok <- b
				if !b {
					return nil, fmt.Errorf("the adapter is gone")
				}
				return n.Dial(ctx, addr)
			}})
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, dev.Close()) })
			return []Transport{{Scheme: SchemeIWARP, Open: func(cfg conn.Config) (*conn.Endpoint, error) {
				return conn.NewEndpoint(dev, n.Arena, cfg)
			}}}
		},
		Configure: func(_ *messengertest.Node, cfg *Config) {
			cfg.BackoffMin, cfg.BackoffMax = time.Millisecond, 20*time.Millisecond
		},
		Setup: func(n *messengertest.Node) {
			n.SetPolicy(OSD, LosslessPeer())
			rec[i] = &recorder{}
			n.AddDispatcher(rec[i])
			i++
		},
	})
	for _, n := range cl.Nodes { // bound to tcp so far
		require.NoError(t, n.Bind(t.Context(), AddrVec{{URL: "iwarp://" + n.Host + ":0"}}))
	}
	c, err := cl.Nodes[0].ConnectTo(OSD, cl.Nodes[1].Addrs())
	require.NoError(t, err)
	require.NoError(t, callOn(t, c, 1))
	require.Equal(t, SchemeIWARP, c.Stats().Transport, "before tcp, although the peer names that first")

	rdma[0](false)
	rdma[1](false)
	network.CutAll()
	require.NoError(t, callOn(t, c, 2))
	require.Equal(t, SchemeTCP, c.Stats().Transport)
	st, other := cl.Nodes[0].Stats(), cl.Nodes[1].Stats()
	require.NotZero(t, st.FallbacksOther+other.FallbacksOther)
	require.EqualValues(t, 1, c.Stats().Reconnects, "the session is the same")

	rdma[0](true)
	rdma[1](true)
	network.CutAll()
	require.NoError(t, callOn(t, c, 3))
	require.Equal(t, SchemeIWARP, c.Stats().Transport)

	// A peer without RDMA here: counted, too.
	plain := messengertest.New(t, messengertest.Config{Net: network, Nodes: 3, Setup: func(n *messengertest.Node) { n.SetPolicy(OSD, LosslessPeer()) }})
	far := cl.Nodes[1].Addrs()
	far[0], far[1] = far[1], far[0]
	c, err = plain.Nodes[2].ConnectTo(OSD, far)
	require.NoError(t, err)
	require.NoError(t, callOn(t, c, 4))
	require.EqualValues(t, 1, plain.Nodes[2].Stats().FallbacksNoTransport)
}

// A call under way ends with the session that it belongs to, and says so.
func TestCallsEndWithTheSession(t *testing.T) {
	under(t, func(t *testing.T) {
		d := newDuo(t, LosslessClient(), StatefulServer())
		c := d.connect(t, 0)
		d.rec[1].hook = func(_ context.Context, m *Message) { m.Conn.MarkDown() }
		m := NewMessage(1)
		_, err := c.Call(t.Context(), m)
		require.ErrorIs(t, err, ErrReset)
		m.Release()
		settle(time.Second)
		require.Equal(t, 1, d.rec[0].count("remote reset"))
	})
}
