package messenger

import (
	"context"
	"encoding/binary"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/argonaut-rdma/argonaut/buffer"
	"github.com/argonaut-rdma/argonaut/conn"
)

func TestCallComesBack(t *testing.T) {
	carriers(t, func(t *testing.T, scheme string) {
		p := newPair(t, scheme, Config{}, Config{}, nil, nil)
		for _, n := range []int64{0, 1, 4095, 4096, 70_000, 1 << 20, 5 << 20} {
			m := NewMessage(100)
			m.Front = append(m.Front, "question"...)
			m.Middle = []byte("middle")
			var want []byte
			if n > 0 {
				m.Data, want = randomList(t, p.client.cfg.Arena, n)
			}
			r, err := p.c.Call(soon(t), m)
			require.NoError(t, err)
			require.Equal(t, uint16(101), r.Type)
			require.Equal(t, "question", string(r.Front))
			require.Equal(t, "middle", string(r.Middle))
			require.Same(t, p.c, r.Conn)
			if n > 0 {
				require.Equal(t, want, bytesOf(r.Data))
			} else {
				require.Nil(t, r.Data)
			}
			r.Release()
		}
		name, _, _ := p.c.Peer()
		require.Equal(t, EntityName{OSD, 0}, name)
		sc := receiveOne(t, p.accepted, "accepted connection")
		name, _, _ = sc.Peer()
		require.Equal(t, Client, name.Type)
		require.Equal(t, scheme, p.c.Stats().Transport)
	})
}

func TestMessagesArriveInOrder(t *testing.T) {
	carriers(t, func(t *testing.T, scheme string) {
		const n = 5000
		got := make(chan uint32, n)
		sh := &handler{dispatch: func(_ context.Context, m *Message) bool {
			defer m.Release()
			got <- binary.LittleEndian.Uint32(m.Front)
			return true
		}}
		p := newPair(t, scheme, Config{}, Config{}, sh, nil)
		for i := range uint32(n) {
			m := NewMessage(7)
			m.Front = binary.LittleEndian.AppendUint32(m.Front, i)
			if i%50 == 0 {
				m.Data, _ = randomList(t, p.client.cfg.Arena, 10_000)
			}
			require.NoError(t, p.c.Send(soon(t), m))
		}
		for i := range uint32(n) {
			require.Equal(t, i, receiveOne(t, got, "message"))
		}
		st := p.server.Stats()
		require.EqualValues(t, n, st.MessagesReceived)
		require.Zero(t, st.Duplicates)
	})
}

func TestSendBeforeConnected(t *testing.T) {
	carriers(t, func(t *testing.T, scheme string) {
		server := newMessenger(t, Config{Name: EntityName{OSD, 1}})
		got := make(chan string, 1)
		server.AddDispatcher(&handler{dispatch: func(_ context.Context, m *Message) bool {
			defer m.Release()
			got <- string(m.Front)
			return true
		}})
		require.NoError(t, server.Bind(soon(t), anyAddr(scheme)))
		client := newMessenger(t, Config{})
		c, err := client.ConnectTo(OSD, server.Addrs())
		require.NoError(t, err)
		m := NewMessage(1)
		m.Front = append(m.Front, "early"...)
		require.NoError(t, c.Send(soon(t), m))
		require.Equal(t, "early", receiveOne(t, got, "message"))
	})
}

func TestConnectToIsReused(t *testing.T) {
	carriers(t, func(t *testing.T, scheme string) {
		p := newPair(t, scheme, Config{}, Config{}, nil, nil)
		again, err := p.client.ConnectTo(OSD, p.server.Addrs())
		require.NoError(t, err)
		require.Same(t, p.c, again)
		p.c.MarkDown()
		again, err = p.client.ConnectTo(OSD, p.server.Addrs())
		require.NoError(t, err)
		require.NotSame(t, p.c, again)
		require.NoError(t, again.Ready(soon(t)))
	})
}

