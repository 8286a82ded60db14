package conn

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/argonaut-rdma/argonaut/buffer"
	"github.com/argonaut-rdma/argonaut/verbs/verbstest"
)

// The numbers of send slots pass 2^32, which is no multiple of the slots.
func TestSlotNumbersPass32Bits(t *testing.T) {
	hold := make(chan struct{})
	got := make(chan string, 1000)
	b := newNode(t, nodeConfig{Config: Config{OnMessage: func(_ *Conn, m Message) {
		<-hold
		got <- string(m.Head[:4])
	}}})
	a := newNode(t, nodeConfig{})
	c, err := a.Dial(t.Context(), b.listen())
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.tx.retired == c.tx.built
	}, wait, time.Millisecond)
	c.mu.Lock()
	c.tx.retired = 1<<32 - 20
	c.tx.posted, c.tx.built = c.tx.retired, c.tx.retired
	c.mu.Unlock()
	const n = 55
	for i := range n {
		ok, err := c.TrySend(Message{Head: []byte(fmt.Sprintf("%04d", i) + strings.Repeat("x", 1500))})
		require.NoError(t, err)
		require.True(t, ok, i)
	}
	close(hold)
	for i := range n {
		require.Equal(t, fmt.Sprintf("%04d", i), get(t, got))
	}
}

// An RTS that can not have its keys would have joined a packet that holds the
// last part of the message before: that one goes out nevertheless.
func TestRefusedRTSLeavesItsPacket(t *testing.T) {
	var refuse atomic.Bool
	s := &verbstest.Script{Call: func(c verbstest.Call) verbstest.Fault {
		if c.Op == verbstest.CallRegScoped && refuse.Load() {
			return verbstest.Fault{Err: errInjected}
		}
		return verbstest.Fault{}
	}}
	b := newNode(t, nodeConfig{})
	needKeys(t, b.dev)
	a, err := newSide(t, s, Config{EagerMax: 40 << 10})
	require.NoError(t, err)
	c, err := a.e.Dial(t.Context(), b.listen())
	require.NoError(t, err)
	get(t, b.accepted)
	require.True(t, c.canRndv)
	// Nothing is posted until all is built: as when credits are out.
	c.mu.Lock()
	credits := c.credits
	c.credits = 0
	c.mu.Unlock()
	list := func(n int) *buffer.List {
		l, err := a.a.GetList(context.Background(), int64(n), buffer.Anonymous)
		require.NoError(t, err)
		return l
	}
	ok, err := c.TrySend(Message{Head: []byte("first"), Payload: list(20 << 10)})
	require.NoError(t, err)
	require.True(t, ok)
	refuse.Store(true)
	big := list(50 << 10)
	_, err = c.TrySend(Message{Head: []byte("second"), Payload: big})
	require.Error(t, err)
	big.Release()
	refuse.Store(false)
	c.mu.Lock()
	c.credits = credits
	c.mu.Unlock()
	ok, err = c.TrySend(Message{Head: []byte("third")})
	require.NoError(t, err)
	require.True(t, ok)
	require.Equal(t, "first", get(t, b.messages).head)
	require.Equal(t, "third", get(t, b.messages).head)
	require.NoError(t, c.Close())
	get(t, c.Done())
	a.end(t)
}

// Who is given a Conn by OnAccept may send at once, while its send slots still
// wait for memory: there is no room yet.
func TestSendWhileBeingAccepted(t *testing.T) {
	type outcome struct {
		ok  bool
		err error
	}
	res := make(chan outcome, 1)
	var b *node
	b = newNode(t, nodeConfig{Config: Config{OnAccept: func(c *Conn) bool {
		var all []buffer.RDMABuffer
		for _, n := range []int{1 << 20, 128 << 10, 16 << 10, 4 << 10} {
			for {
				x, ok := b.a.TryGet(n, buffer.Anonymous)
				if !ok {
					break
				}
				all = append(all, x)
			}
		}
		go func() { // ends when the accepting goroutine waits for memory
			for b.a.Stats().Waiting == 0 && c.Err() == nil {
				time.Sleep(time.Millisecond)
			}
			ok, err := c.TrySend(Message{Head: []byte("hello")})
			c.Doorbell()
			sent := make(chan error, 1)
			go func() { sent <- c.Send(context.Background(), Message{Head: []byte("later")}) }() // ends when there is room
			for c.Stats().SendWaits == 0 && c.Err() == nil {
				time.Sleep(time.Millisecond)
			}
			for _, x := range all {
				x.Release()
			}
			if err == nil {
				err = <-sent
			}
			res <- outcome{ok, err}
		}()
		return true
	}}})
	a := newNode(t, nodeConfig{})
	dialed := make(chan error, 1)
	go func() { // ends with the dial
		_, err := a.Dial(t.Context(), b.listen())
		dialed <- err
	}()
	require.Equal(t, outcome{}, get(t, res))
	require.NoError(t, get(t, dialed))
}
