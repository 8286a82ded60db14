package messenger

import (
	"context"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/argonaut-rdma/argonaut/buffer"
)

// slowConn is a link that carries a piece of 64 KiB per pause.
type slowConn struct {
	net.Conn
	pause time.Duration
}

func (c slowConn) Write(p []byte) (n int, err error) {
	for len(p) > 0 && err == nil {
		if len(p) > 64<<10 {
			time.Sleep(c.pause)
		}
		var m int
		m, err = c.Conn.Write(p[:min(len(p), 64<<10)])
		n += m
		p = p[m:]
	}
	return n, err
}

// A peer is alive while a frame of its comes in, however long that takes.
func TestLongFrameIsASignOfLife(t *testing.T) {
	if testing.Short() {
		t.Skip("waits out a timeout that is long enough for a busy machine")
	}
	t.Parallel()
	const timeout = 2 * time.Second
	got := make(chan *Message, 1)
	server := newMessenger(t, Config{Name: EntityName{OSD, 0}, KeepaliveInterval: timeout / 4, KeepaliveTimeout: timeout})
	server.AddDispatcher(&handler{dispatch: func(_ context.Context, m *Message) bool { got <- m; return true }})
	require.NoError(t, server.Bind(soon(t), anyAddr(SchemeTCP)))
	client := newMessenger(t, Config{KeepaliveTimeout: -1, DialStream: func(ctx context.Context, at string) (net.Conn, error) {
		nc, err := new(net.Dialer).DialContext(ctx, "tcp", at)
		return slowConn{nc, timeout / 8}, err
	}})
	c, err := client.ConnectTo(OSD, server.Addrs())
	require.NoError(t, err)
	m := NewMessage(1)
	var want []byte
	m.Data, want = randomList(t, client.cfg.Arena, 1<<20) // 16 pieces: twice the timeout
	began := time.Now()
	require.NoError(t, c.Send(soon(t), m))
	r := receiveOne(t, got, "message")
	require.Greater(t, time.Since(began), timeout)
	require.Equal(t, want, bytesOf(r.Data))
	r.Release()
	require.NoError(t, c.Err())
}

// A peer is not silent while it is we who have no memory for what it sends.
func TestWantOfMemoryIsNoSilence(t *testing.T) {
	if testing.Short() {
		t.Skip("waits out a timeout that is long enough for a busy machine")
	}
	carriers(t, func(t *testing.T, scheme string) {
		t.Parallel()
		const timeout = 2 * time.Second
		got := make(chan *Message, 1)
		server := newMessenger(t, Config{Name: EntityName{OSD, 0}, KeepaliveInterval: timeout / 4, KeepaliveTimeout: timeout})
		server.AddDispatcher(&handler{dispatch: func(_ context.Context, m *Message) bool { got <- m; return true }})
		require.NoError(t, server.Bind(soon(t), anyAddr(scheme)))
		client := newMessenger(t, Config{})
		c, err := client.ConnectTo(OSD, server.Addrs())
		require.NoError(t, err)
		require.NoError(t, c.Send(soon(t), NewMessage(1)))
		receiveOne(t, got, "message").Release()

		var held []buffer.RDMABuffer // all chunks
		for {
			b, ok := server.cfg.Arena.TryGet(1<<20, buffer.Anonymous)
			if !ok {
				break
			}
			held = append(held, b)
		}
		m := NewMessage(2)
		var want []byte
		m.Data, want = randomList(t, client.cfg.Arena, 4<<20)
		require.NoError(t, c.Send(soon(t), m))
		require.Never(t, func() bool { return c.State() != StateOpen || server.Stats().Open != 1 }, timeout+time.Second, 10*time.Millisecond)
		for _, b := range held {
			b.Release()
		}
		r := receiveOne(t, got, "message that waited")
		require.Equal(t, want, bytesOf(r.Data))
		r.Release()
		require.NoError(t, c.Err())
	})
}
