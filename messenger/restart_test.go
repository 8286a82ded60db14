package messenger_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	. "github.com/argonaut-rdma/argonaut/messenger"
)

// restart kills node 1, as a kill -9 does: nothing of its end gets out. It comes
// back as another incarnation at the same address.
func (d *duo) restart(t *testing.T, p Policy, more ...func(cfg *Config)) (*Messenger, *recorder) {
	t.Helper()
	n := d.Nodes[1]
	at := n.Addrs()
	d.Net.Split([]string{d.Nodes[0].Host}, []string{n.Host})
	require.NoError(t, n.Close())
	cfg := Config{Name: n.Name(), Arena: n.Arena, DialStream: n.Dial, ListenStream: n.Listen, IdleTimeout: -1}
	for _, f := range more {
		f(&cfg)
	}
	m, err := New(cfg)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, m.Close()) })
	m.SetPolicy(OSD, p)
	rec := &recorder{}
	m.AddDispatcher(rec)
	require.NoError(t, m.Bind(t.Context(), AddrVec{{URL: at[0].URL}}))
	d.Net.CutAll()
	d.Net.Heal()
	return m, rec
}

// A call that the peer has acknowledged and not answered when it is killed ends
// when it is back, with or without ResetCheck.
func TestCallsEndWithARestartOfThePeer(t *testing.T) {
	for name, p := range map[string]Policy{"peer": LosslessPeer(), "peer reuse": LosslessPeerReuse()} {
		t.Run(name, func(t *testing.T) {
			under(t, func(t *testing.T) {
				d := newDuo(t, p, p)
				c, err := d.Nodes[0].ConnectTo(OSD, AddrVec{{URL: d.Nodes[1].Addrs()[0].URL}})
				require.NoError(t, err)
				ready(t, c)
				d.rec[1].hook = func(ctx context.Context, _ *Message) { <-ctx.Done() }
				ended := make(chan error, 1)
				go func() { ended <- callOn(t, c, 1) }() // ends with the call
				settle(time.Second)
				require.Zero(t, c.Stats().UnackedMessages)
				_, rec := d.restart(t, p)
				begin := time.Now()
				require.ErrorIs(t, <-ended, ErrReset)
				require.Less(t, time.Since(begin), time.Second)
				require.Empty(t, rec.received())
				require.NoError(t, callOn(t, c, 2), "the session goes on with the new one")
				settle(time.Second)
				require.Equal(t, p.ResetCheck, d.rec[0].count("remote reset") == 1)
			})
		})
	}
}

// A session that the peer has opened, so with this incarnation, goes on with the next
// one once it was asked for by the place alone.
func TestPlaceOfASessionThatExists(t *testing.T) {
	for _, back := range []bool{false, true} {
		under(t, func(t *testing.T) {
			d := newDuo(t, LosslessPeer(), LosslessPeer())
			require.NoError(t, callOn(t, d.connect(t, 1), 1))
			settle(time.Second) // the next one counts from the time of day
			place := AddrVec{{URL: d.Nodes[1].Addrs()[0].URL}}
			c, err := d.Nodes[0].ConnectTo(OSD, place)
			require.NoError(t, err)
			next, _ := d.restart(t, LosslessPeer())
			if back {
				x, err := next.ConnectTo(OSD, d.Nodes[0].Addrs())
				require.NoError(t, err)
				require.NoError(t, callOn(t, x, 2))
			}
			require.NoError(t, callOn(t, c, 3))
			again, err := d.Nodes[0].ConnectTo(OSD, place)
			require.NoError(t, err)
			require.Same(t, c, again)
			require.Equal(t, 1, d.Nodes[0].Stats().Open)
			require.Zero(t, d.Nodes[0].Stats().Connecting+d.Nodes[0].Stats().Standby)
		})
	}
}

// Of two sessions with incarnations of a peer the place alone leads to the later one.
func TestPlaceOfTwoIncarnations(t *testing.T) {
	under(t, func(t *testing.T) {
		d := newDuo(t, LosslessPeer(), LosslessPeer())
		require.NoError(t, callOn(t, d.connect(t, 1), 1))
		place := AddrVec{{URL: d.Nodes[1].Addrs()[0].URL}}
		settle(time.Second)
		next, _ := d.restart(t, LosslessPeer())
		x, err := next.ConnectTo(OSD, d.Nodes[0].Addrs())
		require.NoError(t, err)
		require.NoError(t, callOn(t, x, 2))
		c, err := d.Nodes[0].ConnectTo(OSD, place)
		require.NoError(t, err)
		require.Equal(t, StateOpen, c.State())
		require.NoError(t, callOn(t, c, 3))
	})
}

