package messenger

import (
	"context"
	"net"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// poorListener has no file descriptors left for a while.
type poorListener struct {
	net.Listener
	failures atomic.Int32
}

func (l *poorListener) Accept() (net.Conn, error) {
	if l.failures.Add(-1) >= 0 {
		return nil, &net.OpError{Op: "accept", Net: "tcp", Addr: l.Addr(), Err: syscall.EMFILE}
	}
	return l.Listener.Accept()
}

// A failure to accept that passes does not end the listener; it is logged.
func TestAcceptFailures(t *testing.T) {
	var lines syncSlice[string]
	p := newPair(t, SchemeTCP, Config{Logger: newLogger(&lines), ListenStream: func(ctx context.Context, hostport string) (net.Listener, error) {
		var lc net.ListenConfig
		ln, err := lc.Listen(ctx, "tcp", hostport)
		if err != nil {
			return nil, err
		}
		poor := &poorListener{Listener: ln}
		poor.failures.Store(3)
		return poor, nil
	}}, Config{}, nil, nil)
	r, err := p.c.Call(soon(t), NewMessage(1))
	require.NoError(t, err)
	r.Release()
	require.Equal(t, 3, strings.Count(lines.String(), "accept failed"))
}

// While it pauses after a failure to accept a messenger can be shut down.
func TestShutdownWhileAcceptFails(t *testing.T) {
	m := newMessenger(t, Config{Name: EntityName{OSD, 0}, ListenStream: func(ctx context.Context, hostport string) (net.Listener, error) {
		var lc net.ListenConfig
		ln, err := lc.Listen(ctx, "tcp", hostport)
		if err != nil {
			return nil, err
		}
		poor := &poorListener{Listener: ln}
		poor.failures.Store(1 << 30)
		return poor, nil
	}})
	require.NoError(t, m.Bind(soon(t), anyAddr(SchemeTCP)))
	require.NoError(t, m.Shutdown(soon(t)))
}

// Rebind, on each carrier: the new incarnation is reached at its new address, and
// who means the old one is not taken to it.
func TestRebind(t *testing.T) {
	carriers(t, func(t *testing.T, scheme string) {
		resets := make(chan *Connection, 4)
		p := newPair(t, scheme, Config{}, Config{}, nil, &handler{reset: func(c *Connection) { resets <- c }})
		before := p.server.Addrs()
		require.NoError(t, p.server.Rebind(soon(t)))
		require.Same(t, p.c, receiveOne(t, resets, "HandleReset"))
		after := p.server.Addrs()
		require.Len(t, after, 1)
		require.NotEqual(t, before[0].URL, after[0].URL)
		require.NotEqual(t, before[0].Nonce, after[0].Nonce)

		c, err := p.client.ConnectTo(OSD, after)
		require.NoError(t, err)
		r, err := c.Call(soon(t), NewMessage(1))
		require.NoError(t, err)
		r.Release()

		old, err := p.client.ConnectTo(OSD, before)
		require.NoError(t, err)
		require.NotSame(t, c, old)
		require.Eventually(t, func() bool { return old.Err() != nil }, patience, time.Millisecond)
		require.NotEqual(t, StateOpen, old.State())
		require.ErrorAs(t, old.Err(), new(errRefused), "nobody listens there any more")
	})
}
