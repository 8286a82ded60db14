package messenger

import (
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/argonaut-rdma/argonaut/buffer"
)

// Who calls for more than it takes is told, on each carrier; another answer, or a
// refusal, goes before.
func TestAnswerThatIsTooLarge(t *testing.T) {
	const most = 64 << 10
	const alone, another, refused = 1, 2, 3
	carriers(t, func(t *testing.T, scheme string) {
		ccfg := smallRDMA(t, most)
		ccfg.MaxData = most
		p := newPair(t, scheme, Config{}, ccfg, &handler{dispatch: func(ctx context.Context, m *Message) bool {
			defer m.Release()
			r := NewMessage(9)
			r.Data, _ = m.Conn.m.cfg.Arena.GetList(ctx, most+1, buffer.Anonymous)
			if err := m.Reply(ctx, r); !errors.Is(err, ErrTooLarge) {
				t.Error(err)
			}
			r.Release()
			switch m.Type {
			case another:
				if err := m.Reply(ctx, NewMessage(9)); err != nil {
					t.Error(err)
				}
			case refused:
				m.Refuse(1, "ask for less")
			}
			return true
		}}, nil)
		for typ, reason := range map[uint16]Reason{alone: ReasonTooLarge, refused: ReasonRefused} {
			m := NewMessage(typ)
			_, err := p.c.Call(soon(t), m)
			m.Release()
			var re *RemoteError
			require.ErrorAs(t, err, &re)
			require.Equal(t, reason, re.Reason)
			require.Equal(t, typ == alone, errors.Is(err, ErrTooLarge))
		}
		r, err := p.c.Call(soon(t), NewMessage(another))
		require.NoError(t, err)
		r.Release()
	})
}

// A call that ends with its context says how far it has come.
func TestCallThatIsGivenUp(t *testing.T) {
	hold := make(chan struct{})
	p := newPair(t, SchemeTCP, Config{}, Config{}, &handler{dispatch: func(_ context.Context, m *Message) bool {
		<-hold
		m.Release()
		return true
	}}, nil)
	defer close(hold)
	call := func(c *Connection) error {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		m := NewMessage(1)
		defer m.Release()
		_, err := c.Call(ctx, m)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		return err
	}
	err := call(p.c)
	require.ErrorContains(t, err, "has been sent")
	require.ErrorContains(t, err, "is open")

	policy := LosslessPeer()
	policy.QueueMessages = 1
	p.client.SetPolicy(MDS, policy)
	c, err := p.client.ConnectTo(MDS, AddrVec{{URL: "tcp://127.0.0.1:1"}})
	require.NoError(t, err)
	require.Eventually(t, func() bool { return c.Err() != nil }, patience, time.Millisecond)
	for queued, what := range []string{"has not been sent; ", "has not been sent, the queue is full; "} {
		err = call(c)
		require.Equal(t, queued, c.Stats().QueuedMessages, "it does not wait any more")
		require.ErrorContains(t, err, what)
		require.ErrorContains(t, err, "is connecting")
		require.ErrorContains(t, err, "its last error: messenger: connect 127.0.0.1:1")
		if queued == 0 {
			require.NoError(t, c.Send(soon(t), NewMessage(2)))
		}
	}
	c.MarkDown()
}

// A call that is given up while it waits in the queue is not served.
func TestCallThatIsGivenUpInTheQueue(t *testing.T) {
	carriers(t, func(t *testing.T, scheme string) {
		var got syncSlice[uint16]
		p := newPairOf(t, scheme, StatelessServer(), LossyClient(), &handler{dispatch: func(ctx context.Context, m *Message) bool {
			got.add(m.Type)
			return echo(ctx, m)
		}})
		p.c.mu.Lock()
		p.c.draining = true // somebody is at it
		p.c.mu.Unlock()
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		m := NewMessage(1)
		go func() { // ends with ctx
			_, err := p.c.Call(ctx, m)
			ended <- err
		}()
		require.Eventually(t, func() bool { return p.c.Stats().QueuedMessages == 1 }, patience, time.Millisecond)
		cancel()
		require.ErrorContains(t, <-ended, "has not been sent")
		m.Release()
		p.c.mu.Lock()
		p.c.draining = false
		p.c.kick()
		p.c.mu.Unlock()
		r, err := p.c.Call(soon(t), NewMessage(2))
		require.NoError(t, err)
		r.Release()
		require.Equal(t, []uint16{2}, got.all())
	})
}