// A session by the place alone that was with the incarnation before does not take the
// place of one that is open with the next: it is the later one to connect.
func TestPlaceBesideTheNextIncarnation(t *testing.T) {
	under(t, func(t *testing.T) {
		d := newDuo(t, LosslessPeer(), LosslessPeer())
		place := AddrVec{{URL: d.Nodes[1].Addrs()[0].URL}}
		c, err := d.Nodes[0].ConnectTo(OSD, place)
		require.NoError(t, err)
		require.NoError(t, callOn(t, c, 1))
		settle(time.Second)
		next, rec := d.restart(t, LosslessPeer())
		settle(time.Second)
		r, err := d.Nodes[0].ConnectTo(OSD, next.Addrs())
		require.NoError(t, err)
		require.NotSame(t, c, r)
		send(t, r, 2)
		settle(time.Second)
		require.Equal(t, StateStandby, c.State())
		send(t, c, 3)
		settle(time.Second)
		require.ErrorIs(t, c.Err(), ErrDuplicate)
		require.Equal(t, 1, d.rec[0].count("reset"))
		send(t, r, 4)
		settle(time.Minute)
		require.Equal(t, []uint32{2, 4}, rec.received())
		require.Equal(t, StateOpen, r.State())
		require.Zero(t, r.Stats().Reconnects)
		again, err := d.Nodes[0].ConnectTo(OSD, place)
		require.NoError(t, err)
		require.Same(t, r, again)
		require.Equal(t, 1, d.rec[0].count("reset"))
	})
}

// The place alone leads to the session that has been open, rather than to a later one
// with an incarnation that was not found.
func TestPlaceBesideAStaleMap(t *testing.T) {
	under(t, func(t *testing.T) {
		d := newDuo(t, LosslessPeer(), LosslessPeer())
		froms := make(chan *Connection, 1)
		d.rec[0].hook = func(_ context.Context, m *Message) { froms <- m.Conn }
		send(t, d.connect(t, 1), 1)
		k := <-froms
		settle(time.Second)
		d.Net.CutAll()
		settle(time.Second)
		require.Equal(t, StateStandby, k.State())
		at := d.Nodes[1].Addrs()[0]
		stale, err := d.Nodes[0].ConnectTo(OSD, AddrVec{{URL: at.URL, Nonce: at.Nonce ^ 1}})
		require.NoError(t, err)
		require.NotSame(t, k, stale)
		settle(time.Second)
		require.ErrorIs(t, stale.Err(), ErrWrongPeer)
		c, err := d.Nodes[0].ConnectTo(OSD, AddrVec{{URL: at.URL}})
		require.NoError(t, err)
		require.Same(t, k, c)
		require.NoError(t, callOn(t, c, 2))
	})
}

// What the peer had not acknowledged is asked of its next incarnation.
func TestCallsGoToTheNextIncarnation(t *testing.T) {
	under(t, func(t *testing.T) {
		d := newDuo(t, LosslessPeer(), LosslessPeer())
		c, err := d.Nodes[0].ConnectTo(OSD, AddrVec{{URL: d.Nodes[1].Addrs()[0].URL}})
		require.NoError(t, err)
		ready(t, c)
		d.Net.Split([]string{d.Nodes[0].Host}, []string{d.Nodes[1].Host})
		ended := make(chan error, 1)
		go func() { ended <- callOn(t, c, 1) }() // ends with the call
		settle(time.Second)
		require.Equal(t, 1, c.Stats().UnackedMessages)
		_, rec := d.restart(t, LosslessPeer())
		require.NoError(t, <-ended)
		require.Equal(t, []uint32{1}, rec.received())
	})
}

// What the peer had not acknowledged comes to its next incarnation also when the
// first transport there fails before anything has come by it: that one has said
// that it has nothing, whatever the old one had.
func TestFirstTransportToTheNextIncarnationFails(t *testing.T) {
	under(t, func(t *testing.T) {
		d := newDuo(t, LosslessPeer(), LosslessPeer())
		c, err := d.Nodes[0].ConnectTo(OSD, AddrVec{{URL: d.Nodes[1].Addrs()[0].URL}})
		require.NoError(t, err)
		ready(t, c)
		send(t, c, 1)
		send(t, c, 2)
		settle(time.Second)
		require.Zero(t, c.Stats().UnackedMessages)
		d.Net.Split([]string{d.Nodes[0].Host}, []string{d.Nodes[1].Host})
		send(t, c, 3)
		send(t, c, 4)
		settle(time.Second)
		require.Equal(t, 2, c.Stats().UnackedMessages)
		failed := 0
		_, rec := d.restart(t, LosslessPeer(), func(cfg *Config) {
			cfg.Inject = &Inject{Step: func(s Step) error {
				if s.Frame != "MESSAGE" || s.Sending || failed > 0 {
					return nil
				}
				failed++
				return errors.New("injected")
			}}
		})
		settle(time.Minute)
		require.Equal(t, 1, failed)
		require.Equal(t, []uint32{3, 4}, rec.received())
		send(t, c, 5)
		settle(time.Second)
		require.Equal(t, []uint32{3, 4, 5}, rec.received())
	})
}

