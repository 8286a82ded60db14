package messenger

import (
	"context"
	"encoding/binary"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
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

		// Who is added in front is asked first, also before FastDispatch of the others.
		var front syncSlice[uint16]
		p.server.AddDispatcherFront(&handler{dispatch: func(_ context.Context, m *Message) bool {
			front.add(m.Type)
			return false
		}})
		p.server.AddDispatcherFront(&handler{fast: func(m *Message) bool {
			front.add(m.Type)
			return m.Type == 10 && echo(context.Background(), m)
		}})
		for _, typ := range []uint16{10, 20} {
			r, err := p.c.Call(soon(t), NewMessage(typ))
			require.NoError(t, err)
			r.Release()
		}
		require.Equal(t, []uint16{10, 20, 20}, front.all(), "the last one first")
		require.Equal(t, []uint16{10}, fast.all(), "those behind are not asked for what was consumed")
		require.EqualValues(t, 2, p.server.Stats().FastDispatched)
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
