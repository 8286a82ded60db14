package messenger

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Whatever keeps a call from being answered is said at once, not when its
// deadline is over.
func TestCallsThatAreNotAnswered(t *testing.T) {
	const unhandled, released, refused, panics, late, twice = 1, 2, 3, 4, 5, 6
	replied := make(chan error, 1) // the handler's Reply
	reply := func(ctx context.Context, m *Message) {
		r := NewMessage(9)
		err := m.Reply(ctx, r)
		if err != nil {
			r.Release()
		}
		replied <- err
	}
	serve := func(ctx context.Context, m *Message) bool {
		if m.Type == unhandled {
			return false
		}
		defer m.Release()
		switch m.Type {
		case released:
		case refused:
			m.Refuse(17, "not on Sundays\xff"+strings.Repeat("x", maxRefusalText))
			m.Refuse(18, "said once")
			reply(ctx, m)
		case panics:
			panic("no")
		case late: // released by the handler before it panics
			m.Retain().Release()
			panic("no")
		case twice:
			reply(ctx, m)
			panic("after the answer")
		}
		return true
	}
	type policies struct {
		name           string
		client, server Policy
	}
	for _, pol := range []policies{{"lossy", LossyClient(), StatelessServer()}, {"lossless", LosslessClient(), StatefulServer()}} {
		t.Run(pol.name, func(t *testing.T) {
			carriers(t, func(t *testing.T, scheme string) {
				for _, fast := range []bool{false, true} {
					h := &handler{dispatch: serve}
					if fast {
						h = &handler{fast: func(m *Message) bool { return serve(context.Background(), m) }}
					}
					for _, want := range []struct {
						typ    uint16
						reason Reason
						is     error
					}{
						{unhandled, ReasonUnhandled, ErrRemote},
						{released, ReasonUnanswered, ErrRemote},
						{refused, ReasonRefused, ErrRemote},
						{panics, ReasonPanic, ErrHandlerPanic},
						{late, ReasonPanic, ErrHandlerPanic},
					} {
						p := newPairOf(t, scheme, pol.server, pol.client, h)
						m := NewMessage(want.typ)
						_, err := p.c.Call(soon(t), m)
						m.Release()
						var re *RemoteError
						require.ErrorAs(t, err, &re, "type %d, fast %v", want.typ, fast)
						require.ErrorIs(t, err, want.is)
						require.Equal(t, want.reason, re.Reason)
						require.Equal(t, EntityName{OSD, 0}, re.Peer)
						if want.typ == refused {
							require.NoError(t, receiveOne(t, replied, "reply"), "what comes after is dropped")
							require.EqualValues(t, 17, re.Code)
							require.Contains(t, re.Text, "not on Sundays")
						}
						require.EqualValues(t, 1, p.server.Stats().CallsRefused)
					}
					p := newPairOf(t, scheme, pol.server, pol.client, h)
					m := NewMessage(twice)
					r, err := p.c.Call(soon(t), m)
					require.NoError(t, err, "the answer counts")
					require.NoError(t, receiveOne(t, replied, "reply"))
					require.EqualValues(t, 9, r.Type)
					r.Release()
					require.Zero(t, p.server.Stats().CallsRefused)
				}
			})
		})
	}
}

// A lossless session goes on behind a handler that has panicked.
func TestPanicOfALosslessPeer(t *testing.T) {
	carriers(t, func(t *testing.T, scheme string) {
		p := newPairOf(t, scheme, StatefulServer(), LosslessClient(), &handler{dispatch: func(ctx context.Context, m *Message) bool {
			if m.Type == 66 {
				m.Release()
				panic("no")
			}
			return echo(ctx, m)
		}})
		m := NewMessage(66)
		_, err := p.c.Call(soon(t), m)
		require.ErrorIs(t, err, ErrHandlerPanic)
		m.Release()
		r, err := p.c.Call(soon(t), NewMessage(1))
		require.NoError(t, err)
		r.Release()
	})
}

func TestLoopbackCallsThatAreNotAnswered(t *testing.T) {
	m := newMessenger(t, Config{})
	call := NewMessage(1)
	_, err := m.Loopback().Call(soon(t), call)
	require.ErrorIs(t, err, ErrRemote)
	call.Release()
	m.AddDispatcher(&handler{dispatch: func(_ context.Context, m *Message) bool { defer m.Release(); panic("no") }})
	call = NewMessage(1)
	_, err = m.Loopback().Call(soon(t), call)
	require.ErrorIs(t, err, ErrHandlerPanic)
	call.Release()
}

