package main

import (
	"context"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/argonaut-rdma/argonaut/buffer"
	"github.com/argonaut-rdma/argonaut/conn"
	"github.com/argonaut-rdma/argonaut/test/env"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m,
		// The default pool of ants, which package buffer imports, lives as long as the process.
		goleak.IgnoreAnyFunction("github.com/panjf2000/ants/v2.(*poolCommon).purgeStaleWorkers"),
		goleak.IgnoreAnyFunction("github.com/panjf2000/ants/v2.(*poolCommon).ticktock"))
}

// end is an endpoint on a device of its own.
func end(t *testing.T, onMessage func(*conn.Conn, conn.Message)) *conn.Endpoint {
	dev := env.Open(t)
	arena, err := buffer.New(buffer.Config{Budget: 32 * mib})
	require.NoError(t, err)
	ep, err := conn.NewEndpoint(dev, arena, conn.Config{OnMessage: onMessage})
	require.NoError(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), limit)
		defer cancel()
		require.NoError(t, ep.Shutdown(ctx))
		require.NoError(t, arena.Close(ctx))
		require.NoError(t, dev.Close())
	})
	return ep
}

// Small messages under load, sender and receiver together: what a message allocates, and how often 16 of them cross
// into C (posts, polls and announcements; none with the adapter in software).
func TestSmallMessagesUnderLoad(t *testing.T) {
	const (
		rounds = 20
		burst  = 2000
	)
	got := make(chan struct{}, 1)
	n := 0
	b := end(t, func(*conn.Conn, conn.Message) { // on one poller
		if n++; n%burst == 0 {
			got <- struct{}{}
		}
	})
	a := end(t, nil)
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	require.NoError(t, b.Listen(ctx, env.ListenAddr()))
	c, err := a.Dial(ctx, b.Addr().String())
	require.NoError(t, err)
	head := make([]byte, pingSize)
	round := func() {
		for range burst {
			if err := c.Send(ctx, conn.Message{Head: head}); err != nil {
				t.Error(err)
				return
			}
		}
		select {
		case <-got:
		case <-ctx.Done():
			t.Error(ctx.Err())
		}
	}
	round() // what grows has grown
	round()
	var before, after runtime.MemStats
	stats, calls, begin := a.Stats(), runtime.NumCgoCall(), time.Now()
	runtime.ReadMemStats(&before)
	for range rounds {
		round()
	}
	took := time.Since(begin)
	runtime.ReadMemStats(&after)
	require.False(t, t.Failed())
	const sent = rounds * burst
	crossings := 16 * float64(runtime.NumCgoCall()-calls) / sent
	allocs := float64(after.Mallocs-before.Mallocs) / sent
	t.Logf("%d messages in %v: %.4f allocations a message, for 16 messages %.2f crossings into C at both ends, and %.2f SENDs", sent,
		took.Round(time.Millisecond), allocs, crossings, 16*float64(a.Stats().PacketsSent-stats.PacketsSent)/sent)
	require.LessOrEqual(t, crossings/2, 2.0, "crossings of one end")
	if !allocating {
		require.Less(t, allocs, 0.01, "the runtime's own, timers and collector, are a few in all")
	}
}