func TestNobodyListens(t *testing.T) {
	carriers(t, func(t *testing.T, scheme string) {
		server := newMessenger(t, Config{Name: EntityName{OSD, 1}})
		require.NoError(t, server.Bind(soon(t), anyAddr(scheme)))
		addrs := server.Addrs()
		require.NoError(t, server.Close())

		refused := make(chan *Connection, 100)
		client := newMessenger(t, Config{})
		client.AddDispatcher(&handler{refused: func(c *Connection) { refused <- c }})
		c, err := client.ConnectTo(OSD, addrs)
		require.NoError(t, err)
		require.Same(t, c, receiveOne(t, refused, "HandleRefused"))
		ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
		defer cancel()
		m := NewMessage(1)
		defer m.Release()
		_, err = c.Call(ctx, m)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorContains(t, err, "refused")
		require.Equal(t, StateConnecting, c.State())
	})
}

func TestClientReconnectsUntilTheServerIsThere(t *testing.T) {
	carriers(t, func(t *testing.T, scheme string) {
		server := newMessenger(t, Config{Name: EntityName{OSD, 1}})
		require.NoError(t, server.Bind(soon(t), anyAddr(scheme)))
		addrs := server.Addrs()
		require.NoError(t, server.Close())
		client := newMessenger(t, Config{})
		refused := make(chan *Connection, 1000)
		client.AddDispatcher(&handler{refused: func(c *Connection) { refused <- c }})
		for i := range addrs {
			addrs[i].Nonce = 0 // the incarnation will be another one
		}
		c, err := client.ConnectTo(OSD, addrs)
		require.NoError(t, err)
		receiveOne(t, refused, "HandleRefused")

		second := newMessenger(t, Config{Name: EntityName{OSD, 1}})
		second.AddDispatcher(&handler{dispatch: echo})
		require.NoError(t, second.Bind(soon(t), addrs))
		r, err := c.Call(soon(t), NewMessage(1))
		require.NoError(t, err)
		r.Release()
	})
}

func TestWrongIncarnationRefuses(t *testing.T) {
	carriers(t, func(t *testing.T, scheme string) {
		server := newMessenger(t, Config{Name: EntityName{OSD, 1}, Nonce: 5})
		require.NoError(t, server.Bind(soon(t), anyAddr(scheme)))
		addrs := server.Addrs()
		require.EqualValues(t, 5, addrs[0].Nonce)
		addrs[0].Nonce = 6
		c, err := newMessenger(t, Config{}).ConnectTo(OSD, addrs)
		require.NoError(t, err)
		require.Eventually(t, func() bool { return server.Stats().HandshakesFailed > 0 }, patience, time.Millisecond)
		require.NotEqual(t, StateOpen, c.State())
		require.Zero(t, server.Stats().ConnectionsCreated)
		require.NotZero(t, server.Stats().WrongPeers)
		require.Eventually(t, func() bool { return errors.Is(c.Err(), ErrWrongPeer) }, patience, time.Millisecond, "the dialer is told")
		require.ErrorContains(t, c.Err(), "here is osd.1 at")
	})
}

func TestWrongKindOfPeer(t *testing.T) {
	carriers(t, func(t *testing.T, scheme string) {
		p := newPair(t, scheme, Config{}, Config{}, nil, nil)
		reset := make(chan *Connection, 1)
		client := newMessenger(t, Config{})
		client.AddDispatcher(&handler{reset: func(c *Connection) { reset <- c }})
		c, err := client.ConnectTo(Mon, p.server.Addrs())
		require.NoError(t, err)
		err = c.Ready(soon(t))
		require.ErrorIs(t, err, ErrWrongPeer)
		require.NotErrorIs(t, err, ErrProtocol)
		require.ErrorContains(t, err, "peer is osd, not mon")
		require.EqualValues(t, 1, client.Stats().WrongPeers)
		require.Same(t, c, receiveOne(t, reset, "HandleReset"))
	})
}

