package messenger

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/argonaut-rdma/argonaut/messenger/internal/msgr2"
)

func TestThrottleHoldsThePeerBack(t *testing.T) {
	carriers(t, func(t *testing.T, scheme string) {
		held := make(chan *Message, 100)
		sh := &handler{dispatch: func(_ context.Context, m *Message) bool { held <- m; return true }}
		server := newMessenger(t, Config{Name: EntityName{OSD, 0}})
		pol := StatelessServer()
		pol.MaxMessages = 3
		server.SetPolicy(Client, pol)
		server.AddDispatcher(sh)
		require.NoError(t, server.Bind(soon(t), anyAddr(scheme)))
		c, err := newMessenger(t, Config{}).ConnectTo(OSD, server.Addrs())
		require.NoError(t, err)
		for range 10 {
			require.NoError(t, c.Send(soon(t), NewMessage(1)))
		}
		for range 3 {
			defer receiveOne(t, held, "message").Release()
		}
		require.Eventually(t, func() bool { return server.Stats().ThrottleWaits == 1 }, patience, time.Millisecond)
		require.Empty(t, held)
		require.EqualValues(t, 3, server.Stats().MessagesReceived)
		c.MarkDown() // what waits is dropped, what is held is not
	})
}

func TestThrottleGoesOnWhenMessagesAreReleased(t *testing.T) {
	carriers(t, func(t *testing.T, scheme string) {
		sh := &handler{dispatch: echo}
		p := newPair(t, scheme, Config{DispatchBytes: 1000}, Config{}, sh, nil)
		for range 50 {
			m := NewMessage(1)
			m.Data, _ = randomList(t, p.client.cfg.Arena, 5000) // more than the bound: passes alone
			r, err := p.c.Call(soon(t), m)
			require.NoError(t, err)
			r.Release()
		}
		require.Eventually(t, func() bool { return p.server.Stats().DispatchBytes == 0 }, patience, time.Millisecond)
	})
}

func TestSendBlocksAtTheQueueLimit(t *testing.T) {
	carriers(t, func(t *testing.T, scheme string) {
		block := make(chan struct{})
		sh := &handler{fast: func(m *Message) bool { <-block; m.Release(); return true }} // stops reading
		server := newMessenger(t, Config{Name: EntityName{OSD, 0}})
		server.AddDispatcher(sh)
		require.NoError(t, server.Bind(soon(t), anyAddr(scheme)))
		client := newMessenger(t, Config{})
		pol := LossyClient()
		pol.QueueBytes = 1 << 20
		client.SetPolicy(OSD, pol)
		c, err := client.ConnectTo(OSD, server.Addrs())
		require.NoError(t, err)
		require.NoError(t, c.Ready(soon(t)))
		l, _ := randomList(t, client.cfg.Arena, 256<<10)
		defer l.Release()
		m := NewMessage(1)
		m.Data = l.Share()
		var sent int
		for ; ; sent++ { // until the sockets' buffers are full, too
			ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
			err := c.Send(ctx, m)
			cancel()
			if err != nil {
				require.ErrorIs(t, err, context.DeadlineExceeded)
				break
			}
			require.Less(t, sent, 10_000)
			m = NewMessage(1)
			m.Data = l.Share()
		}
		ok, err := c.TrySend(m)
		require.NoError(t, err)
		require.False(t, ok)
		done := make(chan error, 1)
		go func() { done <- c.Send(soon(t), m) }()
		close(block)
		require.NoError(t, receiveOne(t, done, "end of Send"))
		require.Eventually(t, func() bool { return server.Stats().MessagesReceived == uint64(sent+1) }, patience, time.Millisecond)
	})
}

// A node that is too busy to listen is not taken for dead, by neither side.
func TestHeldBackPeersStayAlive(t *testing.T) {
	if testing.Short() {
		t.Skip("waits out a timeout that is long enough for a busy machine")
	}
	carriers(t, func(t *testing.T, scheme string) {
		t.Parallel()
		held := make(chan *Message, 100)
		cfg := Config{KeepaliveInterval: 20 * time.Millisecond, KeepaliveTimeout: 3 * time.Second}
		server := newMessenger(t, Config{Name: EntityName{OSD, 0}, KeepaliveInterval: cfg.KeepaliveInterval, KeepaliveTimeout: cfg.KeepaliveTimeout})
		pol := StatelessServer()
		pol.MaxMessages = 1
		server.SetPolicy(Client, pol)
		server.AddDispatcher(&handler{dispatch: func(_ context.Context, m *Message) bool { held <- m; return true }})
		require.NoError(t, server.Bind(soon(t), anyAddr(scheme)))
		c, err := newMessenger(t, cfg).ConnectTo(OSD, server.Addrs())
		require.NoError(t, err)
		for range 2 {
			require.NoError(t, c.Send(soon(t), NewMessage(1)))
		}
		m := receiveOne(t, held, "message")
		require.Never(t, func() bool {
			if c.State() != StateOpen || server.Stats().Open != 1 {
				t.Log(c.Err(), server.Stats())
				return true
			}
			return false
		},
			cfg.KeepaliveTimeout+time.Second, 10*time.Millisecond)
		require.NoError(t, c.Err())
		m.Release()
		receiveOne(t, held, "message that waited").Release()
	})
}

// The throttles are asked for whatever is received, however large: what they have
// not given would be given back.
func TestThrottlesAreAskedForWhatIsReceived(t *testing.T) {
	l := &link{own: featureGrants}
	for _, n := range []int{0, 1 << 20, 129 << 20, 1<<32 - 1} {
		head, p, e := msgr2.AppendMessageHead(nil, &msgr2.Header{Seq: 1, Type: 1}, []byte("front"), nil, n)
		head = msgr2.AppendMessageTail(head, &p, e, 0)
		size, ok := l.toAdmit(head, int64(n))
		require.True(t, ok, "%d bytes", n)
		require.Equal(t, int64(n)+5, size)
	}
}
