package messenger

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"runtime"
	"testing"
	"time"

	"github.com/argonaut-rdma/argonaut/messenger/internal/msgr2"
	"github.com/argonaut-rdma/argonaut/test/env"
	"github.com/stretchr/testify/require"
)

// Who is bound to no particular host learns where it is from whom it connects to,
// and can be reached there; its sessions of before go on.
func TestOwnAddressIsLearned(t *testing.T) {
	env.UserSpace(t, "a device is bound to its own address")
	carriers(t, func(t *testing.T, scheme string) {
		b := newMessenger(t, Config{Name: EntityName{OSD, 1}})
		b.SetPolicy(OSD, LosslessPeerReuse())
		b.AddDispatcher(&handler{dispatch: echo})
		require.NoError(t, b.Bind(soon(t), anyAddr(scheme)))
		a := newMessenger(t, Config{Name: EntityName{OSD, 0}})
		a.SetPolicy(OSD, LosslessPeerReuse())
		a.AddDispatcher(&handler{dispatch: echo})
		require.NoError(t, a.Bind(soon(t), AddrVec{{URL: scheme + "://0.0.0.0:0"}}))
		before, err := netip.ParseAddrPort(a.Addrs()[0].HostPort())
		require.NoError(t, err)
		require.True(t, before.Addr().IsUnspecified(), "%v", before)
		ab, err := a.ConnectTo(OSD, b.Addrs())
		require.NoError(t, err)
		call := func(c *Connection) {
			t.Helper()
			r, err := c.Call(soon(t), NewMessage(1))
			require.NoError(t, err)
			r.Release()
		}
		call(ab)
		after, err := netip.ParseAddrPort(a.Addrs()[0].HostPort())
		require.NoError(t, err)
		require.True(t, after.Addr().IsLoopback(), "%v", after)
		require.Equal(t, before.Port(), after.Port())
		require.Equal(t, a.nonce.Load(), a.Addrs()[0].Nonce)

		// By it others find it, and it itself.
		c, err := newMessenger(t, Config{}).ConnectTo(OSD, a.Addrs())
		require.NoError(t, err)
		call(c)
		self, err := a.ConnectTo(OSD, a.Addrs())
		require.NoError(t, err)
		require.Same(t, a.Loopback(), self)
		// The peer of before has one session with it, by either side.
		back, err := b.ConnectTo(OSD, a.Addrs())
		require.NoError(t, err)
		for range 3 {
			ab.mu.Lock()
			l := ab.link
			ab.mu.Unlock()
			l.fail("test", errInjected)
			call(ab)
			call(back)
		}
		require.NotZero(t, ab.Stats().Reconnects)
		require.Zero(t, a.Stats().RemoteResets+b.Stats().RemoteResets)
		require.Equal(t, 1, b.Stats().Open)
	})
}

