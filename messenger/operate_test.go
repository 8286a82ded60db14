package messenger_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	. "github.com/argonaut-rdma/argonaut/messenger"
	"github.com/argonaut-rdma/argonaut/messenger/messengertest"
)

// Drain lets what is under way end, and says no to what is new; Resume ends it.
func TestDrain(t *testing.T) {
	under(t, func(t *testing.T) {
		d := newDuo(t, LosslessClient(), StatefulServer())
		c := d.connect(t, 0)
		ready(t, c)
		d.rec[1].hook = func(context.Context, *Message) { time.Sleep(10 * time.Second) }
		replied := make(chan error, 1)
		go func() { // ends with the reply
			r, err := c.Call(t.Context(), NewMessage(1))
			if err == nil {
				r.Release()
			}
			replied <- err
		}()
		settle(time.Second)
		require.Equal(t, Health{Live: true, Ready: true}, d.Nodes[1].Health())

		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		err := d.Nodes[1].Drain(ctx)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorContains(t, err, "handlers still running")
		h := d.Nodes[1].Health()
		require.True(t, h.Live)
		require.False(t, h.Ready)
		require.Equal(t, []string{"draining"}, h.Problems)

		begin := time.Now()
		m := NewMessage(1)
		_, err = c.Call(t.Context(), m)
		m.Release()
		require.ErrorIs(t, err, ErrDraining)
		require.Less(t, time.Since(begin), time.Second, "it is said at once")
		require.Equal(t, StateOpen, c.State(), "sessions go on")

		require.NoError(t, d.Nodes[1].Drain(t.Context()), "the handler returns")
		require.NoError(t, <-replied)
		d.Net.CutAll()
		send(t, c, 7)
		settle(11 * time.Second)
		require.Equal(t, []uint32{7}, d.rec[1].received(), "they reconnect, and what is no call is handled")

		d.Nodes[1].Resume()
		require.True(t, d.Nodes[1].Health().Ready)
	})
}

func TestDrainTakesNoSessions(t *testing.T) {
	under(t, func(t *testing.T) {
		d := newDuo(t, LossyClient(), StatelessServer())
		require.NoError(t, d.Nodes[1].Drain(t.Context()))
		c := d.connect(t, 0)
		settle(time.Second)
		require.ErrorIs(t, c.Err(), ErrDraining)
		require.Equal(t, StateConnecting, c.State(), "it goes on trying")
		d.Nodes[1].Resume()
		ready(t, c)
	})
}

// A lossless session without a transport ends when Config.SessionTimeout says
// so, in standby and while connecting; its peer learns of it when it comes back.
func TestSessionTimeout(t *testing.T) {
	for _, way := range []string{"standby", "connecting"} {
		t.Run(way, func(t *testing.T) {
			under(t, func(t *testing.T) {
				d := newDuo(t, LosslessPeerReuse(), LosslessPeerReuse(), func(i int, cfg *Config) {
					if i == 0 {
						cfg.SessionTimeout = time.Minute
					}
				})
				c := d.connect(t, 0)
				send(t, c, 1)
				settle(2 * time.Minute)
				require.Equal(t, StateOpen, c.State(), "it is about sessions without a transport")
				d.Net.Split([]string{d.Nodes[0].Host}, []string{d.Nodes[1].Host})
				if way == "connecting" {
					send(t, c, 2)
				}
				d.Net.CutAll()
				settle(50 * time.Second)
				require.NotEqual(t, StateClosed, c.State())
				settle(20 * time.Second)
				require.Equal(t, StateClosed, c.State())
				require.ErrorIs(t, c.Err(), ErrTimeout)
				require.Equal(t, 1, d.rec[0].count("reset"))
				require.EqualValues(t, 1, d.Nodes[0].Stats().SessionsExpired)
				require.Zero(t, d.Nodes[0].Inspect(InspectQuery{}).Memory.Held)

				d.Net.Heal()
				back := d.connect(t, 1)
				send(t, back, 3)
				settle(time.Minute)
				require.EqualValues(t, 1, d.rec[1].count("remote reset"))
			})
		})
	}
}

