package iwarp

import (
	"context"
	"slices"
	"sync"

	"github.com/argonaut-rdma/argonaut/verbs/driver"
)

// eventQueue holds asynchronous events for one reader. It is bounded by the objects there are: repeats coalesce.
type eventQueue struct {
	wake chan struct{} // one token: look again
	done chan struct{} // closed by close

	mu     sync.Mutex
	events []driver.Event
}

func (q *eventQueue) init() {
	q.wake = make(chan struct{}, 1)
	q.done = make(chan struct{})
}

func (q *eventQueue) put(e driver.Event) {
	q.mu.Lock()
	if !slices.Contains(q.events, e) {
		q.events = append(q.events, e)
	}
	q.mu.Unlock()
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

func (q *eventQueue) drop(match func(driver.Event) bool) {
	q.mu.Lock()
	q.events = slices.DeleteFunc(q.events, match)
	q.mu.Unlock()
}

func (q *eventQueue) next(ctx context.Context) (driver.Event, error) {
	for {
		q.mu.Lock()
		if len(q.events) > 0 {
			e := q.events[0]
			q.events = slices.Delete(q.events, 0, 1)
			q.mu.Unlock()
			return e, nil
		}
		q.mu.Unlock()
		select {
		case <-q.wake:
		case <-q.done:
			return driver.Event{}, driver.ErrClosed
		case <-ctx.Done():
			return driver.Event{}, ctx.Err()
		}
	}
}

func (q *eventQueue) close() { close(q.done) }
