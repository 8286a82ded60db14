package messenger_test

import (
	"context"
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	. "github.com/argonaut-rdma/argonaut/messenger"
)

// By default a connection without messages, in either direction, ends after 15
// minutes, keepalives or not, and one whose peer is silent after half a minute.
func TestDefaultTimeouts(t *testing.T) {
	under(t, func(t *testing.T) {
		d := newDuo(t, LossyClient(), StatelessServer(), func(i int, cfg *Config) {
			if i == 0 { // or either may be first
				cfg.IdleTimeout = 0
			}
		})
		c := d.connect(t, 0)
		ready(t, c)
		settle(8 * time.Minute)
		send(t, c, 1)
		settle(14*time.Minute + 50*time.Second)
		require.Equal(t, StateOpen, c.State())
		settle(20 * time.Second)
		require.Equal(t, StateClosed, c.State())
		require.ErrorIs(t, c.Err(), ErrTimeout)
		require.ErrorContains(t, c.Err(), "nothing but keepalives for 15m0s")

		c = d.connect(t, 0)
		ready(t, c)
		settle(time.Minute)
		d.Net.Split([]string{d.Nodes[0].Host}, []string{d.Nodes[1].Host})
		settle(20 * time.Second)
		require.Equal(t, StateOpen, c.State())
		settle(25 * time.Second)
		require.Equal(t, StateClosed, c.State())
		require.ErrorIs(t, c.Err(), ErrTimeout)
		require.ErrorContains(t, c.Err(), "no sign of life for 30s")
	})
}

// By default a handshake may take 10 seconds, and a peer that is silent in it is given
// up, on either side.
func TestDefaultConnectTimeout(t *testing.T) {
	under(t, func(t *testing.T) {
		d := newDuo(t, LossyClient(), StatelessServer())
		server := d.Nodes[1]
		dialed, err := d.Net.Dialer("10.9.9.1")(t.Context(), server.Addrs()[0].HostPort())
		require.NoError(t, err)
		defer dialed.Close()
		silent, err := d.Net.Listener("10.9.9.2")(t.Context(), "10.9.9.2:7000")
		require.NoError(t, err)
		defer silent.Close()
		c, err := d.Nodes[0].ConnectTo(OSD, AddrVec{{URL: "tcp://10.9.9.2:7000"}})
		require.NoError(t, err)
		settle(9 * time.Second)
		require.EqualValues(t, 1, server.Stats().HalfOpen)
		require.NoError(t, c.Err())
		settle(2 * time.Second)
		require.Zero(t, server.Stats().HalfOpen)
		require.EqualValues(t, 1, server.Stats().HandshakeTimeouts)
		_, err = dialed.Read(make([]byte, 1))
		require.ErrorIs(t, err, io.EOF, "it is closed")
		require.ErrorIs(t, c.Err(), ErrTimeout)
		require.EqualValues(t, 1, d.Nodes[0].Stats().HandshakeTimeouts)
		require.Equal(t, StateConnecting, c.State(), "it tries again")
	})
}

// Policy.MaxBytes is of all peers of a type together, and of no others: what one of
// them has sent holds the other back, in the order in which they asked.
func TestThrottleOfATypeIsShared(t *testing.T) {
	under(t, func(t *testing.T) {
		server := LosslessPeer()
		server.MaxBytes = 1000
		d := newDuo(t, LosslessPeer(), server)
		var kept []*Message
		d.rec[1].hook = func(_ context.Context, m *Message) { kept = append(kept, m.Retain()) }
		first := d.connect(t, 0)
		second, err := unbound(t, d, 7).ConnectTo(OSD, d.Nodes[1].Addrs())
		require.NoError(t, err)
		of := func(c *Connection, n byte) {
			m := NewMessage(1)
			m.Front = append(m.Front, n, 0, 0, 0)
			m.Front = append(m.Front, make([]byte, 596)...)
			require.NoError(t, c.Send(t.Context(), m))
		}
		of(first, 1)
		settle(time.Second)
		of(second, 2)
		settle(time.Minute)
		require.Equal(t, []uint32{1}, d.rec[1].received(), "600 of 1000 bytes are taken")
		require.EqualValues(t, 1, d.Nodes[1].Stats().ThrottleWaits)
		require.Equal(t, StateOpen, second.State(), "it waits")
		n := d.Nodes[0]
		client, err := New(Config{Name: EntityName{Type: Client, Num: -1}, Arena: n.Arena, DialStream: n.Dial, ListenStream: n.Listen})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, client.Close()) })
		other, err := client.ConnectTo(OSD, d.Nodes[1].Addrs())
		require.NoError(t, err)
		of(other, 3)
		settle(time.Second)
		require.Equal(t, []uint32{1, 3}, d.rec[1].received())
		kept[0].Release()
		settle(time.Second)
		require.Equal(t, []uint32{1, 3, 2}, d.rec[1].received())
		for _, m := range kept[1:] {
			m.Release()
		}
	})
}
