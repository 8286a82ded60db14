package conn

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A queue pair is destroyed while the poller is busy, with receives of the
// shared queue completed and not polled: they are posted again, so that the other
// connections do not run dry.
func TestReceivesOfAClosedConnComeBack(t *testing.T) {
	hold := make(chan chan struct{}, 1)
	in := make(chan struct{}, 1)
	b := newNode(t, nodeConfig{Config: Config{Pollers: 1, OnMessage: func(_ *Conn, m Message) {
		if string(m.Head) == "hold" {
			in <- struct{}{}
			<-<-hold
		}
	}}})
	a := newNode(t, nodeConfig{Config: Config{Pollers: 1}})
	addr := b.listen()
	first, err := a.Dial(t.Context(), addr)
	require.NoError(t, err)
	firstB := get(t, b.accepted)
	if !b.useSRQ {
		t.Skip("the device has no SRQ")
	}
	l := firstB.l
	for range 4 {
		second, err := a.Dial(t.Context(), addr)
		require.NoError(t, err)
		secondB := get(t, b.accepted)
		require.Same(t, l, secondB.l)
		release := make(chan struct{})
		hold <- release
		require.NoError(t, first.Send(t.Context(), Message{Head: []byte("hold")}))
		<-in
		before := l.srq.Posted()
		for range 12 {
			ok, err := second.TrySend(Message{Head: []byte(strings.Repeat("x", 1500))})
			require.NoError(t, err)
			require.True(t, ok)
		}
		require.Eventually(t, func() bool {
			return second.Stats().PacketsSent >= 12 && (b.dev.Caps().Provider != "iwarp" || l.srq.Posted() <= before)
		}, wait, time.Millisecond)
		require.NoError(t, secondB.Close())
		close(release)
		get(t, secondB.Done())
		get(t, second.Done())
	}
	require.Eventually(t, func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		return l.srq.Posted() >= l.want-1 // but for a packet that is being handled
	}, wait, time.Millisecond, "receives are missing")
	ctx, cancel := context.WithTimeout(t.Context(), wait)
	defer cancel()
	for range 40 {
		require.NoError(t, first.Send(ctx, Message{Head: []byte(strings.Repeat("y", 1500))}))
	}
	require.NoError(t, first.Err())
}

// A QP number that the device uses again before the poller has buried its last
// owner stays its new owner's.
func TestReusedQPN(t *testing.T) {
	p := newPair(t, nodeConfig{}, nodeConfig{})
	c := p.ba
	l := &lane{conns: map[uint32]*Conn{c.qp.QPN(): new(Conn)}}
	l.leave(c, 0)
	require.NotNil(t, l.conn(c.qp.QPN()))
}

// Who is told of a connection before its queue pair is made may see to it at once,
// where it has a receive queue of its own, too.
func TestOwnReceivesWhileAccepting(t *testing.T) {
	b := newNode(t, nodeConfig{Config: Config{noSRQ: true}})
	a := newNode(t, nodeConfig{})
	addr := b.listen()
	for range 10 {
		done := make(chan struct{})
		go func() { // ends when a message has come
			defer close(done)
			for c := <-b.accepted; len(b.messages) == 0; {
				c.Promote()
				b.Stats()
			}
		}()
		c, err := a.Dial(t.Context(), addr)
		require.NoError(t, err)
		a.send(c, "hi")
		get(t, done)
		<-b.messages
		c.Close()
		get(t, c.Done())
	}
}