func TestPeerDies(t *testing.T) {
	carriers(t, func(t *testing.T, scheme string) {
		gone := make(chan *Connection, 1)
		running := make(chan struct{})
		hold := make(chan struct{})
		sh := &handler{dispatch: func(ctx context.Context, m *Message) bool {
			defer m.Release()
			close(running)
			<-ctx.Done()
			close(hold)
			return true
		}}
		p := newPair(t, scheme, Config{}, Config{}, sh, &handler{reset: func(c *Connection) { gone <- c }})
		called := make(chan error, 1)
		m := NewMessage(1)
		go func() {
			_, err := p.c.Call(soon(t), m)
			called <- err
		}()
		sc := receiveOne(t, p.accepted, "accepted connection")
		receiveOne(t, running, "message at the handler")
		sc.MarkDown() // the handler's context ends with its connection
		receiveOne(t, hold, "end of the handler's context")
		err := receiveOne(t, called, "end of the call")
		require.ErrorIs(t, err, ErrReset)
		m.Release()
		require.Same(t, p.c, receiveOne(t, gone, "HandleReset"))
		require.Equal(t, StateClosed, p.c.State())
		var f *FaultError
		require.ErrorAs(t, p.c.Err(), &f)
		m = NewMessage(1)
		require.ErrorIs(t, p.c.Send(soon(t), m), ErrReset)
		m.Release()
	})
}

func TestMarkDownIsQuiet(t *testing.T) {
	carriers(t, func(t *testing.T, scheme string) {
		reset := make(chan *Connection, 1)
		p := newPair(t, scheme, Config{}, Config{}, nil, &handler{reset: func(c *Connection) { reset <- c }})
		receiveOne(t, p.accepted, "accepted connection")
		p.c.MarkDown()
		p.c.MarkDown()
		receiveOne(t, p.resets, "the server's HandleReset")
		require.Empty(t, reset)
		m := NewMessage(1)
		require.ErrorIs(t, p.c.Send(soon(t), m), ErrClosed)
		_, err := p.c.Call(soon(t), m)
		require.ErrorIs(t, err, ErrClosed)
		m.Release()
	})
}

func TestCallsDeadlineAndCancelTravel(t *testing.T) {
	carriers(t, func(t *testing.T, scheme string) {
		type seen struct {
			deadline bool
			err      error
		}
		got := make(chan seen, 2)
		sh := &handler{dispatch: func(ctx context.Context, m *Message) bool {
			defer m.Release()
			_, ok := ctx.Deadline()
			<-ctx.Done()
			got <- seen{ok, ctx.Err()}
			return true
		}}
		p := newPair(t, scheme, Config{}, Config{}, sh, nil)

		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Millisecond)
		defer cancel()
		m := NewMessage(1)
		_, err := p.c.Call(ctx, m)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		m.Release()
		s := receiveOne(t, got, "end of the handler")
		require.True(t, s.deadline)
		require.Error(t, s.err)

		ctx, cancel = context.WithCancel(context.Background())
		m = NewMessage(1)
		go func() {
			for p.server.Stats().MessagesReceived < 3 { // call, its cancel, call
				time.Sleep(time.Millisecond)
			}
			cancel()
		}()
		_, err = p.c.Call(ctx, m)
		require.ErrorIs(t, err, context.Canceled)
		m.Release()
		s = receiveOne(t, got, "end of the handler")
		require.False(t, s.deadline)
		require.ErrorIs(t, s.err, context.Canceled)
	})
}

func TestHandlerPanicEndsItsConnectionOnly(t *testing.T) {
	carriers(t, func(t *testing.T, scheme string) {
		sh := &handler{dispatch: func(ctx context.Context, m *Message) bool {
			if m.Type == 66 {
				defer m.Release()
				panic("no")
			}
			return echo(ctx, m)
		}}
		p := newPair(t, scheme, Config{}, Config{}, sh, nil)
		second := newMessenger(t, Config{})
		c2, err := second.ConnectTo(OSD, p.server.Addrs())
		require.NoError(t, err)
		m := NewMessage(66)
		_, err = p.c.Call(soon(t), m)
		require.ErrorIs(t, err, ErrRemote)
		require.ErrorIs(t, err, ErrHandlerPanic, "the caller is told before the connection ends")
		m.Release()
		sc := receiveOne(t, p.resets, "HandleReset")
		require.ErrorIs(t, sc.Err(), ErrHandlerPanic)
		require.EqualValues(t, 1, p.server.Stats().HandlerPanics)
		r, err := c2.Call(soon(t), NewMessage(1))
		require.NoError(t, err)
		r.Release()
	})
}

