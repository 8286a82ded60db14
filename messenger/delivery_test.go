package messenger_test

import (
	"context"
	"encoding/binary"
	"errors"
	"math"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/argonaut-rdma/argonaut/conn"
	. "github.com/argonaut-rdma/argonaut/messenger"
	"github.com/argonaut-rdma/argonaut/messenger/messengertest"
	"github.com/argonaut-rdma/argonaut/test/env"
	"github.com/argonaut-rdma/argonaut/verbs"
	"github.com/argonaut-rdma/argonaut/verbs/iwarp"
)

// The size of the delivery test, by environment; the defaults are a few seconds.
//
//	ARGONAUT_DELIVERY_MESSAGES   over all pairs, sizes log-uniform up to ARGONAUT_DELIVERY_MAX
//	ARGONAUT_DELIVERY_LARGE      messages beside them, of ARGONAUT_DELIVERY_LARGE_SIZE
//	ARGONAUT_DELIVERY_CUT        mean bytes after which a connection is cut
//	ARGONAUT_DELIVERY_SEED       repeats a run, see env.Seed
//
// The full run: MESSAGES=1000000 MAX=524288 LARGE=2000 LARGE_SIZE=8388608 CUT=33554432; in a guest, on a
// device of the kernel's (see package test/env): MESSAGES=20000 MAX=262144 LARGE=0.
type deliverySize struct {
	messages, large int
	max, largeSize  int64
	cut             int64
	seed            uint64
}

func envInt(t *testing.T, name string, def int64) int64 {
	t.Helper()
	v := os.Getenv(name)
	if v == "" {
		return def
	}
	n, err := strconv.ParseInt(v, 10, 64)
	require.NoError(t, err, name)
	return n
}

func newDeliverySize(t *testing.T) deliverySize {
	s := deliverySize{
		messages: int(envInt(t, "ARGONAUT_DELIVERY_MESSAGES", 6000)), max: envInt(t, "ARGONAUT_DELIVERY_MAX", 128<<10),
		large: int(envInt(t, "ARGONAUT_DELIVERY_LARGE", 12)), largeSize: envInt(t, "ARGONAUT_DELIVERY_LARGE_SIZE", 1<<20+4096),
		cut: envInt(t, "ARGONAUT_DELIVERY_CUT", 1<<20),
	}
	s.seed = env.Seed(t)
	return s
}

// wire is what a delivery test runs on.
type wire struct {
	scheme string
	// device makes the adapter of a node; nil: none is needed.
	device func(t testing.TB, n *messengertest.Node) *verbs.Device
	// addr to bind to; "": the network in memory. Elsewhere the messengers cut.
	addr string
}

func softIWARP(t testing.TB, n *messengertest.Node) *verbs.Device {
	dev, err := iwarp.Open(iwarp.Config{Dial: n.Dial, Listen: n.Listen, PeerTimeout: -1})
	require.NoError(t, err)
	return dev
}

func TestDeliveryUnderFire(t *testing.T) {
	size := newDeliverySize(t)
	t.Run("tcp", func(t *testing.T) { deliver(t, size, wire{scheme: SchemeTCP}) })
	t.Run("iwarp", func(t *testing.T) { deliver(t, size, wire{scheme: SchemeIWARP, device: softIWARP}) })
	// What a device gets: a real address, where only the messengers can cut.
	t.Run("injected", func(t *testing.T) {
		deliver(t, size, wire{scheme: SchemeIWARP, addr: "127.0.0.1", device: func(t testing.TB, _ *messengertest.Node) *verbs.Device {
			dev, err := iwarp.Open(iwarp.Config{})
			require.NoError(t, err)
			return dev
		}})
	})
	if env.Device() != "" {
		t.Run("device", func(t *testing.T) {
			deliver(t, size, wire{scheme: SchemeRDMA, addr: env.Addr(),
				device: func(t testing.TB, _ *messengertest.Node) *verbs.Device { return env.Open(t) }})
		})
	}
}

