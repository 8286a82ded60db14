package messenger

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/argonaut-rdma/argonaut/test/env"
)

// atHost is addrs with another host.
func atHost(addrs AddrVec, host string) AddrVec {
	v := make(AddrVec, len(addrs))
	for i, a := range addrs {
		_, port, _ := net.SplitHostPort(a.HostPort())
		v[i].URL = a.Scheme() + "://" + net.JoinHostPort(host, port)
	}
	return v
}

// A name is resolved by Config.Resolve, on each carrier, and each of its addresses
// is tried, in order: the peer is told the one that was meant.
func TestResolve(t *testing.T) {
	env.UserSpace(t, "a device listens on its own address alone")
	carriers(t, func(t *testing.T, scheme string) {
		var asked syncSlice[string]
		server := newMessenger(t, Config{Name: EntityName{OSD, 0}})
		server.AddDispatcher(&handler{dispatch: echo})
		require.NoError(t, server.Bind(soon(t), anyAddr(scheme)))
		client := newMessenger(t, Config{Resolve: func(_ context.Context, host string) ([]netip.Addr, error) {
			asked.add(host)
			if host != "node.test" {
				return nil, &net.DNSError{Err: "no such host", Name: host, IsNotFound: true}
			}
			// Nobody listens at the first two.
			return []netip.Addr{netip.MustParseAddr("127.0.0.2"), netip.MustParseAddr("::ffff:127.0.0.3"), netip.MustParseAddr("127.0.0.1")}, nil
		}})
		refused := make(chan *Connection, 8)
		client.AddDispatcher(&handler{refused: func(c *Connection) { refused <- c }})
		c, err := client.ConnectTo(OSD, atHost(server.Addrs(), "node.test"))
		require.NoError(t, err)
		r, err := c.Call(soon(t), NewMessage(1))
		require.NoError(t, err)
		r.Release()
		st := client.Stats()
		require.EqualValues(t, 3, st.Attempts)
		require.Zero(t, st.FallbacksRefused+st.FallbacksOther, "it is one address")
		require.Equal(t, []string{"node.test"}, asked.all())
		for range 2 {
			require.Same(t, c, receiveOne(t, refused, "HandleRefused"))
		}

		// One that can not be resolved gives way to the next.
		c, err = client.ConnectAnonymous(OSD, append(atHost(server.Addrs(), "nowhere.test"), server.Addrs()...))
		require.NoError(t, err)
		require.NoError(t, c.Ready(soon(t)))
		require.EqualValues(t, 1, client.Stats().FallbacksOther)
		require.Equal(t, []string{"node.test", "nowhere.test"}, asked.all(), "numbers are not resolved")
	})
}

// An error of Resolve, or no address, is the connection's error.
func TestResolveFails(t *testing.T) {
	broken := errors.New("broken")
	for name, answer := range map[string]error{"error": broken, "no address": nil} {
		t.Run(name, func(t *testing.T) {
			client := newMessenger(t, Config{Resolve: func(context.Context, string) ([]netip.Addr, error) { return nil, answer }})
			for _, scheme := range []string{SchemeTCP, schemeDevice} {
				c, err := client.ConnectTo(OSD, AddrVec{{URL: scheme + "://node.test:1"}})
				require.NoError(t, err)
				require.Eventually(t, func() bool { return c.Err() != nil }, patience, time.Millisecond)
				require.ErrorContains(t, c.Err(), "node.test")
				if answer != nil {
					require.ErrorIs(t, c.Err(), answer)
				} else {
					dns, ok := errors.AsType[*net.DNSError](c.Err())
					require.True(t, ok && dns.IsNotFound, "%v", c.Err())
				}
				require.Equal(t, StateConnecting, c.State(), "it goes on trying")
				c.MarkDown()
			}
		})
	}
}
