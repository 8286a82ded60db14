package messenger

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/argonaut-rdma/argonaut/messenger/internal/msgr2"
	"github.com/argonaut-rdma/argonaut/messenger/internal/session"
)

// ownedSession is a lossless session, which has been used, and what it is.
func ownedSession(t *testing.T, serverCfg, ownerCfg Config) (server, owner *Messenger, c *Connection, s session.Session) {
	server = newMessenger(t, serverCfg)
	server.SetPolicy(Client, StatefulServer())
	server.AddDispatcher(&handler{dispatch: echo})
	require.NoError(t, server.Bind(soon(t), anyAddr(SchemeTCP)))
	owner = newMessenger(t, ownerCfg)
	owner.SetPolicy(OSD, LosslessClient())
	require.NoError(t, owner.Bind(soon(t), anyAddr(SchemeTCP)))
	c, err := owner.ConnectTo(OSD, server.Addrs())
	require.NoError(t, err)
	r, err := c.Call(soon(t), NewMessage(1))
	require.NoError(t, err)
	r.Release()
	c.mu.Lock()
	defer c.mu.Unlock()
	return server, owner, c, c.session
}

// Whoever knows all there is to know of the session of another, its cookies and
// addresses too, and has authenticated as itself, does not get it: neither to go
// on with, nor to replace.
func TestSessionTheft(t *testing.T) {
	cfg := secured(Config{Name: EntityName{OSD, 0}})
	server, owner, c, s := ownedSession(t, cfg, secured(Config{Name: EntityName{Client, 7}}))

	steal := func(claim session.Session) {
		p := scriptParams([]string{"client", "expect=4", "own", "lossless"})
		p.auth, p.modes, p.target = cfg.Auth, cfg.Modes, server.wireAddrs()[0]
		p.name, p.addrs = EntityName{Client, 8}, owner.wireAddrs()
		claim.Policy = LosslessClient().rules()
		p.session = &scriptSession{s: claim, gs: 1 << 60}
		nc, err := net.Dial("tcp", server.Addrs()[0].HostPort())
		require.NoError(t, err)
		defer nc.Close()
		before := server.Stats().AuthFailures
		err = converse(nc, newHandshake(p))
		require.ErrorIs(t, err, ErrAuth)
		require.ErrorContains(t, err, "asks for the session of client.7")
		require.Eventually(t, func() bool { return server.Stats().AuthFailures > before }, patience, time.Millisecond)
	}
	steal(session.Session{ClientCookie: s.ClientCookie, ServerCookie: s.ServerCookie, ConnectSeq: s.ConnectSeq + 1, OutSeq: s.OutSeq, InSeq: s.InSeq})
	steal(session.Session{}) // a new one in the place of the owner's
	// Forged cookies are no better.
	steal(session.Session{ClientCookie: 1, ServerCookie: 2, ConnectSeq: 3, InSeq: 1})

	r, err := c.Call(soon(t), NewMessage(1))
	require.NoError(t, err, "its owner has it")
	r.Release()
	require.Zero(t, owner.Stats().Faults)
	require.Zero(t, c.Stats().Reconnects+c.Stats().RemoteResets)
}

// A server may remember attempts of an incarnation whose clock was ahead of ours,
// but not by more than a clock is ever set back.
func TestClockSetBack(t *testing.T) {
	server, owner, c, _ := ownedSession(t, Config{Name: EntityName{OSD, 0}}, Config{Name: EntityName{Client, 7}})
	back, err := server.ConnectTo(Client, owner.Addrs())
	require.NoError(t, err)
	ahead := uint64(time.Now().Add(clockSlack / 2).UnixMilli())
	remember := func(seq uint64) {
		back.mu.Lock()
		back.session.PeerGlobalSeq = seq
		back.mu.Unlock()
		c.mu.Lock()
		l := c.link
		c.mu.Unlock()
		l.fail("test", errInjected)
	}
	remember(ahead)
	r, err := c.Call(soon(t), NewMessage(1))
	require.NoError(t, err)
	r.Release()
	require.Greater(t, owner.globalSeq.Load(), ahead)
	retries := owner.Stats().RetriesGlobal
	require.Positive(t, retries)

	before := owner.globalSeq.Load()
	remember(uint64(time.Now().Add(2 * clockSlack).UnixMilli()))
	require.Eventually(t, func() bool { return owner.Stats().RetriesGlobal > retries }, patience, time.Millisecond)
	require.Less(t, owner.globalSeq.Load(), before+1000)
}

