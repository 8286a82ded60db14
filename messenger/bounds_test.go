package messenger

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A peer that calls and calls, and reads no refusal, loses its session, lossless
// though it is; what waited for it is gone.
func TestRefusalsAreBounded(t *testing.T) {
	resets := make(chan *Connection, 1)
	accepted := make(chan *Connection, 1)
	first := func(ch chan *Connection) func(*Connection) { // the client connects again
		return func(c *Connection) {
			select {
			case ch <- c:
			default:
			}
		}
	}
	p := newPairOf(t, SchemeTCP, StatefulServer(), LosslessClient(), &handler{accept: first(accepted), reset: first(resets)})
	sc := receiveOne(t, accepted, "accepted connection")
	block := make(chan struct{})
	defer close(block)
	blocked := make(chan struct{})
	p.client.AddDispatcher(&handler{fast: func(m *Message) bool { m.Release(); close(blocked); <-block; return true }})
	require.NoError(t, sc.Send(soon(t), NewMessage(9)))
	receiveOne(t, blocked, "message: the client's reader stands")
	p.c.mu.Lock()
	p.c.policy.QueueMessages, p.c.policy.QueueBytes = -1, -1
	p.c.mu.Unlock()
	const before, few = maxRefusals - 100, 100
	sc.refusals.Add(before) // as if so many had been refused
	for i := range 2 * few {
		m := NewMessage(1)
		m.TID = uint64(i + 1)
		_, err := p.c.enqueue(context.Background(), m, purpose{flags: flagCall})
		require.NoError(t, err)
	}
	require.Equal(t, sc, receiveOne(t, resets, "reset of the session"))
	require.ErrorIs(t, sc.Err(), ErrProtocol)
	require.Equal(t, StateClosed, sc.State())
	require.Eventually(t, func() bool { return sc.refusals.Load() == before }, patience, time.Millisecond, "none is kept")
}

// A peer that reads may be refused as many calls as it likes.
func TestRefusalsThatAreTaken(t *testing.T) {
	accepted := make(chan *Connection, 1)
	p := newPairOf(t, SchemeTCP, StatefulServer(), LosslessClient(), &handler{accept: func(c *Connection) { accepted <- c }})
	sc := receiveOne(t, accepted, "accepted connection")
	for range 3 {
		m := NewMessage(1)
		_, err := p.c.Call(soon(t), m)
		require.ErrorIs(t, err, ErrRemote)
		m.Release()
	}
	require.Eventually(t, func() bool { return sc.refusals.Load() == 0 }, patience, time.Millisecond, "acknowledged")
	require.Equal(t, StateOpen, sc.State())
}
