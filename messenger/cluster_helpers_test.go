package messenger_test

import (
	"context"
	"encoding/binary"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	. "github.com/argonaut-rdma/argonaut/messenger"
	"github.com/argonaut-rdma/argonaut/messenger/messengertest"
)

// recorder is a dispatcher that notes what happens, and answers calls.
type recorder struct {
	BaseDispatcher
	mu     sync.Mutex
	got    []uint32
	events []string
	hook   func(ctx context.Context, m *Message)
}

func (r *recorder) Dispatch(ctx context.Context, m *Message) bool {
	defer m.Release()
	if r.hook != nil {
		r.hook(ctx, m)
	}
	if len(m.Front) >= 4 {
		r.mu.Lock()
		r.got = append(r.got, binary.LittleEndian.Uint32(m.Front))
		r.mu.Unlock()
	}
	if m.TID != 0 {
		a := NewMessage(m.Type)
		a.Front = append(a.Front, m.Front...)
		if m.Reply(ctx, a) != nil {
			a.Release()
		}
	}
	return true
}

func (r *recorder) note(s string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events = append(r.events, s)
}

func (r *recorder) HandleConnect(*Connection)     { r.note("connect") }
func (r *recorder) HandleAccept(*Connection)      { r.note("accept") }
func (r *recorder) HandleReset(*Connection)       { r.note("reset") }
func (r *recorder) HandleRemoteReset(*Connection) { r.note("remote reset") }
func (r *recorder) HandleRefused(*Connection)     { r.note("refused") }

func (r *recorder) received() []uint32 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]uint32(nil), r.got...)
}

func (r *recorder) count(event string) (n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, e := range r.events {
		if e == event {
			n++
		}
	}
	return n
}

// steps counts frames of handshakes, and holds or fails some.
type steps struct {
	mu    sync.Mutex
	count map[string]int // by name, of those received; "> NAME" of those sent
	on    map[string]func() error
}

func newSteps() *steps { return &steps{count: map[string]int{}, on: map[string]func() error{}} }

func (s *steps) step(p Step) error {
	name := p.Frame
	if p.Sending {
		name = "> " + name
	}
	s.mu.Lock()
	s.count[name]++
	f := s.on[name]
	s.mu.Unlock()
	if f != nil {
		return f()
	}
	return nil
}

func (s *steps) n(name string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.count[name]
}

func (s *steps) set(name string, f func() error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.on[name] = f
}

// once fails the first time only.
func once() func() error {
	var done atomic.Bool
	return func() error {
		if done.CompareAndSwap(false, true) {
			return errors.New("the test fails this step")
		}
		return nil
	}
}

// duo is two nodes under virtual time.
type duo struct {
	*messengertest.Cluster
	rec   [2]*recorder
	steps [2]*steps
}

func newDuo(t *testing.T, p0, p1 Policy, more ...func(i int, cfg *Config)) *duo {
	d := &duo{}
	i := 0
	d.Cluster = messengertest.New(t, messengertest.Config{
		Configure: func(_ *messengertest.Node, cfg *Config) {
			d.steps[i] = newSteps()
			cfg.Inject = &Inject{Step: d.steps[i].step}
			cfg.IdleTimeout = -1
			for _, f := range more {
				f(i, cfg)
			}
		},
		Setup: func(n *messengertest.Node) {
			n.SetPolicy(OSD, [...]Policy{p0, p1}[i])
			d.rec[i] = &recorder{}
			n.AddDispatcher(d.rec[i])
			i++
		},
	})
	return d
}

func (d *duo) connect(t *testing.T, from int) *Connection {
	t.Helper()
	c, err := d.Nodes[from].ConnectTo(OSD, d.Nodes[1-from].Addrs())
	require.NoError(t, err)
	return c
}

func send(t *testing.T, c *Connection, n uint32) {
	t.Helper()
	m := NewMessage(1)
	m.Front = binary.LittleEndian.AppendUint32(m.Front, n)
	require.NoError(t, c.Send(t.Context(), m))
}

func ready(t *testing.T, c *Connection) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	require.NoError(t, c.Ready(ctx))
}

// settle lets d of virtual time pass.
func settle(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func under(t *testing.T, f func(t *testing.T)) { synctest.Test(t, f) }