// Nor is anybody found by the addresses of another, whose session it leaves alone: a
// session of its own is refused with them, and by its addresses of before it is not
// known for ever.
func TestAddressTheft(t *testing.T) {
	cfg := secured(Config{Name: EntityName{OSD, 0}})
	server, owner, c, _ := ownedSession(t, cfg, secured(Config{Name: EntityName{Client, 7}}))
	x := &scriptSession{gs: 1 << 60, s: session.Session{Policy: LosslessClient().rules()}}
	open := func(addrs ...msgr2.Addr) error {
		p := scriptParams([]string{"client", "expect=4", "own", "lossless"})
		p.auth, p.modes, p.target = cfg.Auth, cfg.Modes, server.wireAddrs()[0]
		p.name, p.addrs, p.session = EntityName{Client, 8}, addrs, x
		nc, err := net.Dial("tcp", server.Addrs()[0].HostPort())
		require.NoError(t, err)
		defer nc.Close()
		x.gs++
		x.s.ConnectSeq++
		return converse(nc, newHandshake(p))
	}
	at := func(port, nonce int) msgr2.Addr {
		a := EntityAddr{URL: fmt.Sprintf("tcp://192.0.2.8:%d", port), Nonce: uint32(nonce)}
		return a.toWire()
	}
	known := func() int {
		server.mu.Lock()
		defer server.mu.Unlock()
		return len(server.peers)
	}
	own, theirs := at(1, 8), owner.wireAddrs()[0]
	require.NoError(t, open(own))
	before := known()
	require.ErrorIs(t, open(own, theirs), ErrAuth)
	require.Equal(t, before, known())
	for i := range 20 {
		require.NoError(t, open(own, at(2, 2*i+1), at(3, 2*i+2)))
	}
	require.LessOrEqual(t, known(), before+2)

	back, err := server.ConnectTo(Client, owner.Addrs())
	require.NoError(t, err)
	name, _, _ := back.Peer()
	require.Equal(t, EntityName{Client, 7}, name)
	c.mu.Lock()
	l := c.link
	c.mu.Unlock()
	l.fail("test", errInjected)
	r, err := c.Call(soon(t), NewMessage(1))
	require.NoError(t, err, "its owner has it")
	r.Release()
	require.EqualValues(t, 1, c.Stats().Reconnects)
}

// Nor does whoever is found at the address of a server, having authenticated as
// itself, whether it agrees to go on with the session or says that there is none: it
// is not even asked. What was kept goes to the server, and once.
func TestSessionTheftByAServer(t *testing.T) {
	for name, what := range map[string]struct {
		there  bool
		policy Policy
	}{
		"resumes":     {true, StatefulServer()},
		"resets":      {false, Policy{Server: true, Standby: true}},
		"resets full": {false, StatefulServer()},
	} {
		t.Run(name, func(t *testing.T) { sessionTheftByAServer(t, what.there, what.policy) })
	}
}

// sessionTheftByAServer has a thief with that policy, which has the session if there is
// one there.
func sessionTheftByAServer(t *testing.T, there bool, policy Policy) {
	cfg := secured(Config{Name: EntityName{OSD, 0}})
	server := newMessenger(t, cfg)
	server.SetPolicy(Client, StatefulServer())
	got := make(chan uint16, 8)
	server.AddDispatcher(&handler{dispatch: func(ctx context.Context, m *Message) bool {
		got <- m.Type
		return echo(ctx, m)
	}})
	require.NoError(t, server.Bind(soon(t), anyAddr(SchemeTCP)))
	thief, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { _ = thief.Close() }()
	var stolen, deaf atomic.Bool
	ccfg := secured(Config{Name: EntityName{Client, 7}})
	ccfg.DialStream = func(ctx context.Context, hostport string) (net.Conn, error) {
		if stolen.Load() {
			hostport = thief.Addr().String()
		}
		var d net.Dialer
		nc, err := d.DialContext(ctx, "tcp", hostport)
		return deafConn{nc, &deaf}, err
	}
	owner := newMessenger(t, ccfg)
	owner.SetPolicy(OSD, LosslessClient())
	c, err := owner.ConnectTo(OSD, server.Addrs())
	require.NoError(t, err)
	call := func(kind uint16) {
		r, err := c.Call(soon(t), NewMessage(kind))
		require.NoError(t, err)
		r.Release()
		require.Equal(t, kind, receiveOne(t, got, "message"))
	}
	call(1)
	c.mu.Lock()
	s := c.session
	c.mu.Unlock()

	stolen.Store(true)
	deaf.Store(true)
	ended := make(chan error, 1)
	go func() { // ends with the call
		r, err := c.Call(soon(t), NewMessage(2))
		if err == nil {
			r.Release()
		}
		ended <- err
	}()
	require.EqualValues(t, 2, receiveOne(t, got, "message"), "it is received; its acknowledgement and the answer are not")
	c.mu.Lock()
	l := c.link
	c.mu.Unlock()
	l.fail("test", errInjected)
	nc, err := thief.Accept()
	require.NoError(t, err)
	defer nc.Close()
	deaf.Store(false)
	require.NoError(t, nc.SetDeadline(time.Now().Add(patience)))
	p := scriptParams([]string{"server", "own", "lossless"})
	p.auth, p.modes, p.acceptable = cfg.Auth, cfg.Modes, nil
	p.name, p.policy = EntityName{OSD, 8}, func(EntityType) Policy { return policy }
	p.session = &scriptSession{there: there, s: session.Session{Policy: policy.rules(), State: session.Standby, Dialable: true,
		ClientCookie: s.ClientCookie, ServerCookie: s.ServerCookie, OutSeq: s.InSeq, InSeq: s.OutSeq}}
	require.Error(t, converse(nc, newHandshake(p)), "it is asked for nothing")
	require.Eventually(t, func() bool { return owner.Stats().AuthFailures > 0 }, patience, time.Millisecond)
	require.Zero(t, c.Stats().Reconnects+c.Stats().RemoteResets)

	stolen.Store(false)
	require.NoError(t, thief.Close()) // attempts that nobody has accepted end
	require.NoError(t, <-ended)
	call(3)
	require.EqualValues(t, 1, c.Stats().Reconnects, "the session goes on where it belongs")
}