// Each peer is told the address by which it reaches us, and the one by which others
// may have told it of us: it is one session by either, and each of them is us.
func TestSeveralInterfaces(t *testing.T) {
	env.UserSpace(t, "a device is bound to its own address")
	if runtime.GOOS != "linux" {
		t.Skip("127.0.0.2 is an address of Linux's loopback alone")
	}
	carriers(t, func(t *testing.T, scheme string) {
		peers := func(num int64) *Messenger {
			m := newMessenger(t, Config{Name: EntityName{OSD, num}})
			m.SetPolicy(OSD, LosslessPeerReuse())
			m.AddDispatcher(&handler{dispatch: echo})
			return m
		}
		call := func(c *Connection) {
			t.Helper()
			r, err := c.Call(soon(t), NewMessage(1))
			require.NoError(t, err)
			r.Release()
		}
		a := peers(0)
		require.NoError(t, a.Bind(soon(t), AddrVec{{URL: scheme + "://0.0.0.0:0"}}))
		port, _ := isAny(a.Addrs()[0])
		at := func(host string) EntityAddr {
			return EntityAddr{URL: fmt.Sprintf("%s://%s:%d", scheme, host, port), Nonce: a.nonce.Load()}
		}
		told := func(c *Connection) AddrVec {
			_, v, _ := c.Peer()
			return v
		}
		// Who is connected to learns, too, where that is.
		b := peers(1)
		require.NoError(t, b.Bind(soon(t), anyAddr(scheme)))
		ba, err := b.ConnectTo(OSD, AddrVec{{URL: at("127.0.0.1").URL}})
		require.NoError(t, err)
		call(ba)
		require.Equal(t, AddrVec{at("127.0.0.1")}, told(ba))
		require.Eventually(t, func() bool { return a.Addrs()[0] == at("127.0.0.1") }, patience, time.Millisecond)
		c := peers(2)
		require.NoError(t, c.Bind(soon(t), anyAddr(scheme)))
		ca, err := c.ConnectTo(OSD, AddrVec{{URL: at("127.0.0.2").URL}})
		require.NoError(t, err)
		call(ca)
		require.Equal(t, AddrVec{at("127.0.0.2"), at("127.0.0.1")}, told(ca))
		require.Equal(t, at("127.0.0.1"), a.Addrs()[0], "the first counts")

		// It heard of the other one from somebody.
		other, err := c.ConnectTo(OSD, a.Addrs())
		require.NoError(t, err)
		require.Same(t, ca, other)
		for _, host := range []string{"127.0.0.1", "127.0.0.2", "127.0.0.3"} {
			self, err := a.ConnectTo(OSD, AddrVec{at(host)})
			require.NoError(t, err)
			require.Same(t, a.Loopback(), self, host)
		}
		// Either side connects again.
		ac, err := a.ConnectTo(OSD, c.Addrs())
		require.NoError(t, err)
		for i := range 4 {
			for _, x := range [][2]*Connection{{ca, ac}, {ac, ca}} {
				x[i%2].mu.Lock()
				l := x[i%2].link
				x[i%2].mu.Unlock()
				if l != nil {
					l.fail("test", errInjected)
				}
				call(x[0])
				call(x[1])
			}
		}
		require.NotZero(t, ca.Stats().Reconnects)
		for _, m := range []*Messenger{a, c} {
			require.Zero(t, m.Stats().RemoteResets)
		}
		require.Equal(t, 1, c.Stats().Open)
		require.Equal(t, 2, a.Stats().Open)
	})
}

// Whoever has accepted may not say where we are, and a tunnel's loopback is not
// believed.
func TestWhereThePeerReachesUs(t *testing.T) {
	ip := func(s string) (ip netip.Addr) {
		if s != "" {
			ip = netip.MustParseAddr(s)
		}
		return ip
	}
	for _, c := range []struct {
		client           bool
		seen, here, want string
	}{
		{true, "192.0.2.1", "10.0.0.1", "192.0.2.1"},
		{true, "192.0.2.1", "", "192.0.2.1"},
		{true, "192.0.2.1", "127.0.0.1", "192.0.2.1"},
		{true, "127.0.0.1", "10.0.0.1", "10.0.0.1"},
		{true, "127.0.0.1", "127.0.0.2", "127.0.0.1"},
		{true, "::ffff:192.0.2.1", "10.0.0.1", "192.0.2.1"},
		{true, "0.0.0.0", "10.0.0.1", "10.0.0.1"},
		{true, "", "10.0.0.1", "10.0.0.1"},
		{true, "", "", ""},
		{false, "192.0.2.1", "10.0.0.1", "10.0.0.1"},
		{false, "192.0.2.1", "", ""},
	} {
		h := newHandshake(hsParams{client: c.client, here: ip(c.here)})
		h.learned = msgr2.AddrFrom(msgr2.AddrMsgr2, netip.AddrPortFrom(ip(c.seen), 1), 0)
		require.Equal(t, ip(c.want), h.end(), "%+v", c)
	}
}