// What a peer that is killed has asked is not answered to its next incarnation:
// the handler's context ends, and a late reply answers no call of that one.
func TestHandlersOfAnIncarnationThatIsGone(t *testing.T) {
	under(t, func(t *testing.T) {
		d := newDuo(t, LosslessPeer(), LosslessPeer())
		c, err := d.Nodes[0].ConnectTo(OSD, AddrVec{{URL: d.Nodes[1].Addrs()[0].URL}})
		require.NoError(t, err)
		ready(t, c)
		first := true
		d.rec[0].hook = func(ctx context.Context, m *Message) {
			if !first {
				return
			}
			first = false
			<-ctx.Done()
			time.Sleep(time.Second)
			binary.LittleEndian.PutUint32(m.Front, 66) // the answer is an echo
		}
		old := d.connect(t, 1)
		gone := make(chan error, 1)
		go func() { gone <- callOn(t, old, 1) }() // ends with node 1
		settle(time.Second)
		next, _ := d.restart(t, LosslessPeer())
		require.ErrorIs(t, <-gone, ErrClosed)
		send(t, c, 5)
		settle(100 * time.Millisecond)
		again, err := next.ConnectTo(OSD, d.Nodes[0].Addrs())
		require.NoError(t, err)
		require.NoError(t, callOn(t, again, 2))
		require.Equal(t, []uint32{66, 2}, d.rec[0].received())
	})
}

// Who was connected to by the place alone goes on with the next incarnation there,
// whichever side connects first, and both at once: one session, in which each
// message arrives once and in order.
func TestNextIncarnationConnects(t *testing.T) {
	for name, p := range map[string]Policy{"peer": LosslessPeer(), "peer reuse": LosslessPeerReuse()} {
		for lead := -3; lead <= 3; lead++ {
			t.Run(fmt.Sprintf("%s %d", name, lead), func(t *testing.T) {
				for held := range time.Duration(3) {
					under(t, func(t *testing.T) { nextIncarnation(t, p, time.Duration(lead)*time.Millisecond, held*time.Millisecond) })
				}
			})
		}
	}
}

// nextIncarnation has the new one connect that much after us, and us take that long
// from a transport that the peer has agreed to, to one that is open.
func nextIncarnation(t *testing.T, p Policy, lead, held time.Duration) {
	d := newDuo(t, p, p)
	d.Net.SetLatency(func(string, string) time.Duration { return time.Millisecond })
	c, err := d.Nodes[0].ConnectTo(OSD, AddrVec{{URL: d.Nodes[1].Addrs()[0].URL}})
	require.NoError(t, err)
	send(t, c, 1)
	settle(time.Second)
	froms := make(chan *Connection, 16)
	d.rec[0].hook = func(_ context.Context, m *Message) { froms <- m.Conn }
	next, rec := d.restart(t, p)
	settle(time.Minute)
	require.Equal(t, StateStandby, c.State())
	d.steps[0].set("READY", func() error {
		time.Sleep(held)
		return nil
	})
	first := func() { send(t, c, 2) }
	var back *Connection
	second := func() {
		back, err = next.ConnectTo(OSD, d.Nodes[0].Addrs())
		require.NoError(t, err)
		send(t, back, 3)
	}
	if lead < 0 {
		first, second, lead = second, first, -lead
	}
	first()
	time.Sleep(lead)
	second()
	settle(time.Minute)
	send(t, c, 4)
	send(t, back, 5)
	settle(time.Minute)
	require.Equal(t, []uint32{3, 5}, d.rec[0].received())
	require.Same(t, c, <-froms)
	require.Same(t, c, <-froms)
	if got := rec.received(); len(got) == 2 {
		require.Equal(t, []uint32{2, 4}, got)
	} else { // it was dropped with the session that it was for
		require.Equal(t, []uint32{4}, got)
		require.True(t, p.ResetCheck)
		require.Equal(t, 1, d.rec[0].count("remote reset"))
	}
	for _, m := range []*Messenger{d.Nodes[0].Messenger, next} {
		require.Equal(t, 1, m.Stats().Open)
		require.Zero(t, m.Stats().Connecting+m.Stats().Standby)
	}
	require.Equal(t, 1, d.Net.Connections())
	require.NoError(t, callOn(t, back, 6))
}
