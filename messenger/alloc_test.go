package messenger

import (
	"context"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/argonaut-rdma/argonaut/buffer"
	"github.com/argonaut-rdma/argonaut/test/env"
)

// steady requires that the whole process, both sides, allocates less than most for each
// of n messages that f sends, once of five times: the runtime allocates too.
func steady(t *testing.T, most float64, n int, f func(n int), what string) {
	t.Helper()
	f(n) // pools, maps and scratch buffers grow to what is needed
	best := most
	for i := 0; i < 5 && best >= most; i++ {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		f(n)
		runtime.ReadMemStats(&after)
		best = float64(after.Mallocs-before.Mallocs) / float64(n)
		t.Logf("%s: %.3f allocations for each", what, best)
	}
	require.Less(t, best, most, what)
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
		steady(t, few, rounds, send(nil, nil), "16 bytes of head")
		steady(t, few, rounds, send(nil, middle), "3,000 bytes of middle")
		steady(t, few, rounds, send(l, nil), "64 KiB of payload")
		steady(t, few, rounds, send(l, middle), "64 KiB of payload, and middle")
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
		steady(t, most, rounds/20, one, "2 MiB of payload")
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
		steady(t, few, rounds/2, call, "calls")
	})
}
