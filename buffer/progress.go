package buffer

import (
	"fmt"
	"strings"
	"sync"
	"time"
)

// Progress says how far a long operation is.
type Progress struct {
	Step  string // "touch", "register", "deregister"
	Done  int64  // bytes
	Total int64  // bytes
}

// progress counts one step of an operation for Config.Progress.
type progress struct {
	f func(Progress)

	mu sync.Mutex
	p  Progress
}

func (c *Config) progress(step string, total int64) *progress {
	return &progress{f: c.Progress, p: Progress{Step: step, Total: total}}
}

// add counts n bytes and reports. Reports do not overlap.
func (p *progress) add(n int64) {
	if p.f == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.p.Done += n
	p.f(p.p)
}

// RegionResult is what became of one region in a batch.
type RegionResult struct {
	Region int // number in the arena
	Addr   uint64
	Length uint64 // bytes
	LKey   uint32 // 0: not registered
	Took   time.Duration
	Err    error // nil: done
}

// BatchError is a batch of registrations or deregistrations that did not all
// succeed. A registration has been rolled back: nothing is registered, unless a
// result says that it could not be deregistered again. Of a deregistration,
// what has a nil Err is done; call again for the rest.
type BatchError struct {
	Op         string // "attach", "detach", "grow"
	Device     string
	RolledBack bool
	Results    []RegionResult // of all regions
}

// Error names the regions that failed, up to some number.
func (e *BatchError) Error() string {
	var s strings.Builder
	if e.Op != "" {
		fmt.Fprintf(&s, "buffer: %s: ", e.Op)
	}
	failed := 0
	for _, r := range e.Results {
		if r.Err == nil {
			continue
		}
		if failed++; failed > listed {
			continue
		}
		if failed > 1 {
			s.WriteString("; ")
		}
		s.WriteString(r.String())
	}
	if failed > listed {
		fmt.Fprintf(&s, "; %d more", failed-listed)
	}
	return s.String()
}

// String names the region and its error.
func (r RegionResult) String() string {
	s := fmt.Sprintf("region %d (lkey 0x%x, address 0x%x, %d bytes)", r.Region, r.LKey, r.Addr, r.Length)
	if r.Err != nil {
		s += ": " + r.Err.Error()
	}
	return s
}

// Unwrap returns the errors of the regions.
func (e *BatchError) Unwrap() []error {
	var errs []error
	for _, r := range e.Results {
		if r.Err != nil {
			errs = append(errs, r.Err)
		}
	}
	return errs
}

// left are the errors of the regions, each with its region.
func (e *BatchError) left() (errs []error) {
	for _, r := range e.Results {
		if r.Err != nil {
			errs = append(errs, &BatchError{Results: []RegionResult{r}})
		}
	}
	return errs
}
