package messenger

import (
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/argonaut-rdma/argonaut/messenger/internal/session"
)

// Whoever knows all there is to know of the session of another, its cookies and
// addresses too, and has authenticated as itself, does not get it: neither to go
// on with, nor to replace.
func TestSessionTheft(t *testing.T) {
	cfg := secured(Config{Name: EntityName{OSD, 0}})
	server := newMessenger(t, cfg)
	server.SetPolicy(Client, StatefulServer())
	server.AddDispatcher(&handler{dispatch: echo})
	require.NoError(t, server.Bind(soon(t), anyAddr(SchemeTCP)))
	owner := newMessenger(t, secured(Config{Name: EntityName{Client, 7}}))
	owner.SetPolicy(OSD, LosslessClient())
	require.NoError(t, owner.Bind(soon(t), anyAddr(SchemeTCP)))
	c, err := owner.ConnectTo(OSD, server.Addrs())
	require.NoError(t, err)
	r, err := c.Call(soon(t), NewMessage(1))
	require.NoError(t, err)
	r.Release()
	c.mu.Lock()
	s := c.session
	c.mu.Unlock()

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

	r, err = c.Call(soon(t), NewMessage(1))
	require.NoError(t, err, "its owner has it")
	r.Release()
	require.Zero(t, owner.Stats().Faults)
	require.Zero(t, c.Stats().Reconnects+c.Stats().RemoteResets)
}
