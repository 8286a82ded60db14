package messenger

import (
	"context"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/argonaut-rdma/argonaut/buffer"
)

// keptBy is the memory of c's queues, and of the scratch that it sends with, in
// bytes.
func keptBy(c *Connection) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	slots := len(c.queue.control.buf) + len(c.sent.buf) + len(c.replay.buf)
	for i := range c.queue.levels {
		slots += len(c.queue.levels[i].ring.buf)
	}
	n := cap(c.scratch) + cap(c.front) + slots*int(unsafe.Sizeof(entry{})) + 8*len(c.waiting.buf)
	c.strand.mu.Lock()
	n += len(c.strand.events.buf) * int(unsafe.Sizeof(event{}))
	c.strand.mu.Unlock()
	if c.link == nil || c.draining { // what is sent with is the drain's
		return n
	}
	if t, ok := c.link.t.(*streamTransport); ok {
		n += cap(t.out)
	}
	if sh := c.link.shield; sh != nil {
		n += cap(sh.head) + cap(sh.tags) + 24*cap(sh.parts)
	}
	return n
}

// What a burst has made grow goes when the connection is idle, at both ends, and
// the connection goes on.
func TestBurstsLeaveNothingBehind(t *testing.T) {
	carriers(t, func(t *testing.T, scheme string) {
		t.Parallel() // it waits until they are idle
		burstAndRest(t, scheme)
	})
}

func burstAndRest(t *testing.T, scheme string) {
	const messages = 300
	cfg := secured(Config{}) // sealing needs scratch, too
	scfg := cfg
	scfg.Name = EntityName{OSD, 0}
	server, client := newMessenger(t, scfg), newMessenger(t, cfg)
	server.SetPolicy(Client, StatefulServer())
	client.SetPolicy(OSD, LosslessClient())
	accepted := make(chan *Connection, 1)
	server.AddDispatcher(&handler{
		accept: func(c *Connection) { accepted <- c },
		dispatch: func(ctx context.Context, m *Message) bool {
			r := NewMessage(2)
			r.Front = append(r.Front, m.Front...)
			if m.Conn.Send(ctx, r) != nil {
				r.Release()
			}
			m.Release()
			return true
		},
	})
	back := make(chan struct{}, 2*messages)
	client.AddDispatcher(&handler{dispatch: func(_ context.Context, m *Message) bool {
		m.Release()
		back <- struct{}{}
		return true
	}})
	require.NoError(t, server.Bind(soon(t), anyAddr(scheme)))
	c, err := client.ConnectTo(OSD, server.Addrs())
	require.NoError(t, err)
	data, err := client.cfg.Arena.GetList(soon(t), 100_000, buffer.Anonymous)
	require.NoError(t, err)
	defer data.Release()
	most := 0
	burst := func(n int) {
		for i := range n {
			m := NewMessage(1)
			m.Front = append(m.Front, make([]byte, 3000)...)
			if i%8 == 0 {
				m.Data = data.Share()
			}
			require.NoError(t, c.Send(soon(t), m))
			most = max(most, keptBy(c))
		}
		for range n {
			receiveOne(t, back, "answer")
		}
	}
	burst(messages)
	require.Greater(t, most, 4096, "a burst takes memory")
	sc := receiveOne(t, accepted, "connection")
	for _, c := range []*Connection{c, sc} {
		require.Eventually(t, func() bool { return keptBy(c) < 2048 }, patience, 10*time.Millisecond)
	}
	burst(20)
	require.Zero(t, c.Stats().Reconnects)
}
