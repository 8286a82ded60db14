package messenger

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

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
