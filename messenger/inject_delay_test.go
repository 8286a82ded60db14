package messenger_test

import (
	"encoding/binary"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	. "github.com/argonaut-rdma/argonaut/messenger"
)

const delayMax = 10 * time.Second

// delaying has node 1 hold back what comes from peers of type t.
func delaying(t EntityType) func(i int, cfg *Config) {
	return func(i int, cfg *Config) {
		cfg.Workers = 1
		if i == 1 {
			cfg.Inject.Seed, cfg.Inject.DeliveryDelays, cfg.Inject.DeliveryDelayMax, cfg.Inject.DelayType = 5, 1, delayMax, t
		}
	}
}

// arrivals notes when FastDispatch got what.
type arrivals struct {
	BaseDispatcher
	mu   sync.Mutex
	n    []uint32
	when []time.Time
}

func (a *arrivals) FastDispatch(m *Message) bool {
	if m.Type != 1 {
		return false
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.n, a.when = append(a.n, binary.LittleEndian.Uint32(m.Front)), append(a.when, time.Now())
	m.Release()
	return true
}

func (a *arrivals) all() ([]uint32, []time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.n), slices.Clone(a.when)
}

// Messages are held back, in order, before a fast dispatcher too, and hold up no
// worker.
func TestInjectDeliveryDelays(t *testing.T) {
	under(t, func(t *testing.T) {
		d := newDuo(t, LosslessPeer(), LosslessPeer(), delaying(OSD))
		fast := &arrivals{}
		d.Nodes[1].AddDispatcher(fast)
		c := d.connect(t, 0)
		ready(t, c)
		settle(time.Second)
		begin := time.Now()
		const n = 20
		var want []uint32
		for i := range uint32(n) {
			want = append(want, i)
			send(t, c, i)
		}
		settle(100 * time.Millisecond)
		require.Zero(t, c.Stats().UnackedMessages, "they have been received")
		send(t, d.Nodes[1].Loopback(), 99) // of type 1, too, and not held back
		settle(0)
		got, _ := fast.all()
		require.Contains(t, got, uint32(99))
		settle(2 * delayMax)
		got, when := fast.all()
		var order []uint32
		var last time.Duration
		for i, k := range got {
			if k != 99 {
				order = append(order, k)
				last = when[i].Sub(begin)
			}
		}
		require.Equal(t, want, order)
		require.Greater(t, last, time.Second)
		require.LessOrEqual(t, last, delayMax+time.Second)
	})
}

// The reply to a call is held back as anything else, and no worker is while a
// message waits.
func TestInjectDeliveryDelaysOfReplies(t *testing.T) {
	under(t, func(t *testing.T) {
		d := newDuo(t, LosslessPeer(), LosslessPeer(), delaying(OSD))
		c := d.connect(t, 1)
		ready(t, c)
		var all time.Duration
		for range 5 {
			begin := time.Now()
			r, err := c.Call(t.Context(), NewMessage(20))
			require.NoError(t, err)
			r.Release()
			all += time.Since(begin)
		}
		require.Greater(t, all, time.Second, "of the replies")
		// Messages wait, and the one worker works.
		back := d.connect(t, 0)
		ready(t, back)
		for i := range uint32(20) {
			send(t, back, i)
		}
		settle(time.Millisecond)
		begin := time.Now()
		r, err := d.Nodes[1].Loopback().Call(t.Context(), NewMessage(20))
		require.NoError(t, err)
		r.Release()
		require.Less(t, time.Since(begin), 100*time.Millisecond)
	})
}

// Only peers of DelayType are held back.
func TestInjectDelayType(t *testing.T) {
	under(t, func(t *testing.T) {
		d := newDuo(t, LosslessPeer(), LosslessPeer(), delaying(Mon))
		c := d.connect(t, 0)
		ready(t, c)
		for i := range uint32(20) {
			send(t, c, i)
		}
		settle(100 * time.Millisecond)
		require.Len(t, d.rec[1].received(), 20)
	})
}

// A reset comes behind the messages before it, delayed or not.
func TestInjectDelaysKeepOrderOfEvents(t *testing.T) {
	under(t, func(t *testing.T) {
		d := newDuo(t, LossyClient(), StatelessServer(), delaying(OSD))
		c := d.connect(t, 0)
		ready(t, c)
		settle(time.Second)
		var atReset int
		var mu sync.Mutex
		d.Nodes[1].AddDispatcher(&onReset{f: func() {
			mu.Lock()
			defer mu.Unlock()
			atReset = len(d.rec[1].received())
		}})
		for i := range uint32(10) {
			send(t, c, i)
		}
		settle(10 * time.Millisecond)
		require.Less(t, len(d.rec[1].received()), 10)
		d.Net.CutAll()
		settle(2 * delayMax)
		require.Equal(t, 1, d.rec[1].count("reset"))
		mu.Lock()
		defer mu.Unlock()
		require.Equal(t, 10, atReset)
	})
}

type onReset struct {
	BaseDispatcher
	f func()
}

func (o *onReset) HandleReset(*Connection) { o.f() }