// battle is a run of the delivery test.
type battle struct {
	t     *testing.T
	size  deliverySize
	cl    *messengertest.Cluster
	w     wire
	ch    [4][4]*channel
	block []byte // what payload is cut from
	mu    sync.Mutex
	conns [4][4]*Connection // [i][j]: i's to j, as it was last opened
	moved chan struct{}     // closed when conns changes
	epoch atomic.Uint32

	peace         chan struct{} // closed when no more handshakes are ended, or held up
	handshakesCut atomic.Uint32 // where the messengers do it
	silent        atomic.Uint32 // handshakes in which the node said nothing, likewise
}

// leave shuts all nodes down at once. siw holds on to a connection that was being made
// for up to 10 s, longer than Close waits.
func (b *battle) leave() {
	var g errgroup.Group
	for _, n := range b.cl.Nodes {
		g.Go(func() error {
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			return n.Shutdown(ctx)
		})
	}
	require.NoError(b.t, g.Wait())
}

func deliver(t *testing.T, size deliverySize, w wire) {
	b := &battle{t: t, size: size, w: w, moved: make(chan struct{}), peace: make(chan struct{}), block: make([]byte, size.largeSize+size.max)}
	chacha := rand.NewChaCha8([32]byte{1})
	chacha.Read(b.block)
	network := messengertest.NewNetwork(size.seed)
	i := 0
	cfg := messengertest.Config{
		Nodes: 4, Net: network, Scheme: w.scheme, Addr: w.addr, Budget: 128 << 20,
		Configure: func(_ *messengertest.Node, cfg *Config) {
			cfg.Name = EntityName{Type: deliveryTypes[i], Num: int64(i)}
			cfg.Nonce = uint32(i + 1)
			if *SecureAll {
				*cfg = Secured(*cfg)
			}
			cfg.BackoffMin, cfg.BackoffMax = 2*time.Millisecond, 150*time.Millisecond
			cfg.ConnectTimeout = connectTimeout
			// On RDMA nothing is heard while a payload is fetched: the largest has
			// to take less, on a busy machine, too.
			cfg.KeepaliveInterval, cfg.KeepaliveTimeout = silence/8, silence
			cfg.NoDataCRC = size.seed>>(40+i)&1 == 0
			if w.addr != "" { // nothing between the nodes can be cut, or delayed: the messenger does it
				cfg.Inject = b.injected(i)
			}
		},
		Setup: func(n *messengertest.Node) {
			for j, typ := range deliveryTypes {
				if j != i {
					n.SetPolicy(typ, b.policyOf(i, j))
				}
			}
			n.AddDispatcher(&soldier{b: b, me: i})
			i++
		},
	}
	if w.device != nil {
		cfg.Transports = func(t testing.TB, n *messengertest.Node) []Transport {
			dev := w.device(t, n)
			t.Cleanup(func() { require.NoError(t, dev.Close()) })
			return []Transport{{Scheme: w.scheme, Open: func(cfg conn.Config) (*conn.Endpoint, error) {
				return conn.NewEndpoint(dev, n.Arena, cfg)
			}}}
		}
	}
	b.cl = messengertest.New(t, cfg)
	if w.scheme == SchemeRDMA {
		t.Cleanup(func() { b.leave() })
	}
	for i := range b.ch {
		for j := range b.ch[i] {
			if i != j {
				k := pairPolicies[b.kind(i, j)]
				b.ch[i][j] = &channel{from: i, to: j, lossy: k.lossy, next: 1, last: map[uint32]uint32{}}
				if i < j {
					t.Logf("nodes %d and %d: %s", i, j, k.name)
				}
			}
		}
	}
	b.fight(network)
}

