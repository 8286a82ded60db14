package main

import (
	"runtime"
	"time"
)

// result is what one run of ours gives: bytes per second or seconds per round
// trip, and allocations per message.
type result struct {
	value, allocs float64
}

// meter counts the allocations of the whole process, both ends and the runtime's
// own included, over the messages after the first quarter of a run: steady
// state.
type meter struct {
	warm    time.Time
	end     time.Time
	started bool
	at      int
	mallocs uint64
}

func newMeter(d time.Duration) *meter {
	now := time.Now()
	return &meter{warm: now.Add(d / 4), end: now.Add(d)}
}

// next reports whether message i is still to be sent.
func (m *meter) next(i int) bool {
	now := time.Now()
	if !m.started && now.After(m.warm) {
		m.started, m.at, m.mallocs = true, i, mallocs()
	}
	return now.Before(m.end)
}

// perMessage is for n messages in all.
func (m *meter) perMessage(n int) float64 {
	if !m.started || n <= m.at {
		return 0
	}
	return float64(mallocs()-m.mallocs) / float64(n-m.at)
}

func mallocs() uint64 {
	var s runtime.MemStats
	runtime.ReadMemStats(&s)
	return s.Mallocs
}