// A call that is given up while its lossless session has no transport ends at the
// peer as soon as there is one again.
func TestCallThatIsGivenUpWithoutATransport(t *testing.T) {
	began, over := make(chan struct{}), make(chan struct{})
	server := newMessenger(t, Config{Name: EntityName{OSD, 0}})
	server.SetPolicy(Client, StatefulServer())
	server.AddDispatcher(&handler{dispatch: func(ctx context.Context, m *Message) bool {
		close(began)
		<-ctx.Done()
		m.Release()
		close(over)
		return true
	}})
	require.NoError(t, server.Bind(soon(t), anyAddr(SchemeTCP)))
	var away atomic.Bool
	client := newMessenger(t, Config{DialStream: func(ctx context.Context, hostport string) (net.Conn, error) {
		if away.Load() {
			return nil, errInjected
		}
		var d net.Dialer
		return d.DialContext(ctx, "tcp", hostport)
	}})
	client.SetPolicy(OSD, LosslessClient())
	c, err := client.ConnectTo(OSD, server.Addrs())
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	m := NewMessage(1)
	go func() { // ends with ctx
		_, err := c.Call(ctx, m)
		ended <- err
	}()
	<-began
	away.Store(true)
	c.mu.Lock()
	l := c.link
	c.mu.Unlock()
	l.fail("test", errInjected)
	require.NotEqual(t, StateOpen, c.State())
	cancel()
	require.ErrorContains(t, <-ended, "has been sent")
	m.Release()
	away.Store(false)
	select {
	case <-over:
	case <-time.After(patience):
		t.Fatal("the handler is not told")
	}
}

// Each holder of a reference may give it to Send, whatever the others do.
func TestSentByMany(t *testing.T) {
	const senders = 6
	for range 5000 {
		m := NewMessage(1)
		var all, in sync.WaitGroup
		in.Add(senders)
		for range senders {
			all.Go(func() {
				r := m.Retain()
				r.sending()
				in.Done()
				in.Wait()
				r.sent()
			})
		}
		all.Wait()
		m.Release()
	}
}

// A link that is about to end, because a handler has panicked, takes nothing in
// and is not ended twice; a lossless session gets it on the next.
func TestLinkThatIsLeaving(t *testing.T) {
	var got syncSlice[uint64]
	accepted := make(chan *Connection, 16)
	p := newPairOf(t, SchemeTCP, StatefulServer(), LosslessClient(), &handler{
		accept: func(c *Connection) { accepted <- c },
		fast: func(m *Message) bool {
			got.add(m.TID)
			m.Release()
			return true
		}})
	sc := receiveOne(t, accepted, "accepted connection")
	sc.mu.Lock()
	l := sc.link
	sc.mu.Unlock()
	require.True(t, l.leaving("dispatch", ErrHandlerPanic))
	require.False(t, l.leaving("dispatch", ErrHandlerPanic))
	sc.failAfterFlush("dispatch", ErrHandlerPanic) // the second to do so
	before, _ := l.transport().progress()
	want := []uint64{1, 2, 3, 4, 5}
	for _, tid := range want {
		m := NewMessage(7)
		m.TID = tid
		m.Grow(1000)
		m.Front = m.Front[:1000]
		require.NoError(t, p.c.Send(soon(t), m))
	}
	require.Eventually(t, func() bool {
		now, _ := l.transport().progress()
		return now-before > 5000
	}, patience, time.Millisecond)
	require.NoError(t, l.failure())
	require.Empty(t, got.all())
	l.fail("", nil)
	require.Eventually(t, func() bool { return len(got.all()) == len(want) }, patience, time.Millisecond)
	require.Equal(t, want, got.all())
}
