package messenger

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/argonaut-rdma/argonaut/test/env"
)

// Keys that were guessed, changed, revoked, used up, or granted to somebody else, used
// on the adapter itself: it reads and writes nothing, the one who tried gets
// ErrBadGrant, the granting side ErrProtocol and a count, and that connection, and
// no other, is over.
func TestGuessedKeys(t *testing.T) {
	type forgery struct {
		name  string
		write bool
		forge func(t *testing.T, p *pair, g, other Grant) Grant
	}
	for _, f := range []forgery{
		{"a key nearby", false, func(_ *testing.T, _ *pair, g, _ Grant) Grant { g.RKey++; return g }},
		{"another key", false, func(_ *testing.T, _ *pair, g, _ Grant) Grant { g.RKey ^= 0x5a5a5a00; return g }},
		{"no key", false, func(_ *testing.T, _ *pair, g, _ Grant) Grant { g.RKey = 0; return g }},
		{"behind it", false, func(_ *testing.T, _ *pair, g, _ Grant) Grant { g.Addr++; return g }},
		{"before it", false, func(_ *testing.T, _ *pair, g, _ Grant) Grant { g.Addr--; return g }},
		{"elsewhere", false, func(_ *testing.T, _ *pair, g, _ Grant) Grant { g.Addr = 1 << 40; return g }},
		{"for reading, to write", true, func(_ *testing.T, _ *pair, g, _ Grant) Grant { g.Write = true; return g }},
		{"another's", false, func(_ *testing.T, _ *pair, g, other Grant) Grant { other.Epoch = g.Epoch; return other }},
		{"revoked", false, func(t *testing.T, p *pair, g, _ Grant) Grant {
			require.NoError(t, p.c.Revoke(soon(t), []Grant{g}))
			return g
		}},
		{"used once", false, usedOnce},
	} {
		t.Run(f.name, func(t *testing.T) {
			p := newPair(t, schemeDevice, Config{Auth: []Auth{AuthNone{}}}, Config{Auth: []Auth{AuthNone{}}}, nil, nil)
			sc := receiveOne(t, p.accepted, "accepted connection")
			third := newMessenger(t, Config{Name: EntityName{OSD, 9}, Auth: []Auth{AuthNone{}}})
			third.AddDispatcher(&handler{dispatch: echo})
			require.NoError(t, third.Bind(soon(t), anyAddr(schemeDevice)))
			oc, err := p.client.ConnectTo(OSD, third.Addrs())
			require.NoError(t, err)
			require.NoError(t, oc.Ready(soon(t)))

			src, want := randomList(t, p.client.cfg.Arena, 10_000)
			defer src.Release()
			gs, err := p.c.Grant(soon(t), src, false)
			require.NoError(t, err)
			others, err := oc.Grant(soon(t), src, false)
			require.NoError(t, err)
			dst, _ := randomList(t, p.server.cfg.Arena, 10_000)
			defer dst.Release()
			dst.CopyFrom(make([]byte, 10_000))
			if gs[0].Framed {
				return // the adapter has no keys that it can confine: TestPullOutOfRange
			}
			bad := []Grant{f.forge(t, p, gs[0], others[0])}
			if f.write {
				// The refusal may come after Push has returned.
				if err := sc.Push(soon(t), bad, 0, dst); err != nil {
					require.ErrorIs(t, err, ErrBadGrant)
				}
			} else {
				require.ErrorIs(t, sc.Pull(soon(t), dst, bad, 0), ErrBadGrant)
			}
			require.Eventually(t, func() bool { return p.c.State() == StateClosed && sc.State() == StateClosed }, patience, time.Millisecond)
			if env.Device() == "" { // others may see no more than that the connection is gone
				require.ErrorIs(t, p.c.Err(), ErrProtocol)
				require.EqualValues(t, 1, p.client.Stats().BadGrants)
			}
			require.Equal(t, make([]byte, 10_000), bytesOf(dst), "nothing was read")
			require.Equal(t, want, bytesOf(src), "nothing was written")
			r, err := oc.Call(soon(t), NewMessage(1))
			require.NoError(t, err, "other connections go on")
			r.Release()
		})
	}
}

// usedOnce is a grant for one transfer, which has been: what it gave is elsewhere.
func usedOnce(t *testing.T, p *pair, _, _ Grant) Grant {
	src, want := randomList(t, p.client.cfg.Arena, 10_000)
	defer src.Release()
	used := make(chan Grant, 1)
	gs, err := p.c.GrantOnce(soon(t), src, false, func(g Grant) { used <- g })
	if errors.Is(err, ErrNotSupported) {
		env.Need(t, false, "it has no grants for one transfer")
	}
	require.NoError(t, err)
	dst, _ := randomList(t, p.server.cfg.Arena, 10_000)
	defer dst.Release()
	require.NoError(t, p.server.connectionsOf()[0].Pull(soon(t), dst, gs, 0))
	require.Equal(t, want, bytesOf(dst))
	return receiveOne(t, used, "end of the grant")
}