// fight sends everything under fire, then lets the rest arrive in peace.
func (b *battle) fight(network *messengertest.Network) {
	t := b.t
	cuts, delays := newLots(b.size.seed, 1), newLots(b.size.seed, 2)
	network.SetCutAfter(func(from, to string) (after int64) {
		cuts.draw(from, to, func(f *rand.Rand) {
			inHandshake, x := f.Float64() < 0.1, f.ExpFloat64()
			if after = int64(x * float64(b.size.cut)); inHandshake {
				after = int64(x * 400)
			}
		})
		return after
	})
	network.SetLatency(func(from, to string) (d time.Duration) {
		delays.draw(from, to, func(f *rand.Rand) { d = someDelay(f) })
		return d
	})
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Minute)
	defer cancel()
	var chaos, senders sync.WaitGroup
	if b.w.addr == "" {
		chaos.Add(1)
		go func() { // splits the network now and then; ends with the peace
			defer chaos.Done()
			b.splits(network)
		}()
	}
	for i := range b.ch {
		for j := range b.ch[i] {
			if i != j {
				senders.Add(1)
				go func() { // ends when all its messages have been accepted
					defer senders.Done()
					b.send(ctx, i, j)
				}()
			}
		}
	}
	senders.Wait()
	close(b.peace)
	chaos.Wait()
	network.SetCutAfter(nil)
	network.SetLatency(nil)
	b.settle(ctx)
}

// send sends i's share of messages to j.
func (b *battle) send(ctx context.Context, i, j int) {
	ch, rnd := b.ch[i][j], fromSeed(b.size.seed, uint32(100+i*4+j))
	total := b.size.messages/12 + b.size.large/12
	every := math.MaxInt
	if k := b.size.large / 12; k > 0 {
		every = total / k
	}
	epoch := b.epoch.Add(1)
	c, err := b.conn(ctx, i, j, nil)
	if err != nil {
		b.t.Errorf("%d to %d: %v", i, j, err)
		return
	}
	for n := 1; n <= total; n++ {
		size := int64(math.Exp(rnd.Float64()*math.Log(float64(b.size.max+1)))) - 1
		if n%every == 0 {
			size = b.size.largeSize
		}
		m, err := b.message(ctx, i, epoch, uint32(n), size, rnd)
		if err == nil {
			err = c.Send(ctx, m)
		}
		if err == nil {
			ch.mu.Lock()
			ch.sent = uint32(n)
			ch.mu.Unlock()
			continue
		}
		if m != nil {
			m.Release()
		}
		if !ch.lossy || (!errors.Is(err, ErrReset) && !errors.Is(err, ErrClosed)) {
			b.t.Errorf("%d to %d: message %d: %v", i, j, n, err)
			return
		}
		epoch = b.epoch.Add(1)
		ch.mu.Lock()
		ch.sessions++
		ch.mu.Unlock()
		if c, err = b.conn(ctx, i, j, c); err != nil {
			b.t.Errorf("%d to %d: %v", i, j, err)
			return
		}
	}
}

func (b *battle) message(ctx context.Context, i int, epoch, n uint32, size int64, rnd *rand.Rand) (*Message, error) {
	m := NewMessage(1)
	if size > 0 {
		l, err := b.cl.Nodes[i].Arena.GetList(ctx, size, 0)
		if err != nil {
			m.Release()
			return nil, err
		}
		at := rnd.Int64N(int64(len(b.block)) - size + 1)
		l.CopyFrom(b.block[at : at+size])
		m.Data = l
	}
	le := binary.LittleEndian
	m.Front = le.AppendUint32(m.Front, epoch)
	m.Front = le.AppendUint32(m.Front, n)
	m.Front = le.AppendUint32(m.Front, checksum(m))
	return m, nil
}

