package messenger

import (
	"sync"
	"time"
)

// throttle bounds a quantity that is taken and given back. Waiters are served
// first come first served and woken by signal. A request larger than the bound
// is served when nothing is taken, so that it passes alone. A nil throttle is
// without bound.
type throttle struct {
	max int64

	mu      sync.Mutex
	taken   int64
	waiting []*throttleWaiter
}

// throttleWaiter is woken once, without a lock of the throttle held, when its n
// has been taken for it.
type throttleWaiter struct {
	n     int64
	since time.Time
	wake  func()
}

func newThrottle(max int64) *throttle {
	if max <= 0 {
		return nil
	}
	return &throttle{max: max}
}

func (t *throttle) fits(n int64) bool { return t.taken == 0 || t.taken+n <= t.max }

// takeOrWait takes n at once and returns true, or queues w, whose wake is called
// when n has been taken for it, and returns false.
func (t *throttle) takeOrWait(n int64, w *throttleWaiter) bool {
	if t == nil {
		return true
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.waiting) == 0 && t.fits(n) {
		t.taken += n
		return true
	}
	w.n, w.since = n, time.Now()
	t.waiting = append(t.waiting, w)
	return false
}

// cancel takes w out of the queue. false: it has been woken, and owns n.
func (t *throttle) cancel(w *throttleWaiter) bool {
	t.mu.Lock()
	for i, x := range t.waiting {
		if x == w {
			t.waiting = append(t.waiting[:i], t.waiting[i+1:]...)
			woken := t.admit()
			t.mu.Unlock()
			wakeAll(woken)
			return true
		}
	}
	t.mu.Unlock()
	return false
}

func (t *throttle) give(n int64) {
	if t == nil || n == 0 {
		return
	}
	t.mu.Lock()
	t.taken -= n
	if t.taken < 0 {
		t.mu.Unlock()
		panic("messenger: throttle given more than was taken")
	}
	woken := t.admit()
	t.mu.Unlock()
	wakeAll(woken)
}

// admit takes for the waiters at the head of the queue what fits now.
func (t *throttle) admit() []*throttleWaiter {
	n := 0
	for n < len(t.waiting) && t.fits(t.waiting[n].n) {
		t.taken += t.waiting[n].n
		n++
	}
	if n == 0 {
		return nil
	}
	woken := append([]*throttleWaiter(nil), t.waiting[:n]...)
	t.waiting = append(t.waiting[:0], t.waiting[n:]...)
	return woken
}

func wakeAll(ws []*throttleWaiter) {
	for _, w := range ws {
		w.wake()
	}
}

// waits is how many wait, for how long at now the first of them has, and what is taken.
func (t *throttle) waits(now time.Time) (waiting int, longest time.Duration, taken int64) {
	if t == nil {
		return 0, 0, 0
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.waiting) > 0 {
		longest = max(now.Sub(t.waiting[0].since), 0) // it may have come behind now
	}
	return len(t.waiting), longest, t.taken
}

func (t *throttle) held() int64 {
	if t == nil {
		return 0
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.taken
}
