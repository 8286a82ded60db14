package messenger_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	. "github.com/argonaut-rdma/argonaut/messenger"
)

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
