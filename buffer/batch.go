package buffer

import (
	"context"
	"fmt"
	"sync"

	"github.com/panjf2000/ants/v2"
)

// deregistrations is how many calls of a batch are in the device at a time.
const deregistrations = 8

// job is one call into the device, which may take long and can not be
// cancelled.
type job struct {
	run func() error

	mu      sync.Mutex
	state   jobState
	err     error
	stopped chan struct{} // closed when run has returned
}

type jobState uint8

const (
	jobIdle jobState = iota
	jobWaiting
	jobRunning
	jobDone // run returned nil
)

// batch runs those of jobs that are not done, on a pool of its own, and returns
// when all have returned or ctx ends. One that is stuck holds back nobody: the
// others go on beside it. A job that is still running when ctx ends goes on;
// the next batch waits for it instead of calling again. left says what is not
// done, and why.
func batch(ctx context.Context, jobs []*job) (left []error) {
	var todo []*job
	for _, j := range jobs {
		j.mu.Lock()
		if j.state == jobIdle {
			j.state, j.stopped = jobWaiting, make(chan struct{})
		}
		if j.state == jobWaiting {
			todo = append(todo, j)
		}
		j.mu.Unlock()
	}
	if len(todo) > 0 {
		pool, err := ants.NewPoolWithFuncGeneric(min(len(todo), deregistrations), (*job).work,
			ants.WithDisablePurge(true), ants.WithPanicHandler(func(p any) { panic(p) }))
		if err != nil {
			panic(fmt.Sprintf("buffer: %v", err)) // the options are constant
		}
		// The feeder ends when it has submitted all, or the pool is released,
		// which wakes it; the workers when they are released and idle.
		go func() {
			for _, j := range todo {
				if pool.Invoke(j) != nil {
					return
				}
			}
		}()
		defer pool.Release()
	}
	for _, j := range jobs {
		j.mu.Lock()
		stopped := j.stopped
		j.mu.Unlock()
		if stopped == nil {
			continue // done in an earlier batch
		}
		select {
		case <-stopped:
		case <-ctx.Done():
		}
	}
	for _, j := range jobs {
		j.mu.Lock()
		switch j.state {
		case jobWaiting:
			j.state = jobIdle
			left = append(left, fmt.Errorf("not deregistered in time: %w", context.Cause(ctx)))
		case jobRunning:
			left = append(left, fmt.Errorf("the device is still deregistering: %w", context.Cause(ctx)))
		case jobIdle:
			left = append(left, j.err)
		case jobDone:
			left = append(left, nil)
		}
		j.mu.Unlock()
	}
	return left
}

// work runs the job, unless its batch has ended.
func (j *job) work() {
	j.mu.Lock()
	if j.state != jobWaiting {
		j.mu.Unlock()
		return
	}
	j.state = jobRunning
	j.mu.Unlock()
	err := j.run()
	j.mu.Lock()
	j.state, j.err = jobDone, nil
	if err != nil {
		j.state, j.err = jobIdle, err
	}
	close(j.stopped)
	j.mu.Unlock()
}