// What the peer would not take fails here, and the connection lives.
func TestTooLargeForThePeer(t *testing.T) {
	const most = 64 << 10
	serve := func(ctx context.Context, m *Message) bool {
		if m.Type == 5 { // an answer that the client does not take
			defer m.Release()
			r := NewMessage(6)
			r.Data, _ = m.Conn.m.cfg.Arena.GetList(ctx, most+1, m.Conn.m.owner)
			if err := m.Reply(ctx, r); !errors.Is(err, ErrTooLarge) {
				t.Errorf("an answer that the client does not take: %v", err)
			}
			r.Release()
			return true
		}
		return echo(ctx, m)
	}
	cfg := Config{MaxData: most, MaxFront: 8 << 10}
	p := newPair(t, SchemeTCP, cfg, cfg, &handler{dispatch: serve}, nil)
	p.client.limits.Data, p.client.limits.Front = 1<<30, 1<<30 // ours say nothing of the peer's
	call := func(typ uint16, front int, data int64) error {
		m := NewMessage(typ)
		m.Grow(front)
		m.Front = m.Front[:front]
		if data > 0 {
			m.Data, _ = randomList(t, p.client.cfg.Arena, data)
		}
		r, err := p.c.Call(soon(t), m)
		if err != nil {
			m.Release()
			return err
		}
		r.Release()
		return nil
	}
	require.NoError(t, call(1, 10, most))
	err := call(1, 10, most+1)
	require.ErrorIs(t, err, ErrTooLarge)
	require.ErrorContains(t, err, "at most 65536")
	require.ErrorIs(t, call(1, 9<<10, 10), ErrTooLarge)
	var re *RemoteError
	require.ErrorAs(t, call(5, 0, 0), &re)
	require.Equal(t, ReasonTooLarge, re.Reason)
	require.NoError(t, call(1, 10, most))
	require.EqualValues(t, 1, p.server.Stats().ConnectionsCreated)
	require.Zero(t, p.client.Stats().Faults)
}

// A call that was queued before it was known what the peer takes ends when it is.
func TestTooLargeBeforeConnected(t *testing.T) {
	for _, pol := range []Policy{LossyClient(), LosslessClient()} {
		server := newMessenger(t, Config{Name: EntityName{OSD, 0}, MaxData: 4096})
		server.AddDispatcher(&handler{dispatch: echo})
		require.NoError(t, server.Bind(soon(t), anyAddr(SchemeTCP)))
		client := newMessenger(t, Config{})
		client.SetPolicy(OSD, pol)
		c, err := client.ConnectTo(OSD, server.Addrs())
		require.NoError(t, err)
		m := NewMessage(1)
		m.Data, _ = randomList(t, client.cfg.Arena, 4097)
		_, err = c.Call(soon(t), m)
		require.ErrorIs(t, err, ErrTooLarge)
		m.Release()
		r, err := c.Call(soon(t), NewMessage(1))
		require.NoError(t, err)
		r.Release()
		require.Zero(t, client.Stats().Faults)
	}
}

// Without a limit of its own a messenger announces what its memory has room for.
func TestLimitOfMemory(t *testing.T) {
	p := newPair(t, SchemeTCP, Config{}, Config{}, nil, nil)
	st := p.server.cfg.Arena.Stats()
	p.c.mu.Lock()
	got := p.c.link.t.(*streamTransport).peer
	p.c.mu.Unlock()
	require.EqualValues(t, st.Budget-st.Reserve, got.Data)
}

func TestTraceTravels(t *testing.T) {
	carriers(t, func(t *testing.T, scheme string) {
		got := make(chan TraceContext, 1)
		p := newPair(t, scheme, Config{}, Config{}, &handler{dispatch: func(ctx context.Context, m *Message) bool {
			got <- m.Trace
			if _, ok := m.Deadline(); !ok {
				t.Error("no deadline")
			}
			return echo(ctx, m)
		}}, nil)
		want := TraceContext{TraceID: [16]byte{1, 15: 16}, SpanID: [8]byte{17, 7: 24}, Flags: 1}
		for _, tc := range []TraceContext{want, {}} {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			m := NewMessage(1)
			m.Front = append(m.Front, "front"...)
			m.Trace = tc
			r, err := p.c.Call(ctx, m)
			require.NoError(t, err)
			require.Equal(t, "front", string(r.Front))
			require.Equal(t, tc, receiveOne(t, got, "trace"))
			r.Release()
			cancel()
		}
	})
}

// What is in a message of Ceph's peers stays as it is.
func TestTraceTowardsCeph(t *testing.T) {
	m := NewMessage(1)
	defer m.Release()
	m.Trace.TraceID[0] = 1
	e := entry{kind: entryMessage, m: m}
	c := newMessenger(t, Config{}).newConnection(OSD, LossyClient())
	f := c.frame(nil, &link{m: c.m}, &e)
	m.Trace = TraceContext{}
	e.seq = 0
	c.session.OutSeq = 0
	require.Equal(t, c.frame(nil, &link{m: c.m}, &e).head, f.head)
	require.NotEmpty(t, f.head)
}
