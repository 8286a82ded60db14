package messenger_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	. "github.com/argonaut-rdma/argonaut/messenger"
)

// keeper consumes everything in FastDispatch and keeps it.
type keeper struct {
	BaseDispatcher
	kept chan *Message
}

func (k *keeper) FastDispatch(m *Message) bool {
	k.kept <- m
	return true
}

// newKeeper is a duo whose node 1 keeps what it gets, and a session with it.
func newKeeper(t *testing.T) (*duo, *Connection, chan *Message) {
	k := &keeper{kept: make(chan *Message, 16)}
	d := newDuo(t, LosslessPeer(), LosslessPeer())
	d.Nodes[1].AddDispatcher(k)
	c := d.connect(t, 0)
	ready(t, c)
	return d, c, k.kept
}

// calling calls in a goroutine, which ends with the call.
func calling(ctx context.Context, c *Connection) chan error {
	ended := make(chan error, 1)
	go func() {
		m := NewMessage(1)
		r, err := c.Call(ctx, m)
		if err != nil {
			m.Release()
			ended <- err
			return
		}
		r.Release()
		ended <- nil
	}()
	return ended
}

func answer(t *testing.T, m *Message) {
	t.Helper()
	require.NoError(t, m.Reply(t.Context(), NewMessage(2)))
	m.Release()
}

// A call that FastDispatch keeps has a context, which ends with the caller's
// deadline, his cancelling, the connection, and the message, whether somebody has
// asked for it before or asks then.
func TestContextOfAFastDispatchedCall(t *testing.T) {
	for _, early := range []bool{true, false} {
		under(t, func(t *testing.T) {
			d, c, kept := newKeeper(t)
			get := func(ctx context.Context) (*Message, chan error) {
				ended := calling(ctx, c)
				m := <-kept
				if early {
					require.NoError(t, m.Context().Err())
				}
				return m, ended
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			m, ended := get(ctx)
			require.ErrorIs(t, <-ended, context.DeadlineExceeded)
			settle(time.Second)
			until, ok := m.Context().Deadline()
			require.True(t, ok)
			require.WithinDuration(t, time.Now(), until, 2*time.Second)
			require.Error(t, m.Context().Err(), "the cancel may have come first")
			m.Release()
			cancel()

			ctx, cancel = context.WithCancel(t.Context())
			m, ended = get(ctx)
			cancel()
			require.ErrorIs(t, <-ended, context.Canceled)
			settle(time.Second)
			require.ErrorIs(t, m.Context().Err(), context.Canceled)
			m.Release()
			require.Zero(t, d.Nodes[1].Stats().CallsRefused, "nobody waits for these")

			m, ended = get(t.Context())
			served := m.Context()
			answer(t, m)
			require.NoError(t, <-ended)
			require.ErrorIs(t, served.Err(), context.Canceled)

			m, ended = get(t.Context())
			m.Conn.MarkDown()
			require.ErrorIs(t, m.Context().Err(), context.Canceled)
			m.Release()
			c.MarkDown()
			require.ErrorIs(t, <-ended, ErrClosed)
		})
	}
}

// Drain and Shutdown wait for the answers to calls that FastDispatch has kept,
// and they arrive.
func TestShutdownWaitsForFastDispatchedCalls(t *testing.T) {
	for name, end := range map[string]func(*Messenger, context.Context) error{
		"drain": (*Messenger).Drain, "shutdown": (*Messenger).Shutdown,
	} {
		t.Run(name, func(t *testing.T) {
			under(t, func(t *testing.T) {
				d, c, kept := newKeeper(t)
				ended := calling(t.Context(), c)
				m := <-kept
				over := make(chan error, 1)
				go func() { over <- end(d.Nodes[1].Messenger, t.Context()) }() // ends with the answer
				settle(time.Minute)
				require.Empty(t, over)
				require.NoError(t, m.Context().Err())
				answer(t, m)
				require.NoError(t, <-ended)
				require.NoError(t, <-over)
			})
		})
	}
}

// One that has panicked is not waited for, and its context ends.
func TestFastDispatchedCallThatPanics(t *testing.T) {
	under(t, func(t *testing.T) {
		d := newDuo(t, LosslessPeer(), LosslessPeer())
		leaked := make(chan *Message, 1)
		d.Nodes[1].AddDispatcher(&fastPanic{leaked: leaked})
		c := d.connect(t, 0)
		require.ErrorIs(t, <-calling(t.Context(), c), ErrHandlerPanic)
		m := <-leaked
		require.ErrorIs(t, m.Context().Err(), context.Canceled)
		require.NoError(t, d.Nodes[1].Shutdown(t.Context()))
		m.Release()
	})
}

type fastPanic struct {
	BaseDispatcher
	leaked chan *Message
}

func (f *fastPanic) FastDispatch(m *Message) bool {
	f.leaked <- m
	panic("in a test")
}

// A call that is passed on to another node, with a number of that connection's, is
// served until it is released all the same.
func TestCallThatIsPassedOn(t *testing.T) {
	under(t, func(t *testing.T) {
		d := newDuo(t, LosslessPeer(), LosslessPeer())
		proxy := unbound(t, d, 7)
		onward, err := proxy.ConnectTo(OSD, d.Nodes[0].Addrs())
		require.NoError(t, err)
		proxy.AddDispatcher(&passOn{to: onward})
		require.NoError(t, proxy.Bind(t.Context(), AddrVec{{URL: "tcp://" + d.Nodes[0].Host + ":7100"}}))
		c, err := d.Nodes[1].ConnectTo(OSD, proxy.Addrs())
		require.NoError(t, err)
		require.ErrorIs(t, <-calling(t.Context(), c), ErrRemote, "it is not answered here")
		settle(time.Second)
		require.NoError(t, proxy.Drain(t.Context()))
	})
}

type passOn struct {
	BaseDispatcher
	to *Connection
}

func (p *passOn) Dispatch(ctx context.Context, m *Message) bool {
	defer m.Release()
	if r, err := p.to.Call(ctx, m.Retain()); err == nil {
		r.Release()
	} else {
		m.Release()
	}
	return true
}
