package messenger

import (
	"context"
	"errors"
	"slices"
	"strings"
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

// A gap in the numbers of messages is counted each time, and logged now and then.
func TestGapsAreLogged(t *testing.T) {
	carriers(t, func(t *testing.T, scheme string) {
		var lines syncSlice[string]
		got := make(chan struct{}, 8)
		p := newPair(t, scheme, Config{Logger: newLogger(&lines)}, Config{}, &handler{fast: func(m *Message) bool {
			m.Release()
			got <- struct{}{}
			return true
		}}, nil)
		for range 3 {
			p.c.mu.Lock()
			p.c.session.OutSeq += 5
			p.c.mu.Unlock()
			require.NoError(t, p.c.Send(soon(t), NewMessage(1)))
			receiveOne(t, got, "message")
		}
		require.EqualValues(t, 3, p.server.Stats().Skipped)
		gaps := slices.DeleteFunc(lines.all(), func(s string) bool { return !strings.Contains(s, "numbers of received messages are missing") })
		require.NotEmpty(t, gaps)
		require.Contains(t, gaps[0], "after=0 next=6 gaps=1")
		require.Contains(t, gaps[0], "level=WARN")
		if p.server.clock() < int64(gapLogPause) {
			require.Len(t, gaps, 1)
		}
		p.server.gapLogged.Store(-int64(gapLogPause)) // long ago
		p.c.mu.Lock()
		p.c.session.OutSeq++
		p.c.mu.Unlock()
		require.NoError(t, p.c.Send(soon(t), NewMessage(1)))
		receiveOne(t, got, "message")
		require.Equal(t, len(gaps)+1, strings.Count(lines.String(), "numbers of received messages are missing"))
	})
}
