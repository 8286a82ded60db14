package messenger

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// lossyTransport loses the first frame that is sent.
type lossyTransport struct {
	transport
	sends atomic.Int32
}

func (t *lossyTransport) send(f outFrame) error {
	if t.sends.Add(1) == 1 {
		return errors.New("lost")
	}
	return t.transport.send(f)
}

// After a frame that could not be sent nothing is sent on its transport, also
// while somebody else is just ending that: the peer would take the next message,
// and the lost one for a repeated one when it comes.
func TestNothingFollowsALostFrame(t *testing.T) {
	carriers(t, func(t *testing.T, scheme string) {
		got := make(chan uint16, 4)
		p := newPairOf(t, scheme, StatefulServer(), LosslessClient(), &handler{dispatch: func(_ context.Context, m *Message) bool {
			got <- m.Type
			m.Release()
			return true
		}})
		c := p.c
		c.mu.Lock()
		l := c.link
		l.mu.Lock()
		l.ended = true // another goroutine is in link.fail
		bad := &lossyTransport{transport: l.t}
		l.t = bad
		l.mu.Unlock()
		for typ := range uint16(3) {
			m := NewMessage(typ + 1)
			c.queue.push(entry{kind: entryMessage, m: m, size: m.size(), since: time.Now()})
		}
		c.kick()
		c.mu.Unlock()
		for typ := range uint16(3) {
			require.Equal(t, typ+1, receiveOne(t, got, "message"))
		}
		require.EqualValues(t, 1, bad.sends.Load())
		l.mu.Lock()
		l.ended = false
		l.mu.Unlock()
		l.fail("test", errInjected) // which it would have gone on with
	})
}