func TestFastDispatchAndChain(t *testing.T) {
	carriers(t, func(t *testing.T, scheme string) {
		var fast syncSlice[uint16]
		sh := &handler{fast: func(m *Message) bool {
			if m.Type != 10 {
				return false
			}
			fast.add(m.Type)
			echo(context.Background(), m)
			return true
		}}
		p := newPair(t, scheme, Config{}, Config{}, sh, nil)
		p.server.AddDispatcher(&handler{dispatch: func(ctx context.Context, m *Message) bool {
			return m.Type == 20 && echo(ctx, m)
		}})
		for _, typ := range []uint16{10, 20} {
			r, err := p.c.Call(soon(t), NewMessage(typ))
			require.NoError(t, err)
			r.Release()
		}
		require.Equal(t, []uint16{10}, fast.all())
		require.NoError(t, p.c.Send(soon(t), NewMessage(30)))
		require.Eventually(t, func() bool { return p.server.Stats().Unhandled == 1 }, patience, time.Millisecond)
		require.EqualValues(t, 1, p.server.Stats().FastDispatched)
	})
}

func TestKeepaliveIsAnswered(t *testing.T) {
	carriers(t, func(t *testing.T, scheme string) {
		p := newPair(t, scheme, Config{KeepaliveInterval: -1}, Config{KeepaliveInterval: -1}, nil, nil)
		require.True(t, p.c.LastKeepaliveAck().IsZero())
		before := time.Now()
		p.c.SendKeepalive()
		require.Eventually(t, func() bool { return !p.c.LastKeepaliveAck().IsZero() }, patience, time.Millisecond)
		require.WithinRange(t, p.c.LastKeepaliveAck(), before.Add(-time.Microsecond), time.Now())
	})
}

func TestIdleAndDeadPeersAreNoticed(t *testing.T) {
	carriers(t, func(t *testing.T, scheme string) {
		reset := make(chan *Connection, 1)
		newPair(t, scheme, Config{}, Config{IdleTimeout: 100 * time.Millisecond, KeepaliveInterval: 10 * time.Millisecond, KeepaliveTimeout: -1},
			nil, &handler{reset: func(c *Connection) { reset <- c }})
		c := receiveOne(t, reset, "HandleReset")
		require.ErrorIs(t, c.Err(), ErrTimeout)
		require.ErrorContains(t, c.Err(), "nothing but keepalives")
	})
}

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

func TestRegisteredClientReplacesItself(t *testing.T) {
	carriers(t, func(t *testing.T, scheme string) {
		server := newMessenger(t, Config{Name: EntityName{OSD, 0}})
		server.SetPolicy(Client, StatelessRegisteredServer())
		server.AddDispatcher(&handler{dispatch: echo})
		require.NoError(t, server.Bind(soon(t), anyAddr(scheme)))
		reset := make(chan *Connection, 1)
		var cs []*Connection
		for range 2 { // the same incarnation, as after a fault that only it has noticed
			client := newMessenger(t, Config{Name: EntityName{Client, 7}, Nonce: 99})
			client.AddDispatcher(&handler{reset: func(c *Connection) { reset <- c }})
			c, err := client.ConnectTo(OSD, server.Addrs())
			require.NoError(t, err)
			require.NoError(t, c.Ready(soon(t)))
			cs = append(cs, c)
		}
		require.Same(t, cs[0], receiveOne(t, reset, "reset of the first"))
		r, err := cs[1].Call(soon(t), NewMessage(1))
		require.NoError(t, err)
		r.Release()
		require.Equal(t, 1, server.Stats().Open)
	})
}

