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

	"github.com/argonaut-rdma/argonaut/messenger/internal/msgr2"
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

// collect is a dispatcher that tells the types of what comes.
func collect(to chan uint16) *handler {
	return &handler{dispatch: func(_ context.Context, m *Message) bool {
		defer m.Release()
		to <- m.Type
		return true
	}}
}

// sendTypes sends messages of these types.
func sendTypes(t *testing.T, c *Connection, types ...uint16) {
	t.Helper()
	for _, typ := range types {
		require.NoError(t, c.Send(soon(t), NewMessage(typ)))
	}
}

// A gap of a peer that does not announce those that it means is counted each time,
// and logged now and then.
func TestGapsAreLogged(t *testing.T) {
	carriers(t, func(t *testing.T, scheme string) {
		var lines syncSlice[string]
		got := make(chan uint16, 8)
		server := newMessenger(t, Config{Name: EntityName{OSD, 0}, Logger: newLogger(&lines)})
		server.SetPolicy(Client, StatefulServer())
		server.AddDispatcher(collect(got))
		require.NoError(t, server.Bind(soon(t), anyAddr(scheme)))
		client := newMessenger(t, Config{})
		client.offered &^= featureGaps
		client.SetPolicy(OSD, LosslessClient())
		c, err := client.ConnectTo(OSD, server.Addrs())
		require.NoError(t, err)
		require.NoError(t, c.Ready(soon(t)))
		for range 3 {
			skipNumbers(c, 5)
			sendTypes(t, c, 1)
			receiveOne(t, got, "message")
		}
		require.EqualValues(t, 3, server.Stats().Skipped)
		gaps := slices.DeleteFunc(lines.all(), func(s string) bool { return !strings.Contains(s, "numbers of received messages are missing") })
		require.NotEmpty(t, gaps)
		require.Contains(t, gaps[0], "after=0 next=6 gaps=1")
		require.Contains(t, gaps[0], "level=WARN")
		if server.clock() < int64(logPause) {
			require.Len(t, gaps, 1)
		}
		server.gapLogged.Store(-int64(logPause)) // long ago
		skipNumbers(c, 1)
		sendTypes(t, c, 1)
		receiveOne(t, got, "message")
		require.Equal(t, len(gaps)+1, strings.Count(lines.String(), "numbers of received messages are missing"))
		require.Zero(t, c.Stats().Reconnects)
	})
}

// skipNumbers has c give up n numbers.
func skipNumbers(c *Connection, n uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.session.OutSeq += n
}

// A gap that is meant is announced: it is counted, and nothing else.
func TestMeantGaps(t *testing.T) {
	carriers(t, func(t *testing.T, scheme string) {
		got := make(chan uint16, 8)
		p := newPairOf(t, scheme, StatefulServer(), LosslessClient(), collect(got))
		sendTypes(t, p.c, 1)
		require.EqualValues(t, 1, receiveOne(t, got, "message"))
		skipNumbers(p.c, 1<<40)
		for typ := range uint16(3) {
			sendTypes(t, p.c, typ)
			require.Equal(t, typ, receiveOne(t, got, "message"))
		}
		require.EqualValues(t, 1, p.server.Stats().Skipped)
		require.EqualValues(t, 1<<40+4, p.c.Stats().OutSeq)
		// Also those of before that are not sent on the next transport.
		skipNumbers(p.c, 3)
		p.c.mu.Lock()
		l := p.c.link
		p.c.mu.Unlock()
		l.fail("test", errInjected)
		sendTypes(t, p.c, 9)
		require.EqualValues(t, 9, receiveOne(t, got, "message"))
		require.EqualValues(t, 2, p.server.Stats().Skipped)
		require.EqualValues(t, 1, p.c.Stats().Reconnects)
		require.Zero(t, p.server.Stats().ProtocolErrors)
	})
}

// choosyTransport does with a frame what is to be done with it.
type choosyTransport struct {
	transport
	fate func(f *outFrame) (bool, error) // false: it is sent
}

func (t *choosyTransport) send(f outFrame) error {
	if taken, err := t.fate(&f); taken || err != nil {
		return err
	}
	return t.transport.send(f)
}

func (t *choosyTransport) try(outFrame) (bool, error) { return false, nil }

// choose has the present transport of c do so with messages.
func choose(c *Connection, fate func(f *outFrame) (bool, error)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	l := c.link
	l.mu.Lock()
	defer l.mu.Unlock()
	l.t = &choosyTransport{l.t, func(f *outFrame) (bool, error) {
		if msgr2.Tag(f.head[0]) != msgr2.TagMessage {
			return false, nil
		}
		return fate(f)
	}}
}

// What is lost between the two, without an error, ends the transport, and is sent
// again on the next one.
func TestLossIsToldFromGaps(t *testing.T) {
	carriers(t, func(t *testing.T, scheme string) {
		got := make(chan uint16, 8)
		p := newPairOf(t, scheme, StatefulServer(), LosslessClient(), collect(got))
		var sends atomic.Int32
		choose(p.c, func(f *outFrame) (bool, error) {
			lost := sends.Add(1) == 2
			if lost {
				if f.data != nil {
					f.data.Release()
				}
				f.over()
			}
			return lost, nil
		})
		sendTypes(t, p.c, 1, 2, 3, 4)
		for typ := uint16(1); typ <= 4; typ++ {
			require.Equal(t, typ, receiveOne(t, got, "message"))
		}
		require.EqualValues(t, 1, p.server.Stats().ProtocolErrors)
		require.EqualValues(t, 1, p.c.Stats().Reconnects)
		require.Zero(t, p.server.Stats().Skipped)
		require.Zero(t, p.c.Stats().Undelivered)
		require.Empty(t, got)
	})
}

// What turns out to be too large when it is sent is given up, without an end of the
// transport, and the peer knows.
func TestGivenUpNumbersAreAnnounced(t *testing.T) {
	carriers(t, func(t *testing.T, scheme string) {
		got := make(chan uint16, 8)
		p := newPairOf(t, scheme, StatefulServer(), LosslessClient(), collect(got))
		var sends atomic.Int32
		choose(p.c, func(*outFrame) (bool, error) {
			if n := sends.Add(1); n == 2 || n == 3 {
				return false, ErrTooLarge
			}
			return false, nil
		})
		sendTypes(t, p.c, 1, 2, 3, 4, 5)
		for _, typ := range []uint16{1, 4, 5} {
			require.Equal(t, typ, receiveOne(t, got, "message"))
		}
		s := p.server.Stats()
		require.EqualValues(t, 1, s.Skipped)
		require.Zero(t, s.ProtocolErrors)
		require.Zero(t, p.c.Stats().Reconnects)
		require.EqualValues(t, 2, p.c.Stats().Undelivered)
		require.Eventually(t, func() bool { return p.c.Stats().UnackedMessages == 0 }, patience, time.Millisecond)
	})
}