func TestHealth(t *testing.T) {
	under(t, func(t *testing.T) {
		d := newDuo(t, LosslessPeer(), LosslessPeer(), func(_ int, cfg *Config) { cfg.Workers = 1 })
		c := d.connect(t, 0)
		ready(t, c)
		require.Equal(t, Health{Live: true, Ready: true}, d.Nodes[1].Health())

		d.rec[1].hook = func(context.Context, *Message) { time.Sleep(40 * time.Second) }
		send(t, c, 1)
		settle(time.Second)
		require.True(t, d.Nodes[1].Health().Live)
		send(t, d.Nodes[1].Loopback(), 2) // another strand
		settle(35 * time.Second)
		h := d.Nodes[1].Health()
		require.False(t, h.Live || h.Ready)
		require.Contains(t, h.Problems[0], "no handler has returned")
		settle(10 * time.Second)
		require.True(t, d.Nodes[1].Health().Live)
		settle(time.Minute)

		d.Net.Split([]string{d.Nodes[0].Host}, []string{d.Nodes[1].Host})
		d.Net.CutAll()
		send(t, c, 3)
		settle(time.Minute)
		h = d.Nodes[0].Health()
		require.True(t, h.Live && h.Ready, "a peer that is gone is no fault of ours")
		require.Contains(t, h.Problems[0], "osd.1 can not be reached")
		require.NoError(t, d.Nodes[0].Close())
		h = d.Nodes[0].Health()
		require.False(t, h.Ready)
		require.Equal(t, []string{"shutting down"}, h.Problems)
	})
}

// Messages that a handler does not release hold up their peers, and Health says so.
func TestHealthOfUnreleased(t *testing.T) {
	under(t, func(t *testing.T) {
		d := newDuo(t, LosslessPeer(), LosslessPeer(), func(_ int, cfg *Config) { cfg.DispatchBytes = 600 })
		c := d.connect(t, 0)
		ready(t, c)
		kept := make(chan *Message, 16)
		d.rec[1].hook = func(_ context.Context, m *Message) {
			m.Retain()
			kept <- m
		}
		for i := range uint32(8) {
			send(t, c, i)
		}
		settle(time.Second)
		require.Empty(t, d.Nodes[1].Health().Problems, "too early to say")
		settle(30 * time.Second)
		h := d.Nodes[1].Health()
		require.True(t, h.Live && h.Ready)
		require.Len(t, h.Problems, 1)
		require.Contains(t, h.Problems[0], "Config.DispatchBytes is used up by messages that are not released")
		require.Less(t, len(kept), 8)
		d.rec[1].hook = nil
		for range len(kept) {
			(<-kept).Release()
		}
		settle(time.Second)
		require.Len(t, d.rec[1].received(), 8)
		require.Empty(t, d.Nodes[1].Health().Problems)
	})
}

// A long burst on one strand is progress while others wait.
func TestHealthInABurst(t *testing.T) {
	under(t, func(t *testing.T) {
		d := newDuo(t, LosslessPeer(), LosslessPeer(), func(_ int, cfg *Config) { cfg.Workers = 1 })
		c := d.connect(t, 0)
		ready(t, c)
		d.rec[1].hook = func(context.Context, *Message) { time.Sleep(3 * time.Second) }
		for i := range uint32(16) {
			send(t, c, i)
		}
		settle(time.Second)
		send(t, d.Nodes[1].Loopback(), 99)
		for range 45 {
			settle(time.Second)
			require.True(t, d.Nodes[1].Health().Live)
		}
		require.NotContains(t, d.rec[1].received(), uint32(99))
		settle(time.Minute)
		require.Contains(t, d.rec[1].received(), uint32(99))
	})
}

