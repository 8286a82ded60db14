package messenger

import (
	"context"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/argonaut-rdma/argonaut/conn"
	"github.com/argonaut-rdma/argonaut/test/env"
	"github.com/argonaut-rdma/argonaut/verbs/iwarp"
)

// dialer makes connections that can be cut: by the test, or by themselves after
// a number of bytes.
type dialer struct {
	limit func() int64 // nil: never by themselves
	mu    sync.Mutex
	conns map[*cutConn]struct{}
	down  atomic.Bool
	count atomic.Int64
}

func (d *dialer) dial(ctx context.Context, addr string) (net.Conn, error) {
	if d.down.Load() {
		return nil, fmt.Errorf("the network is down")
	}
	var nd net.Dialer
	c, err := nd.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	d.count.Add(1)
	cut := &cutConn{Conn: c}
	cut.left.Store(1 << 60)
	if d.limit != nil {
		cut.left.Store(d.limit())
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.conns == nil {
		d.conns = map[*cutConn]struct{}{}
	}
	d.conns[cut] = struct{}{}
	return cut, nil
}

// cut ends every connection that was made.
func (d *dialer) cut() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for c := range d.conns {
		c.Conn.Close()
		delete(d.conns, c)
	}
}

// newDialing is newMessenger with a dialer.
func newDialing(t testing.TB, cfg Config, d *dialer) *Messenger {
	t.Helper()
	env.UserSpace(t, "it cuts the adapter's TCP connections")
	if cfg.Arena == nil {
		cfg.Arena = newArena(t)
	}
	dev, err := iwarp.Open(iwarp.Config{Dial: d.dial})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, dev.Close()) })
	cfg.DialStream = d.dial
	cfg.Transports = []Transport{{Scheme: SchemeIWARP, Open: func(c conn.Config) (*conn.Endpoint, error) {
		return conn.NewEndpoint(dev, cfg.Arena, c)
	}}}
	return newMessenger(t, cfg)
}

// numbered makes a message whose content can be checked.
func numbered(t testing.TB, m *Messenger, n uint32, size int64) *Message {
	msg := NewMessage(7)
	msg.Front = binary.LittleEndian.AppendUint32(msg.Front, n)
	if size > 0 {
		l, err := m.cfg.Arena.GetList(soon(t), size, 0)
		require.NoError(t, err)
		msg.Data = l
		for i := range l.Segments() {
			b := l.At(i).Bytes()
			for j := range b {
				b[j] = byte(n) + byte(j)
			}
		}
	}
	return append4(msg, dataSum(msg))
}

func append4(m *Message, v uint32) *Message {
	m.Front = binary.LittleEndian.AppendUint32(m.Front, v)
	return m
}

func dataSum(m *Message) (sum uint32) {
	if m.Data == nil {
		return 0
	}
	for i := range m.Data.Segments() {
		sum = crc32.Update(sum, crc32.IEEETable, m.Data.At(i).Bytes())
	}
	return sum
}

// inOrder checks that numbered messages come exactly once and in order.
type inOrder struct {
	t    testing.TB
	last atomic.Uint32
}

func (o *inOrder) dispatch(_ context.Context, m *Message) bool {
	defer m.Release()
	n := binary.LittleEndian.Uint32(m.Front)
	if want := o.last.Load() + 1; n != want {
		o.t.Errorf("message %d came instead of %d", n, want)
	}
	if sum := binary.LittleEndian.Uint32(m.Front[4:]); sum != dataSum(m) {
		o.t.Errorf("message %d has wrong data", n)
	}
	o.last.Store(n)
	return true
}

func (o *inOrder) wait(n uint32) {
	o.t.Helper()
	require.Eventually(o.t, func() bool { return o.last.Load() >= n }, patience, time.Millisecond,
		"only %d of %d messages came", o.last.Load(), n)
}

// peers are two OSDs that keep one lossless session.
type peers struct {
	m    [2]*Messenger
	d    [2]*dialer
	got  [2]*inOrder
	c    *Connection // from 0 to 1
	hand [2]*handler
}

