package messenger

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func newTestExecutor(t *testing.T, workers int) *executor {
	ex, err := newExecutor(workers)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, ex.close(soon(t))) })
	return ex
}

func TestStrandsKeepOrderAndBound(t *testing.T) {
	const strands, events, workers = 50, 400, 4
	ex := newTestExecutor(t, workers)
	var running, most atomic.Int32
	var wg sync.WaitGroup
	wg.Add(strands * events)
	all := make([]*strand, strands)
	next := make([]uint64, strands)
	for i := range all {
		all[i] = &strand{ex: ex, handle: func(e event) {
			defer wg.Done()
			n := running.Add(1)
			defer running.Add(-1)
			for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
			}
			if next[i] != e.m.Seq {
				t.Errorf("strand %d: event %d, expected %d", i, e.m.Seq, next[i])
			}
			next[i]++
		}}
	}
	for k := range events {
		for _, s := range all {
			s.push(event{m: &Message{Seq: uint64(k)}})
		}
	}
	wg.Wait()
	require.LessOrEqual(t, most.Load(), int32(workers))
}

func TestStrandsThatWaitGetTheirTurn(t *testing.T) {
	ex := newTestExecutor(t, 1)
	release := make(chan struct{})
	first := &strand{ex: ex, handle: func(event) { <-release }}
	first.push(event{})
	done := make(chan int, 3)
	for i := range 3 {
		s := &strand{ex: ex, handle: func(event) { done <- i }}
		s.push(event{})
	}
	require.Empty(t, done)
	close(release)
	for i := range 3 {
		require.Equal(t, i, receiveOne(t, done, "event"))
	}
}

func TestExecutorCloseNamesWhatRuns(t *testing.T) {
	ex, err := newExecutor(2)
	require.NoError(t, err)
	release, entered := make(chan struct{}), make(chan struct{})
	left := make(chan struct{})
	s := &strand{ex: ex, handle: func(event) { close(entered); <-release; close(left) }}
	s.push(event{})
	<-entered
	ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
	defer cancel()
	err = ex.close(ctx)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorContains(t, err, "1 handlers still running")
	close(release)
	<-left
}

func TestStrandAllocatesNothing(t *testing.T) {
	ex := newTestExecutor(t, 2)
	done := make(chan struct{}, 1)
	s := &strand{ex: ex, handle: func(event) { done <- struct{}{} }}
	allocs := testing.AllocsPerRun(2000, func() {
		s.push(event{})
		<-done
	})
	require.Zero(t, allocs)
}

// A strand that the pool has no goroutine for runs all the same, and is counted.
func TestStrandBesideThePool(t *testing.T) {
	done := make(chan struct{})
	m := newMessenger(t, Config{})
	m.AddDispatcher(&handler{dispatch: func(_ context.Context, m *Message) bool {
		m.Release()
		close(done)
		return true
	}})
	require.Zero(t, m.Stats().StrandOverflows)
	m.ex.pool.Release() // as if all were just coming back
	require.NoError(t, m.Loopback().Send(soon(t), NewMessage(1)))
	receiveOne(t, done, "dispatch")
	require.EqualValues(t, 1, m.Stats().StrandOverflows)
	m.ex.pool.Reboot()
}