// Shutdown from a handler would wait for itself: it says so.
func TestShutdownFromAHandler(t *testing.T) {
	under(t, func(t *testing.T) {
		d := newDuo(t, LossyClient(), StatelessServer())
		c := d.connect(t, 0)
		for _, end := range []func() error{
			func() error { return d.Nodes[1].Shutdown(context.Background()) },
			d.Nodes[1].Close,
		} {
			got := make(chan error, 1)
			d.rec[1].hook = func(context.Context, *Message) { got <- end() }
			send(t, c, 1)
			require.ErrorIs(t, <-got, ErrInvalid)
			settle(0)
		}
		d.rec[1].hook = nil
		r, err := c.Call(t.Context(), NewMessage(1))
		require.NoError(t, err, "it goes on")
		r.Release()
	})
}

// The same reference sent twice is found in the caller, who did it.
func TestSentTwice(t *testing.T) {
	under(t, func(t *testing.T) {
		d := newDuo(t, LosslessPeer(), LosslessPeer())
		d.Net.Split([]string{d.Nodes[0].Host}, []string{d.Nodes[1].Host})
		c := d.connect(t, 0)
		m := NewMessage(1)
		require.NoError(t, c.Send(t.Context(), m))
		require.PanicsWithValue(t, "messenger: Send of a Message that is being sent: Send takes it, Retain gives another reference",
			func() { _ = c.Send(t.Context(), m) })
		require.NoError(t, c.Send(t.Context(), m.Retain()), "a reference for each")
		d.Net.Heal()
		settle(time.Minute)
		require.EqualValues(t, 2, d.Nodes[1].Stats().MessagesReceived)

		gone := NewMessage(1)
		gone.Retain().Release()
		gone.Release()
		require.Panics(t, func() { _ = c.Send(t.Context(), gone) })

		full := NewMessage(1)
		c.MarkDown()
		for range 2 {
			require.ErrorIs(t, c.Send(t.Context(), full), ErrClosed, "after an error it is the caller's still")
		}
		full.Release()
	})
}

// What takes how long, on request.
func TestLatencies(t *testing.T) {
	under(t, func(t *testing.T) {
		d := newDuo(t, LosslessPeer(), LosslessPeer(), func(i int, cfg *Config) { cfg.Latencies = i == 1 })
		c := d.connect(t, 1)
		d.rec[0].hook = func(context.Context, *Message) { time.Sleep(3 * time.Second) }
		r, err := c.Call(t.Context(), NewMessage(1))
		require.NoError(t, err)
		r.Release()
		d.rec[0].hook = nil
		d.rec[1].hook = func(context.Context, *Message) { time.Sleep(time.Second) }
		for n := range uint32(3) {
			send(t, d.Nodes[0].Loopback(), n)
		}
		back := d.connect(t, 0)
		send(t, back, 1)
		send(t, back, 2)
		settle(time.Minute)
		l := d.Nodes[1].Latencies()
		require.EqualValues(t, 1, l.Call.Count)
		require.InDelta(t, 3, l.Call.Sum.Seconds(), 0.1)
		for i, n := range l.Call.Buckets {
			require.Equal(t, HistogramBound(i) > 3*time.Second && (i == 0 || HistogramBound(i-1) <= 3*time.Second), n == 1, "%d", i)
		}
		require.EqualValues(t, 1, l.SendQueue.Count)
		require.EqualValues(t, 1, l.SendAck.Count)
		require.EqualValues(t, 2, l.Dispatch.Count)
		require.InDelta(t, 1, l.Dispatch.Sum.Seconds(), 0.1, "the second waited for the first")
		require.EqualValues(t, 2, l.Handle.Count)
		require.InDelta(t, 2, l.Handle.Sum.Seconds(), 0.1)
		require.EqualValues(t, 3, l.Receive.Count, "the reply, too")
		require.Less(t, l.Receive.Sum, time.Second)
		require.Zero(t, l.FastDispatch.Count)
		require.Positive(t, l.Send.Count)
		require.Equal(t, Latencies{}, d.Nodes[0].Latencies(), "nobody has asked")
	})
}

// slowly takes a second for each message, and FastDispatch does.
type slowly struct{ BaseDispatcher }

