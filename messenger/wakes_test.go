package messenger

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/argonaut-rdma/argonaut/messenger/internal/session"
)

// waitsForRoom starts a Send on c, whose queue is full, and returns when it waits.
func waitsForRoom(t *testing.T, c *Connection) <-chan error {
	t.Helper()
	sent := make(chan error, 1)
	m := NewMessage(1)
	go func() { // ends with room, or with the connection
		err := c.Send(soon(t), m)
		if err != nil {
			m.Release()
		}
		sent <- err
	}()
	require.Eventually(t, func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.waiting.n == 1
	}, patience, time.Millisecond)
	return sent
}

// What is dropped because it belongs to a transport that has ended makes room.
func TestDroppedFramesMakeRoom(t *testing.T) {
	ways := map[string]func(c *Connection){
		"fault": func(c *Connection) { c.fault(ErrTimeout) },
		"taken over": func(c *Connection) {
			l := c.m.newLink(SchemeTCP, "test", true)
			c.take(l, &hsResult{}, session.Incoming{Opening: session.Opening{Reconnect: true}}, false)
		},
	}
	for name, way := range ways {
		t.Run(name, func(t *testing.T) {
			m := newMessenger(t, Config{})
			p := LosslessPeer()
			p.QueueMessages = 2
			c := m.newConnection(OSD, p)
			defer c.MarkDown()
			c.mu.Lock()
			for range 3 {
				f := NewMessage(typePull)
				f.sending()
				c.queue.push(entry{kind: entryMessage, m: f, bound: true})
			}
			c.mu.Unlock()
			sent := waitsForRoom(t, c)
			c.mu.Lock()
			way(c)
			require.NoError(t, receiveOne(t, sent, "end of Send"))
		})
	}
}

// So does what a session does not keep any more.
func TestMarkDisposableMakesRoom(t *testing.T) {
	block := make(chan struct{})
	defer close(block)
	sp, cp := StatefulServer(), LosslessClient()
	cp.QueueMessages = 2
	p := newPairOf(t, SchemeTCP, sp, cp, &handler{fast: func(m *Message) bool { m.Release(); <-block; return true }})
	c := p.c
	for range 3 { // the first is acknowledged while its handler runs, the others are not
		require.NoError(t, c.Send(soon(t), NewMessage(1)))
	}
	require.Eventually(t, func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.sent.n == 2 && !c.draining
	}, patience, time.Millisecond)
	sent := waitsForRoom(t, c)
	c.MarkDisposable()
	require.NoError(t, receiveOne(t, sent, "end of Send"))
}

// Of those that wait for room the one that is woken, and finds that it need not
// queue, wakes the next: there is no queue left whose sender would.
func TestRoomIsPassedOn(t *testing.T) {
	p := newPair(t, schemeDevice, Config{}, Config{}, nil, nil)
	c := p.c
	c.mu.Lock()
	c.policy.QueueMessages = 1
	c.draining = true // the test is the one who sends the queue
	c.mu.Unlock()
	ok, err := c.TrySend(NewMessage(1))
	require.NoError(t, err)
	require.True(t, ok)
	sent := make(chan error, 2)
	for range 2 {
		go func() { sent <- c.Send(soon(t), NewMessage(1)) }()
	}
	require.Eventually(t, func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.waiting.n == 2
	}, patience, time.Millisecond)
	c.mu.Lock()
	e, ok := c.queue.pop()
	c.draining = false
	c.wakeSender()
	c.mu.Unlock()
	require.True(t, ok)
	e.m.sent()
	for range 2 {
		require.NoError(t, receiveOne(t, sent, "end of a send"))
	}
}
