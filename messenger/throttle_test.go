package messenger

import (
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestThrottleServesInOrder(t *testing.T) {
	th := newThrottle(10)
	var order []int
	waiter := func(i int) *throttleWaiter { return &throttleWaiter{wake: func() { order = append(order, i) }} }
	require.True(t, th.takeOrWait(8, waiter(0)))
	require.False(t, th.takeOrWait(5, waiter(1)))
	require.False(t, th.takeOrWait(1, waiter(2)), "would fit, but must not overtake")
	third := waiter(3)
	require.False(t, th.takeOrWait(4, third))
	th.give(3) // 5 taken: the first fits, the second does not yet
	require.Equal(t, []int{1}, order)
	require.EqualValues(t, 10, th.held())
	require.True(t, th.cancel(third))
	require.False(t, th.cancel(third))
	th.give(5)
	require.Equal(t, []int{1, 2}, order)
	th.give(5)
	th.give(1)
	require.Zero(t, th.held())
	require.Panics(t, func() { th.give(1) })
}

func TestThrottleLetsALargeRequestPassAlone(t *testing.T) {
	th := newThrottle(10)
	require.True(t, th.takeOrWait(100, &throttleWaiter{}))
	woken := false
	require.False(t, th.takeOrWait(1, &throttleWaiter{wake: func() { woken = true }}))
	th.give(100)
	require.True(t, woken)
}

func TestNoThrottle(t *testing.T) {
	th := newThrottle(-1)
	require.True(t, th.takeOrWait(1<<60, nil))
	th.give(1 << 60)
	require.Zero(t, th.held())
}

// The model: a throttle never gives more than its bound but to one alone, serves
// in order, and forgets nothing.
func TestThrottleModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const max = 20
		th := newThrottle(max)
		var holders []int64
		type waiting struct {
			w *throttleWaiter
			n int64
		}
		var queue []waiting
		sum := func() (n int64) {
			for _, h := range holders {
				n += h
			}
			return n
		}
		t.Repeat(map[string]func(*rapid.T){
			"take": func(t *rapid.T) {
				n := rapid.Int64Range(0, 30).Draw(t, "n")
				w := &throttleWaiter{}
				w.wake = func() {
					require.Same(t, queue[0].w, w, "out of order")
					holders = append(holders, queue[0].n)
					queue = queue[1:]
				}
				if th.takeOrWait(n, w) {
					require.Empty(t, queue)
					holders = append(holders, n)
				} else {
					queue = append(queue, waiting{w, n})
				}
			},
			"give": func(t *rapid.T) {
				if len(holders) == 0 {
					t.Skip("nothing held")
				}
				n := holders[0]
				holders = holders[1:]
				th.give(n)
			},
			"cancel": func(t *rapid.T) {
				if len(queue) == 0 {
					t.Skip("nobody waits")
				}
				i := rapid.IntRange(0, len(queue)-1).Draw(t, "i")
				w := queue[i].w
				queue = append(queue[:i:i], queue[i+1:]...)
				require.True(t, th.cancel(w))
			},
			"": func(t *rapid.T) {
				require.Equal(t, sum(), th.held())
				if nonzero := countNonzero(holders); nonzero > 1 {
					require.LessOrEqual(t, sum(), int64(max))
				}
				if len(queue) > 0 {
					require.False(t, sum() == 0 || sum()+queue[0].n <= max, "somebody waits for no reason")
				}
			},
		})
	})
}

func countNonzero(v []int64) (n int) {
	for _, x := range v {
		if x != 0 {
			n++
		}
	}
	return n
}

func TestAdmissionGivesAllBack(t *testing.T) {
	th := throttles{messages: newThrottle(1), bytes: newThrottle(10), dispatch: newThrottle(1 << 20)}
	var a, b, c admission
	nowake := func() { panic("woken") }
	a.begin(th, 10)
	require.True(t, a.advance(nowake))
	woken := make(chan struct{}, 1)
	b.begin(th, 5)
	require.False(t, b.advance(func() { woken <- struct{}{} }))
	c.begin(th, 5)
	require.False(t, c.advance(nowake))
	c.abandon()
	bud := a.budget()
	bud.release()
	bud.release() // once is enough
	<-woken
	require.True(t, b.advance(nowake))
	bud = b.budget()
	bud.release()
	for _, x := range []*throttle{th.messages, th.bytes, th.dispatch} {
		require.Zero(t, x.held())
	}
}

func TestAdmissionRace(t *testing.T) {
	th := throttles{messages: newThrottle(2), bytes: newThrottle(10), dispatch: newThrottle(3 * messageOverhead)}
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			woken := make(chan struct{}, 1)
			var a admission
			for k := range 500 {
				a.begin(th, int64((i+k)%15))
				for !a.advance(func() { woken <- struct{}{} }) {
					if (i+k)%7 == 0 {
						a.abandon()
						select {
						case <-woken:
						default:
						}
						a.stage = -1
						break
					}
					<-woken
				}
				if a.stage == 3 {
					b := a.budget()
					b.release()
				}
			}
		}()
	}
	wg.Wait()
	for _, x := range []*throttle{th.messages, th.bytes, th.dispatch} {
		require.Zero(t, x.held())
	}
}
