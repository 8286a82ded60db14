package buffertest

import (
	"context"
	"testing"
	"time"

	"github.com/argonaut-rdma/argonaut/buffer"
)

// Timeout is how long the end of a test waits for buffers that are still on
// their way back.
const Timeout = 5 * time.Second

// New makes an arena with tracing on and checks it when the test ends. What is
// attached has to be detached before, or its queue pairs be closed.
func New(tb testing.TB, cfg buffer.Config) *buffer.Arena {
	tb.Helper()
	cfg.Trace = true
	a, err := buffer.New(cfg)
	if err != nil {
		tb.Fatalf("buffertest: %v", err)
	}
	tb.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), Timeout)
		defer cancel()
		if err := a.Close(ctx); err != nil {
			tb.Errorf("buffertest: %v", err)
		}
	})
	return a
}

// NoLeaks fails the test, when it ends, if a then holds buffers that it does not
// hold now, or grants. It is for arenas that several tests share; turn tracing
// on for stacks.
func NoLeaks(tb testing.TB, a *buffer.Arena) {
	tb.Helper()
	before, grants := held(a), a.Stats().Grants
	tb.Cleanup(func() {
		var left []buffer.Holder
		for end := time.Now().Add(Timeout); ; time.Sleep(time.Millisecond) { // they come back by themselves, or not
			left = left[:0]
			for _, h := range a.Holders() {
				if !before[key(h)] {
					left = append(left, h)
				}
			}
			if len(left) == 0 && a.Stats().Grants <= grants || time.Now().After(end) || tb.Failed() {
				break
			}
		}
		for _, h := range left {
			tb.Errorf("buffertest: leaked: %v", h)
		}
		if n := a.Stats().Grants; n > grants {
			tb.Errorf("buffertest: %d grants are left", n-grants)
		}
	})
}

type id struct {
	addr  uint64
	owner string
}

func key(h buffer.Holder) id { return id{h.Addr, h.Owner} }

func held(a *buffer.Arena) map[id]bool {
	ids := map[id]bool{}
	for _, h := range a.Holders() {
		ids[key(h)] = true
	}
	return ids
}
