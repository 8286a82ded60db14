package messenger_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	. "github.com/argonaut-rdma/argonaut/messenger"
)

// A keepalive that is asked for while the connection is not open goes when it is:
// out of standby, which it ends, and while the peer can not be reached.
func TestKeepaliveOfAConnectionThatIsNotOpen(t *testing.T) {
	under(t, func(t *testing.T) {
		none := func(_ int, cfg *Config) { cfg.KeepaliveInterval = -1 }
		d := newDuo(t, LosslessPeer(), LosslessPeer(), none)
		begin := time.Now()
		c := d.connect(t, 0)
		require.Equal(t, StateConnecting, c.State())
		for range 3 {
			c.SendKeepalive()
		}
		settle(time.Second)
		require.WithinDuration(t, begin, c.LastKeepaliveAck(), time.Second)

		d.Net.CutAll()
		settle(time.Minute)
		require.Equal(t, StateStandby, c.State())
		asked := time.Now()
		c.SendKeepalive()
		settle(time.Second)
		require.Equal(t, StateOpen, c.State())
		require.False(t, c.LastKeepaliveAck().Before(asked))
		far := d.connect(t, 1)
		require.False(t, far.LastKeepalive().Before(asked))
		require.Equal(t, far.LastKeepalive(), far.Stats().LastKeepalive)
		require.True(t, c.LastKeepalive().IsZero(), "the peer has not asked")

		d.Net.Split([]string{d.Nodes[0].Host}, []string{d.Nodes[1].Host})
		d.Net.CutAll()
		settle(time.Minute)
		asked = time.Now()
		c.SendKeepalive()
		send(t, c, 1)
		settle(time.Minute)
		require.True(t, c.LastKeepaliveAck().Before(asked))
		d.Net.Heal()
		settle(time.Minute)
		require.False(t, c.LastKeepaliveAck().Before(asked))

		c.MarkDown()
		c.SendKeepalive()
		require.Equal(t, StateClosed, c.State())
	})
}
