package messenger

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// keeper keeps the types of what Dispatch gets.
type keeper struct{ types syncSlice[uint16] }

func (k *keeper) dispatch(_ context.Context, m *Message) bool {
	k.types.add(m.Type)
	m.Release()
	return true
}

func sendType(t *testing.T, c *Connection, typ uint16) {
	t.Helper()
	require.NoError(t, c.Send(soon(t), NewMessage(typ)))
}

// lossless makes a pair whose session is lossless, with an injector on the server.
func lossless(t *testing.T, scheme string, inject *Inject, scfg Config, sh *handler) *pair {
	t.Helper()
	scfg.Inject, scfg.Name = inject, EntityName{OSD, 0}
	p := &pair{server: newMessenger(t, scfg), client: newMessenger(t, Config{Modes: scfg.Modes})}
	p.server.SetPolicy(Client, StatefulServer())
	p.client.SetPolicy(OSD, LosslessClient())
	p.server.AddDispatcher(sh)
	require.NoError(t, p.server.Bind(soon(t), anyAddr(scheme)))
	var err error
	p.c, err = p.client.ConnectTo(OSD, p.server.Addrs())
	require.NoError(t, err)
	return p
}

// What a black hole swallows has been received: it is acknowledged, and what comes
// behind it leaves no gap.
func TestInjectBlackhole(t *testing.T) {
	carriers(t, func(t *testing.T, scheme string) {
		var on atomic.Bool
		on.Store(true)
		var k keeper
		p := lossless(t, scheme, &Inject{Blackhole: func(e EntityType) bool { return e == Client && on.Load() }}, Config{}, &handler{dispatch: k.dispatch})
		sendType(t, p.c, 1)
		sendType(t, p.c, 2)
		require.Eventually(t, func() bool { s := p.c.Stats(); return s.OutSeq == 2 && s.UnackedMessages == 0 }, patience, time.Millisecond)
		on.Store(false)
		sendType(t, p.c, 3)
		require.Eventually(t, func() bool { return len(k.types.all()) == 1 }, patience, time.Millisecond)
		require.Equal(t, []uint16{3}, k.types.all())
		s := p.server.Stats()
		require.Zero(t, s.Skipped)
		require.EqualValues(t, 3, s.MessagesReceived)
	})
}

// What should not happen is counted, and told.
func TestInjectUnexpected(t *testing.T) {
	carriers(t, func(t *testing.T, scheme string) {
		var told syncSlice[string]
		p := lossless(t, scheme, &Inject{Unexpected: func(what string, _ *Connection) { told.add(what) }}, Config{Modes: []Mode{ModeCRC}}, &handler{})
		require.NoError(t, p.c.Ready(soon(t)))
		expect := func(n int, what string, count func(s Stats) uint64) {
			t.Helper()
			require.Eventually(t, func() bool { return slices.Contains(told.all(), what) }, patience, time.Millisecond, what)
			require.EqualValues(t, n, count(p.server.Stats()), what)
		}
		sendType(t, p.c, 1)
		expect(1, "unhandled message", func(s Stats) uint64 { return s.Unhandled })
		skip := func(n int) {
			p.c.mu.Lock()
			p.c.session.OutSeq += uint64(n)
			p.c.mu.Unlock()
		}
		skip(1)
		sendType(t, p.c, 2)
		expect(1, "skipped message", func(s Stats) uint64 { return s.Skipped })
		require.Zero(t, p.server.Stats().Duplicates)
		skip(-1)
		sendType(t, p.c, 3)
		expect(1, "old message", func(s Stats) uint64 { return s.Duplicates })
		var l *link
		require.Eventually(t, func() bool { // the transport is ours when nobody drains the queue
			p.c.mu.Lock()
			defer p.c.mu.Unlock()
			l = p.c.link
			free := !p.c.draining
			p.c.draining = true
			return free
		}, patience, time.Millisecond)
		require.NoError(t, errors.Join(l.t.send(outFrame{head: bytes.Repeat([]byte{0xa5}, 32)}), l.t.flush()))
		p.c.mu.Lock()
		p.c.draining = false
		p.c.kick()
		p.c.mu.Unlock()
		expect(1, "bad frame", func(s Stats) uint64 { return s.ChecksumErrors })
	})
}

// A step of a handshake that does not return holds up that handshake, and no other
// connection.
func TestInjectStepHoldsUp(t *testing.T) {
	carriers(t, func(t *testing.T, scheme string) {
		var hold atomic.Bool
		held, goOn := make(chan struct{}), make(chan struct{})
		step := func(s Step) error {
			if s.Frame == "CLIENT_IDENT" && hold.CompareAndSwap(true, false) {
				close(held)
				<-goOn
			}
			return nil
		}
		p := lossless(t, scheme, &Inject{Step: step}, Config{}, &handler{dispatch: echo})
		require.NoError(t, p.c.Ready(soon(t)))
		hold.Store(true)
		second, err := newMessenger(t, Config{}).ConnectTo(OSD, p.server.Addrs())
		require.NoError(t, err)
		receiveOne(t, held, "step")
		for range 3 {
			r, err := p.c.Call(soon(t), NewMessage(1))
			require.NoError(t, err)
			r.Release()
		}
		require.Equal(t, StateConnecting, second.State())
		close(goOn)
		require.NoError(t, second.Ready(soon(t)))
	})
}

