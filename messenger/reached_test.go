package messenger

import (
	"fmt"
	"net"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/argonaut-rdma/argonaut/test/env"
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

// needInterfaces skips where a messenger can not have two interfaces.
func needInterfaces(t *testing.T) {
	t.Helper()
	env.UserSpace(t, "a device is bound to its own address")
	if runtime.GOOS != "linux" {
		t.Skip("127.0.0.2 is an address of Linux's loopback alone")
	}
}

// interfaces is the place of m, which is bound to no particular host, on two of them.
func interfaces(t *testing.T, m *Messenger) (v [2]AddrVec) {
	t.Helper()
	a := m.Addrs()[0]
	port, ok := portOf(a)
	require.True(t, ok)
	for i := range v {
		v[i] = AddrVec{{URL: fmt.Sprintf("%s://127.0.0.%d:%d", a.Scheme(), i+1, port)}}
	}
	return v
}

// Two interfaces of a peer are one peer, which is found out before it hears of the
// second Connection: the first one is not touched, what was sent on the second one
// has not arrived, and ConnectTo gives the first one for either.
func TestDuplicateByAnotherInterface(t *testing.T) {
	needInterfaces(t)
	carriers(t, func(t *testing.T, scheme string) {
		for _, policies := range [][2]Policy{{LosslessPeer(), LosslessPeerReuse()}, {StatefulServer(), LosslessClient()}} {
			var got syncSlice[uint32]
			server := newMessenger(t, Config{Name: EntityName{OSD, 0}})
			server.SetPolicy(Mon, policies[0])
			server.AddDispatcher(tellNumbers(&got))
			require.NoError(t, server.Bind(soon(t), AddrVec{{URL: scheme + "://0.0.0.0:0"}}))
			at := interfaces(t, server)
			client := newMessenger(t, Config{Name: EntityName{Mon, 0}})
			client.SetPolicy(OSD, policies[1])
			require.NoError(t, client.Bind(soon(t), anyAddr(scheme)))

			// At once, each with something to send.
			var both [2]*Connection
			var sent [2]uint32
			for i := range both {
				var err error
				both[i], err = client.ConnectTo(OSD, at[i])
				require.NoError(t, err)
				for ; sent[i] < 10; sent[i]++ {
					m := ofNumber(1, uint32(i)*100+sent[i])
					if err := both[i].Send(soon(t), m); err != nil {
						require.ErrorIs(t, err, ErrDuplicate, "it is known already")
						m.Release()
						break
					}
				}
			}
			require.NotSame(t, both[0], both[1])
			stays := 0
			if err := both[0].Ready(soon(t)); err != nil {
				require.ErrorIs(t, err, ErrDuplicate)
				stays = 1
			}
			c, other := both[stays], both[1-stays]
			require.NoError(t, c.Ready(soon(t)))
			require.ErrorIs(t, other.Ready(soon(t)), ErrDuplicate)
			require.EqualValues(t, 10, sent[stays])
			require.EqualValues(t, sent[1-stays], other.Stats().Undelivered)
			for range 3 {
				again, err := client.ConnectTo(OSD, at[1-stays])
				require.NoError(t, err)
				require.Same(t, c, again)
			}
			r, err := c.Call(soon(t), ofNumber(2, uint32(stays)*100+10))
			require.NoError(t, err)
			r.Release()
			all := got.all()
			require.Len(t, all, 11)
			for n, v := range all {
				require.EqualValues(t, stays*100+n, v)
			}
			require.Zero(t, c.Stats().Reconnects)
			require.Zero(t, server.Stats().RemoteResets)
			require.Equal(t, 1, server.Stats().Open)

			// Once it is down the other address is as good; and another incarnation is
			// another peer.
			connect := func(at AddrVec) *Connection {
				t.Helper()
				for {
					c, err := client.ConnectTo(OSD, at)
					require.NoError(t, err)
					if err = c.Ready(soon(t)); err == nil {
						return c
					}
					require.ErrorIs(t, err, ErrDuplicate, "the peer has connected to us meanwhile")
				}
			}
			c.MarkDown()
			c = connect(at[1-stays])
			require.NoError(t, server.Rebind(soon(t)))
			require.NotSame(t, c, connect(interfaces(t, server)[stays]))
		}
	})
}

// A peer that connects to us while we connect to it by an address that it does not
// tell is the one that we connect to: it is one session, as of any race.
func TestRaceByAnotherInterface(t *testing.T) {
	needInterfaces(t)
	var us [2]*Messenger
	held, goOn := make(chan struct{}), make(chan struct{})
	var first sync.Once
	for i := range us {
		cfg := Config{Name: EntityName{OSD, int64(i)}}
		if i == 0 {
			cfg.Inject = &Inject{Step: func(p Step) error {
				if p.Frame == "CLIENT_IDENT" && p.Sending {
					first.Do(func() {
						close(held)
						<-goOn
					})
				}
				return nil
			}}
		}
		us[i] = newMessenger(t, cfg)
		us[i].SetPolicy(OSD, LosslessPeer())
		us[i].AddDispatcher(&handler{dispatch: echo})
	}
	release := sync.OnceFunc(func() { close(goOn) })
	defer release()
	require.NoError(t, us[0].Bind(soon(t), anyAddr(SchemeTCP)))
	require.NoError(t, us[1].Bind(soon(t), AddrVec{{URL: "tcp://0.0.0.0:0"}}))
	there, err := us[0].ConnectTo(OSD, interfaces(t, us[1])[1])
	require.NoError(t, err)
	receiveOne(t, held, "CLIENT_IDENT")
	back, err := us[1].ConnectTo(OSD, us[0].Addrs())
	require.NoError(t, err)
	require.Eventually(t, func() bool { return us[1].Stats().RacesLost > 0 || back.State() == StateOpen }, patience, time.Millisecond)
	release()
	for _, c := range []*Connection{there, back} {
		r, err := c.Call(soon(t), NewMessage(1))
		require.NoError(t, err)
		r.Release()
	}
	for _, m := range us {
		m.mu.Lock()
		n := len(m.connections)
		m.mu.Unlock()
		require.Equal(t, 1, n, "there is none that nobody knows of")
		require.Equal(t, 1, m.Stats().Open)
		require.Zero(t, m.Stats().RemoteResets)
		require.Zero(t, m.Stats().Skipped)
	}
}

// Who comes to itself by an address that it does not know to be its own is told so.
func TestDuplicateOfTheLoopback(t *testing.T) {
	m := newMessenger(t, Config{Name: EntityName{OSD, 0}})
	c := m.newConnection(OSD, LosslessPeer())
	l := m.newLink(SchemeTCP, "192.0.2.1:6800", false)
	require.ErrorIs(t, m.meet(c, l, m.instance.Load()), ErrDuplicate)
	require.NoError(t, m.meet(c, l, 0))
	lossy := m.newConnection(OSD, LossyClient())
	require.NoError(t, m.meet(lossy, l, m.instance.Load()), "they may be many")
}
