package messenger

import (
	"context"
	"errors"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

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

// Nor does whoever is found at the address of a server and agrees to go on with the
// session, having authenticated as itself: what was kept is not sent to it.
func TestSessionTheftByAServer(t *testing.T) {
	cfg := secured(Config{Name: EntityName{OSD, 0}})
	server := newMessenger(t, cfg)
	server.SetPolicy(Client, StatefulServer())
	server.AddDispatcher(&handler{dispatch: echo})
	require.NoError(t, server.Bind(soon(t), anyAddr(SchemeTCP)))
	thief, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { _ = thief.Close() }()
	var stolen atomic.Bool
	ccfg := secured(Config{Name: EntityName{Client, 7}})
	ccfg.DialStream = func(ctx context.Context, hostport string) (net.Conn, error) {
		if stolen.Load() {
			hostport = thief.Addr().String()
		}
		var d net.Dialer
		return d.DialContext(ctx, "tcp", hostport)
	}
	owner := newMessenger(t, ccfg)
	owner.SetPolicy(OSD, LosslessClient())
	c, err := owner.ConnectTo(OSD, server.Addrs())
	require.NoError(t, err)
	call := func() {
		r, err := c.Call(soon(t), NewMessage(1))
		require.NoError(t, err)
		r.Release()
	}
	call()
	c.mu.Lock()
	s, l := c.session, c.link
	c.mu.Unlock()

	stolen.Store(true)
	l.fail("test", errInjected)
	nc, err := thief.Accept()
	require.NoError(t, err)
	defer nc.Close()
	require.NoError(t, nc.SetDeadline(time.Now().Add(patience)))
	p := scriptParams([]string{"server", "own", "lossless", "state=standby"})
	p.auth, p.modes, p.acceptable = cfg.Auth, cfg.Modes, nil
	p.name = EntityName{OSD, 8}
	claim := &scriptSession{there: true}
	claim.s = session.Session{Policy: StatefulServer().rules(), State: session.Standby, Dialable: true,
		ClientCookie: s.ClientCookie, ServerCookie: s.ServerCookie, OutSeq: s.InSeq, InSeq: s.OutSeq}
	p.session = claim
	require.NoError(t, converse(nc, newHandshake(p)), "it believes that it has the session")
	require.Eventually(t, func() bool { return owner.Stats().AuthFailures > 0 }, patience, time.Millisecond)
	require.Zero(t, c.Stats().Reconnects)
	_, err = nc.Read(make([]byte, 1))
	require.Error(t, err, "nothing is said to it")

	stolen.Store(false)
	require.NoError(t, thief.Close()) // attempts that nobody has accepted end
	call()
	require.EqualValues(t, 1, c.Stats().Reconnects, "the session goes on where it belongs")
}

// Whoever is not told apart from the owner of a session, as nobody authenticates,
// still has to know its cookies to go on with it: a guess is told that there is no
// such session, and counted; the owner keeps it.
func TestForgedCookies(t *testing.T) {
	server, owner, c, s := ownedSession(t, Config{Name: EntityName{OSD, 0}, Auth: []Auth{AuthNone{}}},
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
		require.ErrorIs(t, converse(nc, newHandshake(p)), errForgerReset, "cookie %#x", cookie)
		require.Equal(t, before.ResetsSent+1, server.Stats().ResetsSent)
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