func TestFeaturesAreRequired(t *testing.T) {
	carriers(t, func(t *testing.T, scheme string) {
		server := newMessenger(t, Config{Name: EntityName{OSD, 0}})
		pol := StatelessServer()
		pol.Required, pol.Supported = 1<<5, 1<<5|1<<6
		server.SetPolicy(Client, pol)
		require.NoError(t, server.Bind(soon(t), anyAddr(scheme)))
		poor, rich := newMessenger(t, Config{}), newMessenger(t, Config{})
		c, err := poor.ConnectTo(OSD, server.Addrs())
		require.NoError(t, err)
		require.ErrorIs(t, c.Ready(soon(t)), ErrFeatures)
		pol = LossyClient()
		pol.Supported = 1<<5 | 1<<7
		rich.SetPolicy(OSD, pol)
		c, err = rich.ConnectTo(OSD, server.Addrs())
		require.NoError(t, err)
		require.NoError(t, c.Ready(soon(t)))
		_, _, features := c.Peer()
		require.Equal(t, baseFeatures|1<<5, features)
	})
}

// A call that is sent on as a plain message is no call any more: an answer to it
// must not be taken for one to a call of the middleman's.
func TestForwardedCallIsNoCall(t *testing.T) {
	carriers(t, func(t *testing.T, scheme string) {
		back := newMessenger(t, Config{Name: EntityName{OSD, 1}})
		backHas := make(chan bool, 1)
		back.AddDispatcher(&handler{dispatch: func(ctx context.Context, m *Message) bool {
			_, deadline := m.Deadline()
			backHas <- deadline || m.flags != 0
			return echo(ctx, m)
		}})
		require.NoError(t, back.Bind(soon(t), anyAddr(scheme)))
		var toBack atomic.Pointer[Connection]
		sh := &handler{dispatch: func(ctx context.Context, m *Message) bool {
			if toBack.Load().Send(ctx, m.Retain()) != nil {
				m.Release()
			}
			return echo(ctx, m)
		}}
		p := newPair(t, scheme, Config{}, Config{}, sh, nil)
		c, err := p.server.ConnectTo(OSD, back.Addrs())
		require.NoError(t, err)
		toBack.Store(c)
		m := NewMessage(1)
		m.Data, _ = randomList(t, p.client.cfg.Arena, 10_000)
		r, err := p.c.Call(soon(t), m)
		require.NoError(t, err)
		require.EqualValues(t, 10_000, r.Data.Len())
		r.Release()
		require.False(t, receiveOne(t, backHas, "message at the back"))
	})
}

func TestLoopback(t *testing.T) {
	m := newMessenger(t, Config{})
	m.AddDispatcher(&handler{dispatch: echo})
	q := NewMessage(5)
	q.Front = append(q.Front, "me"...)
	var want []byte
	q.Data, want = randomList(t, m.cfg.Arena, 100)
	r, err := m.Loopback().Call(soon(t), q)
	require.NoError(t, err)
	require.Equal(t, "me", string(r.Front))
	require.Equal(t, want, bytesOf(r.Data))
	r.Release()
	name, _, _ := m.Loopback().Peer()
	require.Equal(t, m.Name(), name)
}