// A step that fails ends the handshake; the next one is better. At READY the client has
// been answered, and goes on with the session.
func TestInjectStepFails(t *testing.T) {
	for _, frame := range []string{"CLIENT_IDENT", "READY"} {
		t.Run(frame, func(t *testing.T) {
			carriers(t, func(t *testing.T, scheme string) {
				var fails atomic.Int32
				p := lossless(t, scheme, &Inject{Step: func(s Step) error {
					if s.Frame == frame && !s.Sending && fails.Add(1) == 1 {
						return errors.New("the test fails this step")
					}
					return nil
				}}, Config{}, &handler{dispatch: echo})
				r, err := p.c.Call(soon(t), NewMessage(1))
				require.NoError(t, err)
				r.Release()
				require.EqualValues(t, 2, fails.Load())
				// It is counted when the transport has been closed: the client may be back before.
				require.Eventually(t, func() bool { return p.server.Stats().HandshakesFailed > 0 }, patience, time.Millisecond)
				require.EqualValues(t, 1, p.server.Stats().HandshakesFailed)
				require.LessOrEqual(t, p.server.Stats().Open, 1)
			})
		})
	}
}

// Handshakes and queues take as long as the delays are.
func TestInjectInternalDelays(t *testing.T) {
	carriers(t, func(t *testing.T, scheme string) {
		const longest = 200 * time.Millisecond
		inject := &Inject{Seed: 3, InternalDelays: 1, InternalDelayMax: longest}
		first := newInjector(inject) // what the first frames of the handshake get
		var least time.Duration
		for range 2 {
			least += first.pausing()
		}
		require.Greater(t, least, longest/4)
		var k keeper
		begin := time.Now()
		p := lossless(t, scheme, inject, Config{}, &handler{dispatch: k.dispatch})
		require.NoError(t, p.c.Ready(soon(t)))
		require.GreaterOrEqual(t, time.Since(begin), least)

		// And what the server sends waits its turn, in order.
		c := p.server.connectionsOf()[0]
		var got keeper
		p.client.AddDispatcher(&handler{dispatch: got.dispatch})
		begin = time.Now()
		for i := range uint16(5) {
			sendType(t, c, 10+i)
		}
		require.Eventually(t, func() bool { return len(got.types.all()) == 5 }, patience, time.Millisecond)
		require.Equal(t, []uint16{10, 11, 12, 13, 14}, got.types.all())
		require.Greater(t, time.Since(begin), longest/4)
	})
}

// connectionsOf is a messenger's connections.
func (m *Messenger) connectionsOf() (all []*Connection) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for c := range m.connections {
		all = append(all, c)
	}
	return all
}

// Each frame finds the transport full once.
func TestInjectCongestion(t *testing.T) {
	carriers(t, func(t *testing.T, scheme string) {
		const n = 30
		var k keeper
		server := newMessenger(t, Config{Name: EntityName{OSD, 0}})
		server.AddDispatcher(&handler{dispatch: k.dispatch})
		require.NoError(t, server.Bind(soon(t), anyAddr(scheme)))
		client := newMessenger(t, Config{Inject: &Inject{Congestion: 1}})
		c, err := client.ConnectTo(OSD, server.Addrs())
		require.NoError(t, err)
		require.NoError(t, c.Ready(soon(t)))
		begin := time.Now()
		var want []uint16
		for i := range uint16(n) {
			want = append(want, 100+i)
			sendType(t, c, 100+i)
		}
		require.Eventually(t, func() bool { return len(k.types.all()) == n }, patience, time.Millisecond)
		require.Equal(t, want, k.types.all())
		require.GreaterOrEqual(t, time.Since(begin), n*time.Millisecond, "each has waited for a millisecond")
	})
}

func TestInjectDumpOnSend(t *testing.T) {
	carriers(t, func(t *testing.T, scheme string) {
		var log syncSlice[string]
		client := newMessenger(t, Config{Inject: &Inject{DumpOnSend: true}, Logger: slog.New(slog.NewJSONHandler(logSlice{&log}, nil))})
		server := newMessenger(t, Config{Name: EntityName{OSD, 0}})
		var k keeper
		server.AddDispatcher(&handler{dispatch: k.dispatch})
		require.NoError(t, server.Bind(soon(t), anyAddr(scheme)))
		c, err := client.ConnectTo(OSD, server.Addrs())
		require.NoError(t, err)
		require.NoError(t, c.Ready(soon(t)))
		m := NewMessage(1)
		m.Front = append(m.Front, "\xab\xcd\xef\x01"...)
		require.NoError(t, c.Send(soon(t), m))
		require.Eventually(t, func() bool { return len(k.types.all()) == 1 }, patience, time.Millisecond)
		for _, l := range lines(t, &log) {
			if l["msg"] == "frame sent" && l["conn"] == float64(c.ID()) && strings.Contains(l["head"].(string), "abcdef01") {
				return
			}
		}
		t.Fatalf("no line shows the frame: %v", &log)
	})
}