// What is learned last counts where loopback was learned before; names and hosts
// that were given are left alone.
func TestWhatIsLearned(t *testing.T) {
	m := newMessenger(t, Config{})
	m.mu.Lock()
	defer m.mu.Unlock()
	m.bound = AddrVec{{URL: "tcp://0.0.0.0:1", Nonce: 5}, {URL: "tcp://[::]:2"}, {URL: "tcp://192.0.2.1:3"}, {URL: "iwarp://node:4"}}
	m.tell()
	seen := func(ip string) {
		m.learn(netip.MustParseAddr(ip))
	}
	for _, step := range []struct{ seen, any4, any6 string }{
		{"0.0.0.0", "0.0.0.0", "[::]"},
		{"224.0.0.1", "0.0.0.0", "[::]"},
		{"::1", "0.0.0.0", "[::1]"},
		{"127.0.0.1", "127.0.0.1", "[::1]"},
		{"192.0.2.7", "192.0.2.7", "192.0.2.7"},
		{"192.0.2.8", "192.0.2.7", "192.0.2.7"},
		{"127.0.0.1", "192.0.2.7", "192.0.2.7"},
		{"2001:db8::1", "192.0.2.7", "[2001:db8::1]"},
	} {
		seen(step.seen)
		require.Equal(t, AddrVec{{URL: "tcp://" + step.any4 + ":1", Nonce: 5}, {URL: "tcp://" + step.any6 + ":2"},
			{URL: "tcp://192.0.2.1:3"}, {URL: "iwarp://node:4"}}, m.told, step.seen)
		require.Len(t, m.wire, 4)
		own, _ := m.isOwn(AddrVec{{URL: "tcp://" + step.any4 + ":1"}}, nil)
		require.True(t, own)
	}
	m.bound = nil
	m.tell()
}

// Whether a place is on this host is asked of the system without the messenger's lock,
// only when nothing else tells, and once.
func TestInterfacesAreAskedForUnlocked(t *testing.T) {
	m := newMessenger(t, Config{Name: EntityName{OSD, 0},
		DialStream: func(context.Context, string) (net.Conn, error) { return nil, errInjected }}) // nobody is called
	require.NoError(t, m.Bind(soon(t), AddrVec{{URL: "tcp://0.0.0.0:0"}}))
	port, _ := isAny(m.Addrs()[0])
	at := func(host string) AddrVec { return AddrVec{{URL: fmt.Sprintf("tcp://%s:%d", host, port)}} }
	asked := 0
	m.interfaces = func() ([]net.Addr, error) {
		asked++
		locked := make(chan struct{})
		go func() { // ends when it has had the lock
			m.Addrs()
			close(locked)
		}()
		receiveOne(t, locked, "lock of the messenger")
		_, n, err := net.ParseCIDR("192.0.2.7/32")
		return []net.Addr{n}, err
	}
	for _, step := range []struct {
		at    AddrVec
		typ   EntityType
		own   bool
		asked int
	}{
		{at("127.0.0.1"), OSD, true, 0},
		{at("192.0.2.7"), Mon, false, 0},
		{at("192.0.2.7"), OSD, true, 1},
		{at("192.0.2.8"), OSD, false, 1},
		{at("192.0.2.8"), OSD, false, 0}, // it is known
		{AddrVec{{URL: "tcp://192.0.2.7:1"}}, OSD, false, 0},
	} {
		asked = 0
		c, err := m.ConnectTo(step.typ, step.at)
		require.NoError(t, err)
		require.Equal(t, step.own, c == m.Loopback(), "%+v", step)
		require.Equal(t, step.asked, asked, "%+v", step)
	}
}

