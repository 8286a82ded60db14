package messenger

import (
	"context"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/argonaut-rdma/argonaut/buffer"
	"github.com/argonaut-rdma/argonaut/test/env"
)

// steady measures allocations of the whole process, both sides, per message.
func steady(t *testing.T, n int, f func(n int)) float64 {
	t.Helper()
	f(n) // pools, maps and scratch buffers grow to what is needed
	best := 1e9
	for range 5 {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		f(n)
		runtime.ReadMemStats(&after)
		best = min(best, float64(after.Mallocs-before.Mallocs)/float64(n))
	}
	return best
}

// TestSteadyStateAllocatesNothing counts allocations of sender and receiver
// together, on each carrier, for messages without and with payload.
func TestSteadyStateAllocatesNothing(t *testing.T) {
	if checkedBuild {
		t.Skip("checked builds allocate, and drop what pools are given")
	}
	t.Run("lossy", func(t *testing.T) { steadyState(t, StatelessServer(), LossyClient()) })
	t.Run("lossless", func(t *testing.T) { steadyState(t, StatefulServer(), LosslessClient()) })
}

// few bounds what is allocated for a message: none, but for a pool that the
// collector has emptied, and the runtime's own.
const few = 0.1

func steadyState(t *testing.T, server, client Policy) {
	rounds := 2000
	if env.Device() != "" { // it is one of software, under emulation
		rounds = 250
	}
	carriers(t, func(t *testing.T, scheme string) {
		ctx, cancel := context.WithTimeout(t.Context(), 4*patience)
		defer cancel()
		got := make(chan struct{}, 1<<16)
		sh := &handler{fast: func(m *Message) bool {
			if m.Type == 2 {
				return echo(ctx, m)
			}
			m.Release()
			got <- struct{}{}
			return true
		}}
		p := newPairOf(t, scheme, server, client, sh)
		l, err := p.client.cfg.Arena.GetList(soon(t), 64<<10, buffer.Anonymous)
		require.NoError(t, err)
		defer l.Release()
		middle := make([]byte, 3000)
		send := func(data *buffer.List, middle []byte) func(int) {
			return func(n int) {
				for range n {
					m := NewMessage(1)
					m.Front = append(m.Front, "0123456789abcdef"...)
					m.Middle = middle
					if data != nil {
						m.Data = data.Share()
					}
					if err := p.c.Send(ctx, m); err != nil {
						t.Error(err)
						return
					}
				}
				for range n {
					select {
					case <-got:
					case <-ctx.Done():
						t.Error(ctx.Err())
						return
					}
				}
			}
		}
		require.Less(t, steady(t, rounds, send(nil, nil)), few, "16 bytes of head")
		require.Less(t, steady(t, rounds, send(nil, middle)), few, "3,000 bytes of middle")
		require.Less(t, steady(t, rounds, send(l, nil)), few, "64 KiB of payload")
		require.Less(t, steady(t, rounds, send(l, middle)), few, "64 KiB of payload, and middle")
		large, err := p.client.cfg.Arena.GetList(soon(t), 2<<20, buffer.Anonymous)
		require.NoError(t, err)
		defer large.Release()
		most := 1 - few // of few messages, a collection between them counts
		if scheme != SchemeTCP {
			most += 2 // a rendezvous has a key for each MiB, and a list of many receive buffers grows
		}
		sendLarge := send(large, nil)
		one := func(n int) { // at a time: who waits for memory allocates
			for range n {
				sendLarge(1)
			}
		}
		require.Less(t, steady(t, rounds/20, one), most, "2 MiB of payload")
		call := func(n int) {
			for range n {
				r, err := p.c.Call(ctx, NewMessage(2))
				if err != nil {
					t.Error(err)
					return
				}
				r.Release()
			}
		}
		require.Less(t, steady(t, rounds/2, call), few, "calls")
	})
}
