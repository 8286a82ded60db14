package messenger

import (
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/argonaut-rdma/argonaut/messenger/internal/session"
)

// respelled is addrs without nonces, the host as an IPv4 address within IPv6.
func respelled(addrs AddrVec) AddrVec {
	var v AddrVec
	for _, a := range addrs {
		host, port, _ := net.SplitHostPort(a.HostPort())
		v = append(v, EntityAddr{URL: a.Scheme() + "://" + net.JoinHostPort("::ffff:"+host, port)})
	}
	return v
}

// Two spellings of one place are one peer, which knows one session of ours: the
// second Connection says so, and does no harm to the first.
func TestDuplicateConnection(t *testing.T) {
	carriers(t, func(t *testing.T, scheme string) {
		for _, policies := range [][2]Policy{{LosslessPeer(), LosslessPeer()}, {StatefulServer(), LosslessClient()}} {
			seen := make(chan uint64, 100)
			p := newPairOf(t, scheme, policies[0], policies[1], &handler{fast: func(m *Message) bool {
				seen <- m.TID
				m.Release()
				return true
			}})
			reset := make(chan *Connection, 4)
			p.client.AddDispatcher(&handler{reset: func(c *Connection) { reset <- c }})
			send := func(c *Connection, tid uint64) {
				m := NewMessage(1)
				m.TID = tid
				require.NoError(t, c.Send(soon(t), m))
			}
			send(p.c, 1)
			require.EqualValues(t, 1, receiveOne(t, seen, "message"))

			c, err := p.client.ConnectTo(OSD, respelled(p.server.Addrs()))
			require.NoError(t, err)
			require.NotSame(t, p.c, c)
			err = c.Ready(soon(t))
			require.ErrorIs(t, err, ErrDuplicate)
			require.ErrorContains(t, err, "leads: use that")
			require.Equal(t, c, receiveOne(t, reset, "HandleReset"))
			m := NewMessage(1)
			require.ErrorIs(t, c.Send(soon(t), m), ErrDuplicate)
			m.Release()
			for i := range uint64(20) {
				send(p.c, 2+i)
			}
			for i := range uint64(20) {
				require.Equal(t, 2+i, receiveOne(t, seen, "message"))
			}
			require.Zero(t, p.c.Stats().Reconnects)

			// Once the first is down the other spelling is as good.
			p.c.MarkDown()
			c, err = p.client.ConnectTo(OSD, respelled(p.server.Addrs()))
			require.NoError(t, err)
			require.NoError(t, c.Ready(soon(t)))
			send(c, 99)
			require.EqualValues(t, 99, receiveOne(t, seen, "message"))
		}
	})
}

// Lossy sessions may be many.
func TestDuplicateLossy(t *testing.T) {
	carriers(t, func(t *testing.T, scheme string) {
		p := newPairOf(t, scheme, StatelessServer(), LossyClient(), &handler{dispatch: echo})
		c, err := p.client.ConnectTo(OSD, respelled(p.server.Addrs()))
		require.NoError(t, err)
		require.NotSame(t, p.c, c)
		for _, c := range []*Connection{p.c, c} {
			r, err := c.Call(soon(t), NewMessage(3))
			require.NoError(t, err)
			r.Release()
		}
	})
}

// Of several incarnations at a place the one is known that the session is open with,
// else that of the last session; and what leads to another incarnation is no duplicate.
func TestIncarnationsAtAPlace(t *testing.T) {
	m := newMessenger(t, Config{})
	place := EntityAddr{URL: "tcp://192.0.2.1:6800"}
	at := func(nonce uint32, seq uint64) *Connection {
		c := m.newConnection(OSD, LosslessPeer())
		t.Cleanup(c.cancel)
		c.addrs = AddrVec{{URL: place.URL, Nonce: nonce}}
		c.setDial(c.addrs)
		c.session.State, c.session.PeerGlobalSeq = session.Standby, seq
		return c
	}
	old, last := at(5, 1000), at(6, 3)
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, c := range []*Connection{old, last} {
		m.register(c, c.addrs)
		defer m.unregister(c)
	}
	require.Same(t, last, m.known(OSD, AddrVec{place}), "whatever the peers have counted")
	old.session.State = session.Open
	require.Same(t, old, m.known(OSD, AddrVec{place}))
	old.session.State, last.session.State = session.Standby, session.Closed
	require.Same(t, old, m.known(OSD, AddrVec{place}))
	last.session.State = session.Standby
	old.metAt = m.clock()
	require.Same(t, old, m.known(OSD, AddrVec{place}), "the other has met nobody")

	m.unbind(last, AddrVec{place})
	require.Equal(t, AddrVec{place}, last.dial)
	to := reached{c: old, nonce: 5}
	require.False(t, to.leadsTo(last, place), "its peer is the next one")
	require.True(t, to.leadsTo(old, place))
	to = reached{c: last}
	require.False(t, to.leadsTo(old, old.dial[0]))
	require.True(t, to.leadsTo(last, last.addrs[0]))
	require.True(t, to.leadsTo(at(7, 1), place), "perhaps")

	last.metAt, old.session.State = m.clock(), session.Open
	met := m.at(last.metAt)
	to = reached{l: &link{since: met.Add(-time.Second)}, c: old, nonce: 5}
	require.False(t, to.leadsTo(last, place), "its peer was there later, it has not noticed")
	next := at(7, 1)
	to = reached{l: &link{since: met.Add(time.Second)}, c: next, nonce: 7}
	require.False(t, to.leadsTo(last, place), "it is not open yet")
	next.session.State = session.Open
	require.True(t, to.leadsTo(last, place), "the peer of last is gone")
}
