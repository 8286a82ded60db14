package messenger

import (
	"bytes"
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/argonaut-rdma/argonaut/buffer"
)

// ends are ways that a transport ends from our side.
var ends = map[string]func(c *Connection, l *link){
	"marked down": func(c *Connection, _ *link) { c.MarkDown() },
	"a fault":     func(_ *Connection, l *link) { l.fail("test", errors.New("the test cuts it")) },
}

func (c *Connection) linkNow() *link {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.link
}

// What is written after Revoke has returned stays, whatever the peer was about to
// write when the transport ended.
func TestRevokeAfterTheTransport(t *testing.T) {
	for name, end := range ends {
		t.Run(name, func(t *testing.T) {
			grantors(t, func(t *testing.T, scheme string, grantor Config) {
				const size = 1 << 20
				server, client, c, sc := losslessPair(t, scheme, grantor)

				dst, _ := randomList(t, client.cfg.Arena, size)
				defer dst.Release()
				src, _ := randomList(t, server.cfg.Arena, size)
				defer src.Release()
				gs, err := c.Grant(soon(t), dst, true)
				require.NoError(t, err)
				var pushes atomic.Int64
				var pushers sync.WaitGroup
				for range 4 {
					pushers.Go(func() { // ends with the transport
						for sc.Push(soon(t), gs, 0, src) == nil {
							pushes.Add(1)
						}
					})
				}
				require.Eventually(t, func() bool { return pushes.Load() > 20 }, patience, time.Millisecond)
				end(c, c.linkNow())
				require.NoError(t, c.Revoke(soon(t), gs))
				ours := bytes.Repeat([]byte{0x55}, size)
				dst.CopyFrom(ours)
				pushers.Wait()
				require.True(t, bytes.Equal(ours, bytesOf(dst)), "the peer has written")
			})
		})
	}
}

// Revoke waits for a transfer by frames that is under way, also when it has been
// called before, and when the transport has ended. None begins meanwhile.
func TestRevokeWaitsForFrames(t *testing.T) {
	all := map[string]func(c *Connection, l *link){"alive": func(*Connection, *link) {}}
	for name, end := range ends {
		all[name] = end
	}
	for name, end := range all {
		t.Run(name, func(t *testing.T) {
			grantors(t, func(t *testing.T, scheme string, grantor Config) {
				p := newPair(t, scheme, Config{}, grantor, nil, nil)
				dst, _ := randomList(t, p.client.cfg.Arena, 10_000)
				defer dst.Release()
				gs, err := p.c.Grant(soon(t), dst, true)
				require.NoError(t, err)
				l := p.c.linkNow()
				if scheme != SchemeTCP && !gs[0].Framed {
					require.NoError(t, p.c.Revoke(soon(t), gs))
					return // the device does it
				}
				b := l.t.frames()
				placing, done := b.resolve(gs, true)
				require.NotNil(t, placing)
				end(p.c, l)
				atOnce, cancel := context.WithCancel(t.Context())
				cancel()
				for range 2 {
					require.ErrorIs(t, p.c.Revoke(atOnce, gs), context.Canceled)
					p.client.settle()
				}
				none, _ := b.resolve(gs, true)
				require.Nil(t, none)
				placing.Release()
				done()
				require.NoError(t, p.c.Revoke(atOnce, gs), "there is nothing to wait for")
				require.Zero(t, b.grants())
				p.client.settle()
				p.client.mu.Lock()
				defer p.client.mu.Unlock()
				require.Empty(t, p.client.ending)
			})
		})
	}
}