// deafConn hears nothing while it is deaf.
type deafConn struct {
	net.Conn
	deaf *atomic.Bool
}

func (c deafConn) Read(b []byte) (int, error) {
	for {
		if n, err := c.Conn.Read(b); err != nil || !c.deaf.Load() {
			return n, err
		}
	}
}

// Whoever is not told apart from the owner of a session, as nobody authenticates,
// still has to know its cookies to go on with it: a guess is told that there is no
// such session, counted, and in the log; the owner keeps it.
func TestForgedCookies(t *testing.T) {
	v := &victim{t: t}
	server, owner, c, s := ownedSession(t, Config{Name: EntityName{OSD, 0}, Auth: []Auth{AuthNone{}}, Logger: slog.New(v)},
		Config{Name: EntityName{Client, 7}, Auth: []Auth{AuthNone{}}})
	for _, cookie := range []uint64{0, 1, s.ClientCookie + 1, s.ServerCookie, ^s.ClientCookie} {
		nc, err := net.Dial("tcp", server.Addrs()[0].HostPort())
		require.NoError(t, err)
		defer nc.Close()
		p := scriptParams([]string{"client", "expect=4", "own", "lossless"})
		p.target, p.name, p.addrs = server.wireAddrs()[0], EntityName{Client, 7}, owner.wireAddrs()
		p.session = &forger{scriptSession: scriptSession{gs: 1 << 60}, claim: session.Opening{
			Reconnect: true, ClientCookie: cookie, ServerCookie: s.ServerCookie, GlobalSeq: 1 << 60, ConnectSeq: s.ConnectSeq + 1,
		}}
		before := server.Stats()
		said := func() (n int) {
			for _, err := range v.said.all() {
				if errors.Is(err, ErrReset) {
					n++
				}
			}
			return n
		}
		saidBefore := said()
		require.ErrorIs(t, converse(nc, newHandshake(p)), errForgerReset, "cookie %#x", cookie)
		require.Equal(t, before.ResetsSent+1, server.Stats().ResetsSent)
		require.Equal(t, saidBefore+1, said(), "the server says %v", &v.said)
		nc.Close()
		require.Eventually(t, func() bool { return server.Stats().HandshakesFailed > before.HandshakesFailed }, patience, time.Millisecond)
		r, err := c.Call(soon(t), NewMessage(1))
		require.NoError(t, err, "its owner has it")
		r.Release()
	}
	require.Zero(t, owner.Stats().Faults)
	require.Zero(t, c.Stats().Reconnects+c.Stats().RemoteResets)
}

// forger asks for a session by what it has guessed, and leaves when it is told that
// there is none.
type forger struct {
	scriptSession
	claim session.Opening
}

var errForgerReset = errors.New("SESSION_RESET")

func (f *forger) begin() (session.Opening, error) { return f.claim, nil }
func (f *forger) reset(bool) error                { return errForgerReset }