func TestPullAndPush(t *testing.T) {
	grantors(t, func(t *testing.T, scheme string, grantor Config) {
		const n = 9<<20 + 123
		type result struct {
			pulled []byte
			err    error
		}
		results := make(chan result, 1)
		sh := &handler{dispatch: func(ctx context.Context, m *Message) bool {
			defer m.Release()
			gs, rest, err := DecodeGrants(nil, m.Front)
			if err != nil {
				results <- result{nil, err}
				return true
			}
			ws, _, err := DecodeGrants(nil, rest)
			if err != nil {
				results <- result{nil, err}
				return true
			}
			dst, err := m.Conn.m.cfg.Arena.GetList(ctx, n-100, buffer.Anonymous)
			if err != nil {
				results <- result{nil, err}
				return true
			}
			defer dst.Release()
			if err = m.Conn.Pull(ctx, dst, gs, 100); err == nil {
				err = m.Conn.Push(ctx, ws, 7, dst)
			}
			results <- result{bytesOf(dst), err}
			echo(ctx, m.Retain())
			return true
		}}
		p := newPair(t, scheme, Config{}, grantor, sh, nil)
		require.True(t, p.c.CanGrant())
		src, want := randomList(t, p.client.cfg.Arena, n)
		defer src.Release()
		dst, _ := randomList(t, p.client.cfg.Arena, n)
		defer dst.Release()
		gs, err := p.c.Grant(soon(t), src, false)
		require.NoError(t, err)
		ws, err := p.c.Grant(soon(t), dst, true)
		require.NoError(t, err)
		require.Equal(t, len(gs)+len(ws), p.c.Stats().Grants)
		m := NewMessage(1)
		m.Front = AppendGrants(AppendGrants(m.Front, gs), ws)
		r, err := p.c.Call(soon(t), m)
		require.NoError(t, err)
		r.Release()
		res := receiveOne(t, results, "result")
		require.NoError(t, res.err)
		require.Equal(t, want[100:], res.pulled)
		require.Equal(t, want[100:], bytesOf(dst)[7:7+n-100], "the push is there before what was sent after it")

		require.NoError(t, p.c.Revoke(soon(t), gs))
		require.NoError(t, p.c.Revoke(soon(t), ws))
		require.Zero(t, p.c.Stats().Grants)
		m = NewMessage(1)
		m.Front = AppendGrants(AppendGrants(m.Front, gs), ws)
		require.NoError(t, p.c.Send(soon(t), m))
		res = receiveOne(t, results, "result")
		require.ErrorIs(t, res.err, ErrBadGrant)
		if scheme == SchemeTCP || gs[0].Framed {
			require.ErrorIs(t, res.err, ErrStaleGrant)
		} else {
			require.NotErrorIs(t, res.err, ErrStaleGrant, "on RDMA it ends the connection")
		}
	})
}

func TestPullOutOfRange(t *testing.T) {
	grantors(t, func(t *testing.T, scheme string, grantor Config) {
		p := newPair(t, scheme, Config{}, grantor, nil, nil)
		sc := receiveOne(t, p.accepted, "accepted connection")
		src, _ := randomList(t, p.client.cfg.Arena, 10_000)
		defer src.Release()
		gs, err := p.c.Grant(soon(t), src, false)
		require.NoError(t, err)
		dst, _ := randomList(t, p.server.cfg.Arena, 5000)
		defer dst.Release()
		require.ErrorIs(t, sc.Pull(soon(t), dst, gs, 5001), ErrInvalid)
		require.ErrorIs(t, sc.Push(soon(t), gs, 0, dst), ErrInvalid, "a read grant")
		require.NoError(t, sc.Pull(soon(t), dst, gs, 5000))
		forged := append([]Grant(nil), gs...)
		forged[0].Len += 1 << 20 // claims more than was granted
		err = sc.Pull(soon(t), dst, forged, 9000)
		require.ErrorIs(t, err, ErrBadGrant)
		if scheme != SchemeTCP && !gs[0].Framed { // the adapter sees to it, and ends the connection
			return
		}
		forged[0] = gs[0]
		forged[0].RKey += 1000
		require.ErrorIs(t, sc.Pull(soon(t), dst, forged, 0), ErrBadGrant)
		require.EqualValues(t, 2, p.client.Stats().BadGrants)

		w, err := p.c.Grant(soon(t), src, true)
		require.NoError(t, err)
		require.NoError(t, sc.Push(soon(t), w, 0, dst))
		forged[0] = w[0]
		forged[0].Len += 1 << 20
		require.ErrorIs(t, sc.Push(soon(t), forged, 9000, dst), ErrBadGrant)
		forged[0] = gs[0]
		forged[0].Write = true // it was granted for reading
		require.ErrorIs(t, sc.Push(soon(t), forged, 0, dst), ErrBadGrant)
		require.EqualValues(t, 4, p.client.Stats().BadGrants)
		require.NoError(t, sc.Pull(soon(t), dst, gs, 5000))
	})
}