// Deadlines are measured by a clock that nobody sets.
func TestDeadlinesAreMonotonic(t *testing.T) {
	carriers(t, func(t *testing.T, scheme string) {
		p := newPair(t, scheme, Config{}, Config{}, nil, nil)
		last := p.c.Stats().LastReceived
		require.WithinDuration(t, time.Now(), last, patience)
		require.NotEqual(t, last.Round(0), last, "it has a monotonic reading")
		require.NotEqual(t, p.c.parted.Round(0), p.c.parted)
		p.c.mu.Lock()
		l := p.c.link
		p.c.mu.Unlock()
		require.NotEqual(t, l.since.Round(0), l.since)
	})
}

// The answer to a pull or a push that came on an earlier transport is not one on
// the present: each numbers its own.
func TestAnswersStayOnTheirTransport(t *testing.T) {
	carriers(t, func(t *testing.T, scheme string) {
		accepted := make(chan *Connection, 2)
		p := newPairOf(t, scheme, StatefulServer(), LosslessClient(), &handler{dispatch: echo, accept: func(c *Connection) { accepted <- c }})
		call := func() {
			r, err := p.c.Call(soon(t), NewMessage(1))
			require.NoError(t, err)
			r.Release()
		}
		call()
		sc := receiveOne(t, accepted, "connection")
		sc.mu.Lock()
		old := sc.link
		sc.mu.Unlock()
		b := &streamBulk{}
		b.init(old, false, 1<<20)
		old.own |= featurePushed // it is the old one's, whose reader may be late
		old.fail("test", errInjected)
		receiveOne(t, accepted, "connection again")
		call()
		for name, late := range map[string]func(*Message){"pull": b.servePull, "push": b.servePush} {
			sent := sc.Stats().OutSeq
			m := NewMessage(typePull)
			m.TID = 1
			m.Front = AppendGrants(m.Front, []Grant{{Len: 10}})
			late(m)
			require.Zero(t, b.serving, "%s: it is given up at once", name)
			call()
			require.Equal(t, sent+1, sc.Stats().OutSeq, name)
		}
		require.Error(t, b.post(NewMessage(typePull), nil))
	})
}

// What Send has taken and nobody will get is counted.
func TestUndeliveredIsCounted(t *testing.T) {
	carriers(t, func(t *testing.T, scheme string) {
		block := make(chan struct{})
		defer close(block)
		h := &handler{fast: func(m *Message) bool { m.Release(); <-block; return true }}
		p := newPairOf(t, scheme, StatefulServer(), LosslessClient(), h)
		require.NoError(t, p.c.Send(soon(t), NewMessage(1)))
		require.Eventually(t, func() bool { return p.server.Stats().MessagesReceived == 1 }, patience, time.Millisecond)
		for range 5 { // the reader stands: these are not acknowledged
			require.NoError(t, p.c.Send(soon(t), NewMessage(1)))
		}
		require.Zero(t, p.c.Stats().Undelivered)
		waiting := p.c.Stats()
		require.GreaterOrEqual(t, waiting.QueuedMessages+waiting.UnackedMessages, 5)
		p.c.MarkDown()
		require.GreaterOrEqual(t, p.c.Stats().Undelivered, uint64(5))
		require.LessOrEqual(t, p.c.Stats().Undelivered, uint64(6))
		require.Equal(t, p.c.Stats().Undelivered, p.client.Stats().Undelivered)
	})
	t.Run("lossy", func(t *testing.T) { // what is queued when it ends; what is on its way nobody knows
		m := newMessenger(t, Config{})
		gone := newMessenger(t, Config{Name: EntityName{OSD, 0}})
		require.NoError(t, gone.Bind(soon(t), anyAddr(SchemeTCP)))
		addrs := gone.Addrs()
		require.NoError(t, gone.Close())
		c, err := m.ConnectTo(OSD, addrs)
		require.NoError(t, err)
		for range 3 {
			require.NoError(t, c.Send(soon(t), NewMessage(1)))
		}
		c.MarkDown()
		require.EqualValues(t, 3, c.Stats().Undelivered)
	})
}