// The epoch does not tell whose a grant is: a peer may choose that of the transport
// before for the next one.
func TestRevokeWithTheEpochOfTheNext(t *testing.T) {
	grantors(t, func(t *testing.T, scheme string, grantor Config) {
		_, client, c, _ := losslessPair(t, scheme, grantor)
		dst, _ := randomList(t, client.cfg.Arena, 10_000)
		defer dst.Release()
		gs, err := c.Grant(soon(t), dst, true)
		require.NoError(t, err)
		l := c.linkNow()
		require.True(t, l.t.has(gs[0]))
		placing, done := buffer.NewList(), func() {}
		framed := scheme == SchemeTCP || gs[0].Framed
		if framed {
			placing, done = l.t.frames().resolve(gs, true)
			require.NotNil(t, placing)
		}
		l.fail("test", errInjected)
		require.NoError(t, c.Ready(soon(t)))
		next := c.linkNow().t
		if !framed {
			require.False(t, next.has(ofEpoch(gs, next.(*rdmaTransport).c.Epoch())[0]))
			return
		}
		b := next.frames()
		b.mu.Lock()
		b.epoch = gs[0].Epoch
		b.mu.Unlock()
		atOnce, cancel := context.WithCancel(t.Context())
		cancel()
		require.ErrorIs(t, c.Revoke(atOnce, gs), context.Canceled, "a transfer through it goes on")
		placing.Release()
		done()
		require.NoError(t, c.Revoke(atOnce, gs))
	})
}

// A transport that is about to end, and has no failure yet, grants nothing, and a push
// that it has dropped has not been taken.
func TestGoodbyeOfATransportWithGrants(t *testing.T) {
	accepted := make(chan *Connection, 1)
	server, client := newMessenger(t, Config{Name: EntityName{OSD, 0}}), newMessenger(t, Config{})
	client.offered &^= featurePushed // whose answer would tell, too
	server.SetPolicy(Client, StatefulServer())
	client.SetPolicy(OSD, LosslessClient())
	server.AddDispatcher(&handler{accept: func(c *Connection) { accepted <- c }})
	require.NoError(t, server.Bind(soon(t), anyAddr(SchemeTCP)))
	c, err := client.ConnectTo(OSD, server.Addrs())
	require.NoError(t, err)
	require.NoError(t, c.Ready(soon(t)))
	dst, _ := randomList(t, server.cfg.Arena, 10_000)
	defer dst.Release()
	src, _ := randomList(t, client.cfg.Arena, 10_000)
	defer src.Release()
	sc := receiveOne(t, accepted, "connection")
	gs, err := sc.Grant(soon(t), dst, false)
	require.NoError(t, err)
	ws, err := sc.Grant(soon(t), dst, true)
	require.NoError(t, err)
	l := c.linkNow()
	b := l.t.frames()
	choose(c, func(f *outFrame) (bool, error) {
		b.end() // as goodbye does
		f.data.Release()
		f.over()
		return true, nil
	})
	ended := func(err error) {
		t.Helper()
		require.ErrorIs(t, err, ErrReset)
		require.ErrorIs(t, err, ErrClosed)
		require.NotContains(t, err.Error(), "%!")
	}
	ended(c.Push(soon(t), ws, 0, src))
	_, err = c.Grant(soon(t), src, false)
	ended(err)
	ended(c.Pull(soon(t), src, gs, 0))
	require.NoError(t, l.failure())
}

// A pull does not end while its answer is being placed, also when the transport has
// ended: who has been told may use the memory again.
func TestPullEndsBehindItsAnswer(t *testing.T) {
	p := newPair(t, SchemeTCP, Config{}, Config{}, nil, nil)
	dst, _ := randomList(t, p.client.cfg.Arena, 10_000)
	defer dst.Release()
	l := p.c.linkNow()
	b := l.t.frames()
	m := NewMessage(typePull)
	defer m.Release()
	pulling := func() *pull {
		q := &pull{dst: dst.Share(), n: dst.Len(), ch: make(chan error, 1)}
		require.NoError(t, b.await(soon(t), m, q))
		return q
	}
	waits := pulling()
	placed := pulling()
	placing, done := b.destination(typePulled, m.TID, nil, dst.Len())
	require.NotNil(t, placing)
	l.fail("test", errInjected)
	require.ErrorIs(t, receiveOne(t, waits.ch, "end of a pull"), ErrReset)
	require.Empty(t, placed.ch, "it is being placed")
	placing.Release()
	done()
	require.ErrorIs(t, receiveOne(t, placed.ch, "end of a pull"), ErrReset)
}
