package messenger

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/panjf2000/ants/v2"
)

// strandBurst is how many events a strand handles before others get a turn.
const strandBurst = 16

// strand runs the events of one connection one at a time and in order, on an
// executor that it shares with all others.
type strand struct {
	ex     *executor
	handle func(event) // must not panic
	delays *delays     // nil but for injection

	mu        sync.Mutex
	events    ring[event]
	scheduled bool // submitted, waiting in ex.ready, or running
	resetDue  bool // eventReset came while a transport was being opened
	opening   int32
}

// eventKind is what happened on a connection.
type eventKind uint8

const (
	eventMessage eventKind = iota
	eventConnect
	eventAccept
	eventReset
	eventRemoteReset
	eventRefused
)

type event struct {
	kind  eventKind
	m     *Message
	since int64 // when m came, by Messenger.clock
}

// push adds an event, behind the messages that are held back. It does not block.
func (s *strand) push(e event) {
	if e.kind == eventReset && s.waitsForOpening() {
		return
	}
	if e.kind == eventMessage || !s.delays.behind(e) {
		s.pushNow(e)
	}
}

// open announces an event that says that a transport is open, see opened: a reset
// comes behind it.
func (s *strand) open() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.opening++
}

// opened adds the event that was announced.
func (s *strand) opened(e event) {
	s.push(e)
	s.mu.Lock()
	s.opening--
	due := s.resetDue && s.opening == 0
	s.mu.Unlock()
	if due {
		s.push(event{kind: eventReset})
	}
}

// waitsForOpening reports whether a reset is to be added by opened.
func (s *strand) waitsForOpening() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.resetDue = s.opening > 0
	return s.resetDue
}

func (s *strand) pushNow(e event) {
	s.mu.Lock()
	s.events.push(e)
	submit := !s.scheduled
	s.scheduled = true
	s.mu.Unlock()
	if submit {
		s.ex.submit(s)
	}
}

// waiting is how many events wait, and since when the first message among them
// does, 0 for none.
func (s *strand) waiting() (n int, since int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.events.n {
		if e := s.events.at(i); e.m != nil {
			since = e.since
			break
		}
	}
	held, first := s.delays.waitingSince()
	if since == 0 {
		since = first
	}
	return s.events.n + held, since
}

// burst handles some events; true: there are more.
func (s *strand) burst() bool {
	for range strandBurst {
		s.mu.Lock()
		e, ok := s.events.pop()
		if !ok {
			s.scheduled = false
			s.mu.Unlock()
			return false
		}
		s.mu.Unlock()
		s.handle(e)
		s.ex.returned()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.events.n == 0 {
		s.scheduled = false
		return false
	}
	return true
}

// executor runs strands on a pool of at most workers goroutines. Strands beyond
// that wait in ready, in order; a worker that finishes one takes the next. It
// owns the pool's goroutines, which close ends.
type executor struct {
	pool      *ants.PoolWithFuncGeneric[*strand]
	workers   int
	overflows atomic.Uint64

	mu    sync.Mutex
	busy  int
	held  int // what holds wait back beside them, see hold
	ready ring[*strand]
	idle  []chan struct{} // to be closed when busy and held reach 0
	moved time.Time       // when a handler last returned, while strands wait
	waits atomic.Bool     // strands wait: ready is not empty
}

func newExecutor(workers int) (*executor, error) {
	ex := &executor{workers: workers}
	// Capacity for as many again: a worker counts as idle here a little before
	// the pool has it back.
	pool, err := ants.NewPoolWithFuncGeneric(2*workers, ex.run,
		ants.WithNonblocking(true), ants.WithDisablePurge(true))
	if err != nil {
		return nil, fmt.Errorf("messenger: dispatch pool: %w", err)
	}
	ex.pool = pool
	return ex, nil
}

func (ex *executor) submit(s *strand) {
	ex.mu.Lock()
	if ex.busy == ex.workers {
		if ex.ready.n == 0 {
			ex.moved = time.Now()
		}
		ex.ready.push(s)
		ex.waits.Store(true)
		ex.mu.Unlock()
		return
	}
	ex.busy++
	ex.mu.Unlock()
	if ex.pool.Invoke(s) != nil {
		// Every worker of the pool is just coming back, or the pool is closed:
		// the place is ours all the same. Ends with the strand's events.
		ex.overflows.Add(1)
		go ex.run(s)
	}
}

// run works until no strand is ready.
func (ex *executor) run(s *strand) {
	for {
		more := s.burst()
		ex.mu.Lock()
		if more {
			ex.ready.push(s)
		}
		next, ok := ex.ready.pop()
		if !ok {
			ex.busy--
			ex.wakeIdle()
			ex.mu.Unlock()
			return
		}
		ex.waits.Store(ex.ready.n > 0)
		ex.mu.Unlock()
		s = next
	}
}

// hold has wait wait, until unhold: a strand will be submitted.
func (ex *executor) hold() {
	ex.mu.Lock()
	defer ex.mu.Unlock()
	ex.held++
}

func (ex *executor) unhold() {
	ex.mu.Lock()
	defer ex.mu.Unlock()
	ex.held--
	ex.wakeIdle()
}

// wakeIdle wakes who waits for nothing to run, if so. ex.mu is held.
func (ex *executor) wakeIdle() {
	if ex.busy+ex.held > 0 {
		return
	}
	for _, ch := range ex.idle {
		close(ch)
	}
	ex.idle = nil
}

// returned notes that a handler has returned, where that matters.
func (ex *executor) returned() {
	if !ex.waits.Load() {
		return
	}
	ex.mu.Lock()
	defer ex.mu.Unlock()
	ex.moved = time.Now()
}

// stuck is for how long strands have waited without that a handler has returned;
// 0: none waits.
func (ex *executor) stuck(now time.Time) time.Duration {
	ex.mu.Lock()
	defer ex.mu.Unlock()
	if ex.ready.n == 0 {
		return 0
	}
	return now.Sub(ex.moved)
}

// wait waits until no strand runs or is ready, or stop is closed, and returns
// how many run then.
func (ex *executor) wait(stop <-chan struct{}) (busy int) {
	ex.mu.Lock()
	if ex.busy+ex.held == 0 {
		ex.mu.Unlock()
		return 0
	}
	idle := make(chan struct{})
	ex.idle = append(ex.idle, idle)
	ex.mu.Unlock()
	select {
	case <-idle:
		return 0
	case <-stop:
	}
	ex.mu.Lock()
	defer ex.mu.Unlock()
	return ex.busy + ex.held
}

// close waits until no strand runs or is ready, or ctx ends, and then for the
// pool's goroutines. Nothing may be submitted any more.
func (ex *executor) close(ctx context.Context) error {
	if busy := ex.wait(ctxPlus(ctx, grace)); busy > 0 {
		// The handlers that run on will end some time; their goroutines with
		// them.
		ex.pool.Release()
		return fmt.Errorf("%d handlers still running: %w", busy, ctx.Err())
	}
	wait, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	return ex.pool.ReleaseContext(wait)
}

// ctxPlus is closed d after ctx has ended.
func ctxPlus(ctx context.Context, d time.Duration) <-chan struct{} {
	ch := make(chan struct{})
	context.AfterFunc(ctx, func() { time.AfterFunc(d, func() { close(ch) }) })
	return ch
}