// afterwards sends on a lossy channel until a message has come: all that it was
// given under fire may have been on its way when it was cut, but in peace it
// delivers.
func (b *battle) afterwards(ctx context.Context, i, j int) {
	ch, rnd, epoch := b.ch[i][j], fromSeed(b.size.seed, uint32(200+i*4+j)), b.epoch.Add(1)
	var old *Connection // that has ended
	for n, end := uint32(1), time.Now().Add(time.Minute); ; {
		c, err := b.conn(ctx, i, j, old)
		require.NoError(b.t, err)
		m, err := b.message(ctx, i, epoch, n, 1000, rnd)
		require.NoError(b.t, err)
		accepted := c.Send(ctx, m) == nil
		if !accepted {
			m.Release()
			old = c
		}
		ch.mu.Lock()
		if accepted {
			n++
			ch.sent++
		}
		came := ch.last[epoch] > 0
		ch.mu.Unlock()
		if came {
			return
		}
		require.True(b.t, time.Now().Before(end), "%d to %d: a lossy session, too, delivers", i, j)
		select { // the peer's pace, and how often it is looked for
		case <-time.After(5 * time.Millisecond):
		case <-ctx.Done():
			b.t.Fatal(ctx.Err())
		}
	}
}

// settle waits until all that has to has arrived, and checks the model.
func (b *battle) settle(ctx context.Context) {
	t := b.t
	for i := range b.ch {
		for j, ch := range b.ch[i] {
			if ch == nil {
				continue
			}
			if ch.lossy {
				b.afterwards(ctx, i, j)
				continue
			}
			require.Eventually(t, func() bool {
				ch.mu.Lock()
				defer ch.mu.Unlock()
				return ch.next > ch.sent
			}, time.Minute, 5*time.Millisecond, "%d to %d: not everything has arrived", i, j)
			c, err := b.conn(ctx, i, j, nil)
			require.NoError(t, err)
			require.Eventually(t, func() bool { return c.Stats().UnackedMessages == 0 }, time.Minute, 5*time.Millisecond)
		}
	}
	var faults, reconnects, replayed, duplicates, waits, retries, rendezvous uint64
	var delivered, lost int
	lossless := false
	for _, n := range b.cl.Nodes {
		st := n.Stats()
		faults, reconnects, replayed = faults+st.Faults, reconnects+st.Reconnects, replayed+st.Replayed
		duplicates, waits, retries = duplicates+st.Duplicates, waits+st.RacesLost, retries+st.Retries+st.RetriesGlobal
		require.Zero(t, st.RemoteResets, "nobody has lost a session")
		for _, ep := range n.Endpoints() {
			rendezvous += ep.Stats().RendezvousReceived
		}
	}
	for i := range b.ch {
		for j, ch := range b.ch[i] {
			if ch == nil {
				continue
			}
			ch.mu.Lock()
			if ch.lossy {
				t.Logf("%d to %d, lossy: %d sent in %d sessions, %d delivered of %d of them", i, j, ch.sent, ch.sessions, ch.delivered, len(ch.last))
			}
			require.Empty(t, ch.wrong, "%d to %d", i, j)
			if !ch.lossy {
				lossless = true
				require.EqualValues(t, ch.sent, ch.delivered, "%d to %d", i, j)
			}
			require.LessOrEqual(t, ch.delivered, int(ch.sent)+1, "%d to %d", i, j)
			delivered += ch.delivered
			lost += int(ch.sent) - ch.delivered
			ch.mu.Unlock()
		}
	}
	t.Logf("%d messages delivered, %d lost by lossy sessions; %d faults, %d reconnects, %d sent again, %d duplicates, %d races, %d retries",
		delivered, max(0, lost), faults, reconnects, replayed, duplicates, waits, retries)
	require.NotZero(t, faults)
	if lossless && b.w.scheme == SchemeIWARP && b.size.large > 0 && b.size.largeSize > 1<<20 { // larger than what goes eagerly
		require.NotZero(t, rendezvous)
	}
	if b.w.addr != "" {
		t.Logf("%d handshakes cut, %d with a node that fell silent", b.handshakesCut.Load(), b.silent.Load())
	}
}
