package buffer

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/panjf2000/ants/v2"
)

// inDevice is how many calls of a batch are in the device at a time: about what
// a device's command queue takes without the calls waiting for each other.
const inDevice = 8

// job is one piece of work that may take long and can not be cancelled once it
// runs: a call into the device, or touching memory.
type job struct {
	run func() error

	mu      sync.Mutex
	state   jobState
	err     error
	took    time.Duration
	stopped chan struct{} // closed when run has returned
}

type jobState uint8

const (
	jobIdle jobState = iota
	jobWaiting
	jobRunning
	jobDone // run returned nil
)

// work is what a batch does, for its errors.
type work struct {
	late    string // "not deregistered in time"
	running string // "the device is still deregistering"
}

var (
	deregistering = work{"not deregistered in time", "the device is still deregistering"}
	registering   = work{"not registered in time", "the device is still registering"}
	touching      = work{"not touched in time", "still touching memory"}
)

// batch runs those of jobs that are not done, at most workers at a time, on a
// pool of its own, and returns when all have returned or ctx ends. One that is
// stuck holds back nobody: the others go on beside it. A job that is still
// running when ctx ends goes on; the next batch waits for it instead of calling
// again. left says what is not done, and why.
func batch(ctx context.Context, w work, workers int, jobs []*job) (left []error) {
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
		workers = min(len(todo), workers)
		f := &feed{todo: todo}
		pool, err := ants.NewPoolWithFuncGeneric(workers, (*feed).work,
			ants.WithDisablePurge(true), ants.WithPanicHandler(func(p any) { panic(p) }))
		if err != nil {
			panic(fmt.Sprintf("buffer: %v", err)) // the options are constant
		}
		// The workers take the jobs themselves, since handing each one over costs
		// as much as a small deregistration. They end when there are none left.
		for range workers {
			if err := pool.Invoke(f); err != nil {
				panic(fmt.Sprintf("buffer: %v", err)) // it has room for all
			}
		}
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
			left = append(left, fmt.Errorf("%s: %w", w.late, context.Cause(ctx)))
		case jobRunning:
			left = append(left, fmt.Errorf("%s: %w", w.running, context.Cause(ctx)))
		case jobIdle:
			left = append(left, j.err)
		case jobDone:
			left = append(left, nil)
		}
		j.mu.Unlock()
	}
	return left
}

// feed is the jobs of a batch, as its workers take them.
type feed struct {
	todo []*job
	next atomic.Int64
}

func (f *feed) work() {
	for i := f.next.Add(1) - 1; i < int64(len(f.todo)); i = f.next.Add(1) - 1 {
		f.todo[i].work()
	}
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
	begin := time.Now()
	err := j.run()
	j.mu.Lock()
	j.state, j.err, j.took = jobDone, nil, time.Since(begin)
	if err != nil {
		j.state, j.err = jobIdle, err
	}
	close(j.stopped)
	j.mu.Unlock()
}

// wait returns when the job does not run, though its batch may have ended.
func (j *job) wait() {
	j.mu.Lock()
	running, stopped := j.state == jobRunning, j.stopped
	j.mu.Unlock()
	if running {
		<-stopped
	}
}

// done reports whether the job has succeeded.
func (j *job) done() bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.state == jobDone
}
