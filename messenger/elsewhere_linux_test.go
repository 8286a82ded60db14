package messenger

import (
	"context"
	"net"
	"testing"

	"github.com/stretchr/testify/require"
)

// A client that nobody can connect to has the address that the server sees. When it
// comes from another one, as by another transport, it goes on with the session.
func TestSessionOfAClientElsewhere(t *testing.T) {
	got := make(chan uint16, 4)
	server := newMessenger(t, Config{Name: EntityName{OSD, 0}})
	server.SetPolicy(Client, StatefulServer())
	server.AddDispatcher(collect(got))
	require.NoError(t, server.Bind(soon(t), anyAddr(SchemeTCP)))
	dials := byte(0)
	client := newMessenger(t, Config{DialStream: func(ctx context.Context, addr string) (net.Conn, error) {
		dials++ // one at a time
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 10+dials)}}
		return d.DialContext(ctx, "tcp", addr)
	}})
	client.SetPolicy(OSD, LosslessClient())
	c, err := client.ConnectTo(OSD, server.Addrs())
	require.NoError(t, err)
	for n := range uint16(3) {
		sendTypes(t, c, n+1)
		require.Equal(t, n+1, receiveOne(t, got, "message"))
		c.mu.Lock()
		l := c.link
		c.mu.Unlock()
		l.fail("test", errInjected)
	}
	sendTypes(t, c, 4)
	require.EqualValues(t, 4, receiveOne(t, got, "message"))
	require.EqualValues(t, 3, c.Stats().Reconnects)
	require.Zero(t, client.Stats().RemoteResets)
}
