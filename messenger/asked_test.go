package messenger

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// gatedConn does not read while gate is locked.
type gatedConn struct {
	net.Conn
	gate *sync.Mutex
}

func (c gatedConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.gate.Lock()
	defer c.gate.Unlock()
	return n, err
}

// Whoever pulls more at a time than the peer answers waits, and is no fault.
func TestManyPulls(t *testing.T) {
	const pulls, size = 600, 64 << 10 // more than what a socket holds
	var gate sync.Mutex
	dial := func(ctx context.Context, hostport string) (net.Conn, error) {
		c, err := new(net.Dialer).DialContext(ctx, "tcp", hostport)
		return gatedConn{c, &gate}, err
	}
	p := newPair(t, SchemeTCP, Config{}, Config{DialStream: dial}, nil, nil)
	sc := receiveOne(t, p.accepted, "accepted connection")
	src, want := randomList(t, p.server.cfg.Arena, size)
	defer src.Release()
	gs, err := sc.Grant(soon(t), src, false)
	require.NoError(t, err)
	gate.Lock() // no answer arrives
	var begun atomic.Int64
	done := make(chan error, pulls)
	for range pulls {
		dst, err := p.client.cfg.Arena.GetList(soon(t), size, p.client.owner)
		require.NoError(t, err)
		defer dst.Release()
		go func() {
			begun.Add(1)
			err := p.c.Pull(soon(t), dst, gs, 0)
			if err == nil && string(bytesOf(dst)) != string(want) {
				err = ErrInvalid
			}
			done <- err
		}()
	}
	l := sc.linkNow()
	b := l.t.frames()
	serving := func() int {
		b.mu.Lock()
		defer b.mu.Unlock()
		return b.serving
	}
	require.Eventually(t, func() bool {
		return begun.Load() == pulls && p.c.Stats().QueuedMessages == 0 && serving() > 0 || l.failure() != nil
	}, patience, time.Millisecond)
	gate.Unlock()
	for range pulls {
		require.NoError(t, receiveOne(t, done, "end of a pull"))
	}
	require.Zero(t, p.client.Stats().Faults)
	require.Zero(t, p.server.Stats().Faults)
	require.NoError(t, sc.Revoke(soon(t), gs))
}

// A question that has no place waits for one until its context, or the link,
// ends.
func TestAskedIsBounded(t *testing.T) {
	carriers(t, func(t *testing.T, scheme string) {
		p := newPair(t, scheme, Config{}, Config{}, nil, nil)
		l := p.c.linkNow()
		var b streamBulk
		b.init(l, true, 1)
		ask := func(ctx context.Context) (*Message, *pull, error) {
			m, q := NewMessage(typePull), &pull{ch: make(chan error, 1)}
			return m, q, b.await(ctx, m, q)
		}
		var last *Message
		for range maxAsked {
			m, _, err := ask(soon(t))
			require.NoError(t, err)
			last = m
		}
		over, cancel := context.WithCancel(t.Context())
		cancel()
		_, _, err := ask(over)
		require.ErrorIs(t, err, context.Canceled)
		require.NotNil(t, b.take(last.TID))
		require.Nil(t, b.take(last.TID), "once")
		_, _, err = ask(soon(t))
		require.NoError(t, err)
		waiting := make(chan error, 1)
		go func() {
			_, _, err := ask(soon(t))
			waiting <- err
		}()
		l.drop()
		require.ErrorIs(t, receiveOne(t, waiting, "end of a question"), ErrReset)
	})
}
