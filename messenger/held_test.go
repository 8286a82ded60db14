package messenger

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/argonaut-rdma/argonaut/buffer"
)

// A message that nobody releases is found by its peer and type: in Held, in what
// Inspect shows, in the arena's report, and when the arena does not close.
func TestHeldMessagesAreNamed(t *testing.T) {
	carriers(t, func(t *testing.T, scheme string) {
		a, err := buffer.New(buffer.Config{Budget: 64 << 20})
		require.NoError(t, err)
		kept := make(chan *Message, 4)
		p := newPair(t, scheme, Config{Arena: a}, Config{Name: EntityName{Client, 77}}, &handler{dispatch: func(ctx context.Context, m *Message) bool {
			if m.Type == 42 {
				kept <- m // and forgets it
				return true
			}
			return echo(ctx, m)
		}}, nil)
		send := func(typ uint16, n int64) {
			m := NewMessage(typ)
			m.Data, _ = randomList(t, p.client.cfg.Arena, n)
			require.NoError(t, p.c.Send(soon(t), m))
		}
		send(42, 100_000)
		first := receiveOne(t, kept, "message")
		send(42, 3<<20) // by rendezvous, where there is one
		second := receiveOne(t, kept, "message")
		q := NewMessage(7)
		q.Data, _ = randomList(t, p.client.cfg.Arena, 5000)
		r, err := p.c.Call(soon(t), q)
		require.NoError(t, err)
		held := p.client.Held(10)
		require.Len(t, held, 1, "an answer is held, too")
		require.EqualValues(t, 8, held[0].Type)
		r.Release()
		require.Empty(t, p.client.Held(10))

		require.Eventually(t, func() bool { // echo has released its own
			held = p.server.Held(10)
			return len(held) == 2
		}, patience, time.Millisecond)
		require.Len(t, p.server.Held(1), 1)
		sizes := []int64{held[0].Data, held[1].Data}
		require.ElementsMatch(t, []int64{100_000, 3 << 20}, sizes)
		for _, h := range held {
			require.EqualValues(t, 42, h.Type)
			require.Contains(t, h.Peer, "client.77")
		}
		require.Len(t, p.server.Inspect(InspectQuery{}).Held, 2)
		var s strings.Builder
		require.NoError(t, a.Report().WriteText(&s))
		require.Contains(t, s.String(), "message of type 42 from client.77")

		require.NoError(t, p.client.Close())
		require.NoError(t, p.server.Close())
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		var leak *buffer.LeakError
		require.ErrorAs(t, a.Close(ctx), &leak)
		bytes := 0
		for _, h := range leak.Holders {
			require.Contains(t, h.What, "message of type 42 from client.77")
			bytes += int(h.Len)
		}
		require.GreaterOrEqual(t, bytes, 3<<20+100_000)
		require.ErrorContains(t, leak, "message of type 42 from client.77")
		first.Release()
		second.Release()
		require.Empty(t, p.server.Held(10))
		require.NoError(t, a.Close(soon(t)))
	})
}

// Messages are listed and released by many, and looked at by others.
func TestHeldConcurrently(t *testing.T) {
	m := newMessenger(t, Config{})
	c := m.loop
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			for i := range 500 {
				b, ok := m.cfg.Arena.TryGet(100, buffer.Anonymous)
				if !ok {
					t.Error("no memory")
					return
				}
				x := NewMessage(uint16(g))
				x.Seq, x.Data = uint64(i), buffer.NewList(b)
				c.hold(x)
				c.hold(x) // sent on to ourselves
				y := NewMessage(1)
				c.hold(y) // has no payload
				y.Release()
				x.Release()
			}
		})
	}
	wg.Go(func() {
		for range 50 {
			for _, h := range m.Held(1000) {
				if h.Type > 3 || h.Data != 100 {
					t.Errorf("%v", &h)
				}
			}
			m.cfg.Arena.Holders()
		}
	})
	wg.Wait()
	require.Empty(t, m.Held(10))
}
