package conn

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// pass waits until d have passed since begin.
func pass(t *testing.T, begin time.Time, d time.Duration) {
	t.Helper()
	require.Eventually(t, func() bool { return time.Since(begin) >= d }, wait, d/10)
}

// Sends that wait are counted with how long, whether they send in the end or not;
// others are not, nor is TrySend. See TestAdmit for waits of other kinds.
func TestSendWaitLatency(t *testing.T) {
	cfg := nodeConfig{Config: Config{EagerMax: 16 << 10, Rendezvous: 1}}
	var open atomic.Bool
	theirs := cfg
	theirs.Admit = func(_ *Conn, head []byte, _ int64) bool { return open.Load() || string(head) != "held" }
	p := newPair(t, cfg, theirs)
	needKeys(t, p.a.dev)
	for range 10 {
		p.b.expect(p.ba, "small", p.a.send(p.ab, "small", 100))
	}
	held := p.a.send(p.ab, "held", 50_000) // has the one place until it is admitted
	l, data := p.a.list(50_000)
	m := Message{Head: []byte("next"), Payload: l}
	ok, err := p.ab.TrySend(m)
	require.NoError(t, err)
	require.False(t, ok)
	require.Equal(t, Latencies{}, p.a.Latencies())

	begin := time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, p.ab.Send(ctx, m), context.DeadlineExceeded)
	h := p.a.Latencies().SendWait
	require.EqualValues(t, 1, h.Count)
	require.LessOrEqual(t, h.Sum, time.Since(begin))

	base := h.Sum
	begin = time.Now()
	done := make(chan error, 1)
	go func() { done <- p.ab.Send(t.Context(), m) }()
	require.Eventually(t, func() bool { return p.ab.Stats().SendWaits == 2 }, wait, time.Millisecond)
	waiting := time.Now()
	pass(t, waiting, 30*time.Millisecond)
	least := time.Since(waiting)
	open.Store(true)
	p.ba.Resume()
	require.NoError(t, get(t, done))
	h = p.a.Latencies().SendWait
	require.EqualValues(t, 2, h.Count)
	require.GreaterOrEqual(t, h.Sum-base, least)
	require.LessOrEqual(t, h.Sum-base, time.Since(begin))
	p.b.expect(p.ba, "held", held)
	p.b.expect(p.ba, "next", data)
}

// A rendezvous is counted at both ends: at the sender from its announcement, at
// the receiver from when it is admitted.
func TestRendezvousLatency(t *testing.T) {
	cfg := nodeConfig{Config: Config{EagerMax: 16 << 10}}
	var open atomic.Bool
	theirs := cfg
	theirs.Admit = func(*Conn, []byte, int64) bool { return open.Load() }
	p := newPair(t, cfg, theirs)
	needKeys(t, p.a.dev)
	begin := time.Now()
	data := p.a.send(p.ab, "large", 300_000)
	require.Eventually(t, func() bool { return p.ba.Stats().Parks == 1 }, wait, time.Millisecond)
	parked := time.Now()
	pass(t, parked, 30*time.Millisecond)
	held := time.Since(parked)
	require.Zero(t, p.a.Latencies().Rendezvous.Count)
	admitted := time.Now()
	open.Store(true)
	p.ba.Resume()
	p.b.expect(p.ba, "large", data)
	require.Eventually(t, func() bool { return p.ab.Stats().RendezvousSent == 1 }, wait, time.Millisecond)
	there, here := p.b.Latencies(), p.a.Latencies()
	require.EqualValues(t, 1, there.Fetch.Count)
	require.Positive(t, there.Fetch.Sum)
	require.LessOrEqual(t, there.Fetch.Sum, time.Since(admitted))
	require.Zero(t, there.Rendezvous.Count+here.Fetch.Count+here.SendWait.Count)
	require.EqualValues(t, 1, here.Rendezvous.Count)
	require.GreaterOrEqual(t, here.Rendezvous.Sum, held)
	require.LessOrEqual(t, here.Rendezvous.Sum, time.Since(begin))

	const n = 20
	for range n {
		p.b.expect(p.ba, "more", p.a.send(p.ab, "more", 50_000))
		p.b.expect(p.ba, "small", p.a.send(p.ab, "small", 5000))
	}
	require.Eventually(t, func() bool { return p.ab.Stats().RendezvousSent == n+1 }, wait, time.Millisecond)
	require.EqualValues(t, n+1, p.a.Latencies().Rendezvous.Count)
	require.EqualValues(t, n+1, p.b.Latencies().Fetch.Count)
	require.EqualValues(t, n+1, p.ba.Stats().RendezvousReceived)
}