func newPeers(t testing.TB, scheme string, pol [2]Policy, limit func() int64) *peers {
	t.Helper()
	p := &peers{}
	for i := range p.m {
		p.d[i] = &dialer{limit: limit}
		p.got[i] = &inOrder{t: t}
		p.hand[i] = &handler{dispatch: p.got[i].dispatch}
		p.m[i] = newDialing(t, Config{Name: EntityName{OSD, int64(i)}, BackoffMin: 2 * time.Millisecond,
			BackoffMax: 50 * time.Millisecond, ConnectTimeout: 5 * time.Second}, p.d[i])
		p.m[i].SetPolicy(OSD, pol[i])
		p.m[i].AddDispatcher(p.hand[i])
		require.NoError(t, p.m[i].Bind(soon(t), anyAddr(scheme)))
	}
	var err error
	p.c, err = p.m[0].ConnectTo(OSD, p.m[1].Addrs())
	require.NoError(t, err)
	return p
}

func bothPolicies(p Policy) [2]Policy { return [2]Policy{p, p} }

// All policies whose sessions are lossless, each with the one of the peer.
var losslessPolicies = map[string][2]Policy{
	"peer":              bothPolicies(LosslessPeer()),
	"peer_reuse":        bothPolicies(LosslessPeerReuse()),
	"client and server": {LosslessClient(), StatefulServer()},
}

func TestLosslessSurvivesCuts(t *testing.T) {
	rounds := 10
	if testing.Short() {
		rounds = 3
	}
	for name, pol := range losslessPolicies {
		t.Run(name, func(t *testing.T) {
			carriers(t, func(t *testing.T, scheme string) {
				p := newPeers(t, scheme, pol, nil)
				n := uint32(0)
				for range rounds {
					for range 20 {
						n++
						require.NoError(t, p.c.Send(soon(t), numbered(t, p.m[0], n, int64(n%7)*9000)))
					}
					require.NoError(t, p.c.Ready(soon(t)))
					p.d[0].cut()
					p.d[1].cut()
				}
				p.got[1].wait(n)
				require.Eventually(t, func() bool { return p.c.Stats().UnackedMessages == 0 }, patience, time.Millisecond)
				require.Zero(t, p.c.Stats().UnackedBytes)
				// The queue pair that was cut last gives back what it had when it is destroyed.
				require.Eventually(t, func() bool { return p.m[0].cfg.Arena.Account().Held == 0 }, patience, time.Millisecond)
				require.NotZero(t, p.c.Stats().Reconnects)
			})
		})
	}
}

// Both directions, each connection cut after a random number of bytes, in the
// handshake too.
func TestLosslessUnderRandomCuts(t *testing.T) {
	seed := env.Seed(t)
	total := uint32(600)
	if testing.Short() {
		total = 150
	}
	for name, pol := range losslessPolicies {
		t.Run(name, func(t *testing.T) {
			carriers(t, func(t *testing.T, scheme string) {
				var mu sync.Mutex
				rnd := rand.New(rand.NewPCG(seed, 0))
				float := func() float64 {
					mu.Lock()
					defer mu.Unlock()
					return rnd.ExpFloat64()
				}
				p := newPeers(t, scheme, pol, func() int64 {
					if float() < 0.1 {
						return int64(float() * 500)
					}
					return int64(float() * 400_000)
				})
				require.NoError(t, p.c.Send(soon(t), numbered(t, p.m[0], 1, 0)))
				p.got[1].wait(1)
				back, err := p.m[1].ConnectTo(OSD, p.m[0].Addrs())
				require.NoError(t, err)
				var wg sync.WaitGroup
				send := func(from int, c *Connection, first uint32) {
					defer wg.Done()
					for n := first; n <= total; n++ {
						if err := c.Send(soon(t), numbered(t, p.m[from], n, max(0, int64(float()*20_000)-5000))); err != nil {
							t.Error(err)
							return
						}
					}
				}
				wg.Add(2)
				go send(0, p.c, 2)
				go send(1, back, 1)
				wg.Wait()
				p.got[1].wait(total)
				p.got[0].wait(total)
				require.Eventually(t, func() bool {
					return p.c.Stats().UnackedMessages == 0 && back.Stats().UnackedMessages == 0
				}, patience, time.Millisecond)
				require.Equal(t, 1, len(p.m[0].connections), "one session")
				require.Equal(t, 1, len(p.m[1].connections), "one session")
				t.Logf("%d reconnects, %d messages sent again, %d duplicates", p.m[0].Stats().Reconnects+p.m[1].Stats().Reconnects,
					p.m[0].Stats().Replayed+p.m[1].Stats().Replayed, p.m[0].Stats().Duplicates+p.m[1].Stats().Duplicates)
			})
		})
	}
}