func TestShutdownFlushes(t *testing.T) {
	carriers(t, func(t *testing.T, scheme string) {
		const n = 200
		got := make(chan struct{}, n)
		sh := &handler{dispatch: func(_ context.Context, m *Message) bool {
			m.Release()
			got <- struct{}{}
			return true
		}}
		p := newPair(t, scheme, Config{}, Config{}, sh, nil)
		l, _ := randomList(t, p.client.cfg.Arena, 100_000)
		for range n {
			m := NewMessage(1)
			m.Data = l.Share()
			require.NoError(t, p.c.Send(soon(t), m))
		}
		l.Release()
		require.NoError(t, p.client.Shutdown(soon(t)))
		for range n {
			receiveOne(t, got, "message sent before the shutdown")
		}
		m := NewMessage(1)
		require.ErrorIs(t, p.c.Send(soon(t), m), ErrClosed)
		m.Release()
		_, err := p.client.ConnectTo(OSD, p.server.Addrs())
		require.ErrorIs(t, err, ErrClosed)
		require.NoError(t, p.client.Shutdown(soon(t)), "again")
	})
}

func TestShutdownEndsAtItsDeadline(t *testing.T) {
	carriers(t, func(t *testing.T, scheme string) {
		block := make(chan struct{})
		entered := make(chan struct{})
		sh := &handler{dispatch: func(ctx context.Context, m *Message) bool {
			defer m.Release()
			close(entered)
			<-block
			return true
		}}
		p := newPair(t, scheme, Config{}, Config{}, sh, nil)
		require.NoError(t, p.c.Send(soon(t), NewMessage(1)))
		receiveOne(t, entered, "handler")
		ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
		defer cancel()
		begin := time.Now()
		err := p.server.Shutdown(ctx)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorContains(t, err, "1 handlers still running")
		require.Less(t, time.Since(begin), 10*time.Second)
		close(block)
	})
}

var errOpened = errors.New("opened")

func neverOpened(conn.Config) (*conn.Endpoint, error) { return nil, errOpened }

func TestConfigRefusals(t *testing.T) {
	a := newArena(t)
	for _, cfg := range []Config{
		{}, {Name: EntityName{OSD, 0}}, {Name: EntityName{OSD, 0}, Arena: a, Workers: -1},
		{Name: EntityName{OSD, 0}, Arena: a, MaxFront: 1 << 30},
		{Name: EntityName{OSD, 0}, Arena: a, MaxData: 1 << 33},
		{Name: EntityName{OSD, 0}, Arena: a, Transports: []Transport{{Scheme: SchemeTCP, Open: neverOpened}}},
		{Name: EntityName{OSD, 0}, Arena: a, Transports: []Transport{{Open: neverOpened}}},
		{Name: EntityName{OSD, 0}, Arena: a, Transports: []Transport{{Scheme: SchemeIWARP}}},
		{Name: EntityName{OSD, 0}, Arena: a, Transports: []Transport{{Scheme: "roce", Open: neverOpened}}},
		{Name: EntityName{OSD, 0}, Arena: a, Transports: []Transport{
			{Scheme: SchemeRDMA, Open: neverOpened}, {Scheme: SchemeIWARP, Open: neverOpened}, {Scheme: SchemeRDMA, Open: neverOpened},
		}},
	} {
		_, err := New(cfg)
		require.ErrorIs(t, err, ErrInvalid)
		require.NotErrorIs(t, err, errOpened)
	}
	m := newMessenger(t, Config{Arena: a, Transports: []Transport{}})
	_, err := m.ConnectTo(OSD, AddrVec{{URL: "rdma://127.0.0.1:1"}})
	require.ErrorIs(t, err, ErrInvalid)
	_, err = m.ConnectTo(OSD, AddrVec{{URL: "127.0.0.1:1"}})
	require.ErrorIs(t, err, ErrInvalid)
	require.ErrorIs(t, m.Bind(soon(t), anyAddr(schemeDevice)), ErrInvalid)
}
