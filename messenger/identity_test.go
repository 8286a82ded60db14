package messenger

import (
	"crypto/tls"
	"crypto/x509"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
)

// Both sides know the number that the server has given the client, and what the
// method says of the other: as soon as a handler sees the connection, and anew with
// each transport.
func TestIdentity(t *testing.T) {
	carriers(t, func(t *testing.T, scheme string) {
		ca := newCA(t, "ours")
		method := func(cert *atomic.Pointer[tls.Certificate]) *AuthTLS {
			a := ca.method(nil)
			a.Certificate = func() (*tls.Certificate, error) { return cert.Load(), nil }
			a.Identity = func(peer EntityName, cert *x509.Certificate) any {
				return peer.String() + " " + strings.Join(cert.DNSNames, " ")
			}
			return a
		}
		var scert, ccert atomic.Pointer[tls.Certificate]
		scert.Store(ca.issue(nil, "osd.0"))
		ccert.Store(ca.issue(nil, "client.*"))
		seen := make(chan any, 4)
		type known struct {
			c        *Connection
			identity any
			id       uint64
		}
		accepted := make(chan known, 4)
		server := newMessenger(t, Config{Name: EntityName{OSD, 0}, Auth: []Auth{method(&scert)}})
		server.SetPolicy(Client, StatefulServer())
		server.AddDispatcher(&handler{
			accept: func(c *Connection) { accepted <- known{c, c.Identity(), c.GlobalID()} },
			fast: func(m *Message) bool {
				seen <- m.Conn.Identity()
				m.Release()
				return true
			},
		})
		require.NoError(t, server.Bind(soon(t), anyAddr(scheme)))
		client := newMessenger(t, Config{Auth: []Auth{method(&ccert)}})
		client.SetPolicy(OSD, LosslessClient())
		c, err := client.ConnectTo(OSD, server.Addrs())
		require.NoError(t, err)
		require.NoError(t, c.Ready(soon(t)))
		require.Equal(t, "osd.0 osd.0", c.Identity())
		k := receiveOne(t, accepted, "accepted connection")
		require.Equal(t, "client.? client.*", strings.Replace(k.identity.(string), EntityName{Client, -1}.String(), "client.?", 1))
		peer, _, _ := k.c.Peer()
		require.NotZero(t, k.id)
		require.EqualValues(t, peer.Num, k.id)
		require.Equal(t, k.id, c.GlobalID())
		require.NoError(t, c.Send(soon(t), NewMessage(1)))
		require.Equal(t, k.identity, receiveOne(t, seen, "message"))

		ccert.Store(ca.issue(nil, "client.*", "may.write"))
		c.mu.Lock()
		l := c.link
		c.mu.Unlock()
		l.fail("test", errInjected)
		require.NoError(t, c.Send(soon(t), NewMessage(1)))
		require.Contains(t, receiveOne(t, seen, "message"), "may.write")
		require.EqualValues(t, 1, c.Stats().Reconnects)
		require.Equal(t, k.id, c.GlobalID())
		require.Equal(t, k.id, k.c.GlobalID())

		require.Nil(t, client.Loopback().Identity())
		require.Zero(t, client.Loopback().GlobalID())
	})
}