func (slowly) FastDispatch(m *Message) bool {
	time.Sleep(time.Second)
	m.Release()
	return true
}

// A message is received when FastDispatch gets it: how long that takes is apart.
func TestLatenciesOfReceiveAndFastDispatch(t *testing.T) {
	under(t, func(t *testing.T) {
		d := &duo{}
		d.Cluster = messengertest.New(t, messengertest.Config{
			Configure: func(n *messengertest.Node, cfg *Config) { cfg.Latencies = true },
			Setup: func(n *messengertest.Node) {
				n.SetPolicy(OSD, LosslessPeer())
				n.AddDispatcher(slowly{})
			},
		})
		d.Net.SetLatency(func(string, string) time.Duration { return 10 * time.Millisecond })
		c := d.connect(t, 0)
		send(t, c, 1)
		send(t, c, 2)
		settle(time.Minute)
		l := d.Nodes[1].Latencies()
		require.EqualValues(t, 2, l.FastDispatch.Count)
		require.InDelta(t, 2, l.FastDispatch.Sum.Seconds(), 0.1)
		require.Zero(t, l.Dispatch.Count+l.Handle.Count)
		require.EqualValues(t, 2, l.Receive.Count)
		require.Less(t, l.Receive.Sum, time.Second, "the second one is not begun before the first has been dispatched")
		require.Equal(t, l.Send.Sum+l.Receive.Sum+l.FastDispatch.Sum, l.Running())
		require.Positive(t, d.Nodes[0].Latencies().Send.Count)
	})
}

// Receiving is from the first bytes on: the wait for a throttle is in it.
func TestLatencyOfReceiveHasThrottles(t *testing.T) {
	under(t, func(t *testing.T) {
		one := LosslessPeer()
		one.MaxMessages = 1
		d := newDuo(t, LosslessPeer(), one, func(i int, cfg *Config) { cfg.Latencies = i == 1 })
		d.rec[1].hook = func(context.Context, *Message) { time.Sleep(time.Second) }
		c := d.connect(t, 0)
		for n := range uint32(3) {
			send(t, c, n)
		}
		settle(time.Minute)
		l := d.Nodes[1].Latencies()
		require.EqualValues(t, 3, l.Receive.Count)
		require.InDelta(t, 2, l.Receive.Sum.Seconds(), 0.1, "two have waited for the one before")
		require.EqualValues(t, 3, l.Dispatch.Count)
		require.Less(t, l.Dispatch.Sum, 100*time.Millisecond)
		require.InDelta(t, 3, l.Handle.Sum.Seconds(), 0.1)
	})
}

// onward sends what it gets on to its own messenger, after a second.
type onward struct {
	BaseDispatcher
	mu  sync.Mutex
	own int // how many came that way
}

func (o *onward) Dispatch(ctx context.Context, m *Message) bool {
	loop := m.Conn.Messenger().Loopback()
	if m.Conn != loop {
		time.Sleep(time.Second)
		return loop.Send(ctx, m) == nil
	}
	o.mu.Lock()
	o.own++
	o.mu.Unlock()
	m.Release()
	return true
}

// A message that has been received and is sent on over the loopback has not been
// received again.
func TestLatencyOfReceiveOnce(t *testing.T) {
	under(t, func(t *testing.T) {
		o := &onward{}
		d := &duo{}
		d.Cluster = messengertest.New(t, messengertest.Config{
			Configure: func(_ *messengertest.Node, cfg *Config) { cfg.Latencies = true },
			Setup: func(n *messengertest.Node) {
				n.SetPolicy(OSD, LosslessPeer())
				n.AddDispatcher(o)
			},
		})
		send(t, d.connect(t, 0), 1)
		settle(time.Minute)
		l := d.Nodes[1].Latencies()
		require.Equal(t, 1, o.own)
		require.EqualValues(t, 1, l.Receive.Count)
		require.Less(t, l.Receive.Sum, 100*time.Millisecond)
		require.EqualValues(t, 2, l.Dispatch.Count)
	})
}
