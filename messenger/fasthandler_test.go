package messenger

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// fastRecorder notes, in order, what happens on the goroutine that reads.
type fastRecorder struct {
	handler
	got   syncSlice[string]
	panic atomic.Bool
}

func (f *fastRecorder) FastHandleConnect(c *Connection) { f.note(c, "connect") }
func (f *fastRecorder) FastHandleAccept(c *Connection)  { f.note(c, "accept") }

func (f *fastRecorder) note(c *Connection, what string) {
	f.got.add(what)
	if f.panic.CompareAndSwap(true, false) {
		panic("in a test")
	}
	if err := c.Messenger().Shutdown(nil); err == nil { //nolint:staticcheck // it is refused before it looks at it
		f.got.add("Shutdown did not notice that it is in a handler")
	}
}

// ender ends the transport where it is told of it, or of a message, and notes the
// order of what comes behind.
type ender struct {
	handler
	atOnce bool
	got    syncSlice[string]
	reset  chan struct{}
	held   atomic.Pointer[Message]
}

func (e *ender) FastHandleConnect(*Connection) {}

func (e *ender) FastHandleAccept(c *Connection) {
	if e.atOnce {
		e.end(c)
	}
}

func (e *ender) end(c *Connection) {
	c.mu.Lock()
	l := c.link
	c.mu.Unlock()
	l.fail("test", errInjected)
}

func newEnder(t *testing.T, atOnce bool) (*ender, *Connection) {
	e := &ender{atOnce: atOnce, reset: make(chan struct{})}
	e.accept = func(*Connection) { e.got.add("accept") }
	e.handler.reset = func(*Connection) { e.got.add("reset"); close(e.reset) }
	e.dispatch = func(_ context.Context, m *Message) bool {
		e.got.add("message")
		m.Release()
		return true
	}
	e.fast = func(m *Message) bool {
		e.held.Store(m.Retain())
		e.end(m.Conn)
		<-e.reset
		return false
	}
	server, client := newMessenger(t, Config{Name: EntityName{OSD, 0}}), newMessenger(t, Config{})
	server.AddDispatcher(e)
	require.NoError(t, server.Bind(soon(t), anyAddr(SchemeTCP)))
	c, err := client.ConnectTo(OSD, server.Addrs())
	require.NoError(t, err)
	return e, c
}

// A session that ends while the fast handlers are told of it is accepted first.
func TestResetComesBehindAccept(t *testing.T) {
	e, _ := newEnder(t, true)
	require.Eventually(t, func() bool { return len(e.got.all()) == 2 }, patience, time.Millisecond, "%v", &e.got)
	require.Equal(t, []string{"accept", "reset"}, e.got.all())
}

// What FastDispatch leaves to Dispatch when HandleReset has been called is released.
func TestNothingComesBehindReset(t *testing.T) {
	e, c := newEnder(t, false)
	require.NoError(t, c.Send(soon(t), NewMessage(1)))
	require.Eventually(t, func() bool { m := e.held.Load(); return m != nil && refsIn(m.counts.Load()) == 1 }, patience, time.Millisecond)
	e.held.Load().Release()
	require.Equal(t, []string{"accept", "reset"}, e.got.all())
}

// Of each transport the fast handlers hear before its first message is dispatched,
// on both sides; a panic there ends it.
func TestFastHandlers(t *testing.T) {
	carriers(t, func(t *testing.T, scheme string) {
		server, client := &fastRecorder{}, &fastRecorder{}
		server.fast = func(m *Message) bool {
			server.got.add(fmt.Sprint(m.TID))
			m.Release()
			return true
		}
		s, c := newMessenger(t, Config{Name: EntityName{OSD, 0}}), newMessenger(t, Config{})
		s.SetPolicy(Client, StatefulServer())
		c.SetPolicy(OSD, LosslessClient())
		s.AddDispatcher(&handler{dispatch: echo}) // one that has none
		s.AddDispatcher(server)
		c.AddDispatcher(client)
		require.NoError(t, s.Bind(soon(t), anyAddr(scheme)))
		conn, err := c.ConnectTo(OSD, s.Addrs())
		require.NoError(t, err)
		var want []string
		send := func(tid uint64) {
			m := NewMessage(1)
			m.TID = tid
			require.NoError(t, conn.Send(soon(t), m))
			want = append(want, fmt.Sprint(tid))
		}
		arrived := func() {
			require.Eventually(t, func() bool { return len(server.got.all()) == len(want) }, patience, time.Millisecond, "%v", &server.got)
			require.Equal(t, want, server.got.all())
		}
		want = append(want, "accept")
		send(1)
		send(2)
		arrived()
		require.Equal(t, []string{"connect"}, client.got.all())

		// Queued before the next transport is there: it comes behind.
		conn.mu.Lock()
		l := conn.link
		conn.mu.Unlock()
		server.panic.Store(true)
		l.fail("test", errInjected)
		want = append(want, "accept", "accept") // the first of them panics
		send(3)
		send(4)
		arrived()
		require.EqualValues(t, 1, s.Stats().HandlerPanics)
	})
}

// A call whose FastDispatch panics is over for who drains.
func TestDrainSeesThatAFastHandlerHasPanicked(t *testing.T) {
	began, end := make(chan *Message, 1), make(chan struct{})
	p := newPairOf(t, SchemeTCP, StatefulServer(), LosslessClient(), &handler{fast: func(m *Message) bool {
		began <- m
		<-end
		panic("in a test")
	}})
	ended := make(chan error, 1)
	go func() { // ends with the panic
		_, err := p.c.Call(soon(t), NewMessage(1))
		ended <- err
	}()
	m := <-began
	p.server.servedCall() // Drain has looked when it has taken that
	drained := make(chan error, 1)
	go func() { drained <- p.server.Drain(soon(t)) }()
	require.Eventually(t, func() bool { return len(p.server.servedOne) == 0 }, patience, time.Millisecond)
	close(end)
	require.NoError(t, <-drained)
	require.Error(t, <-ended)
	m.Release()
}
