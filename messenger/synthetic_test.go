package messenger_test

import (
	"context"
	"encoding/binary"
	"math/rand/v2"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/argonaut-rdma/argonaut/buffer"
	. "github.com/argonaut-rdma/argonaut/messenger"
	"github.com/argonaut-rdma/argonaut/messenger/messengertest"
	"github.com/argonaut-rdma/argonaut/test/env"
)

// synthetic is Ceph's SyntheticWorkload: servers and clients, and random
// operations between them.
type synthetic struct {
	name           string
	server, client Policy
	ours, cephs    syntheticScale
	send           float64 // share of sends; the rest opens and drops
	inject         Inject
	faultless      bool // nothing is lost but what is dropped
}

// syntheticScale is how large a run is.
type syntheticScale struct {
	servers, clients int
	seeds            int // connections that are tried before
	ops              int
	payload          int64 // data of a message in bytes, at most; 0: none
	fixed            bool  // exactly so many
	dispatchBytes    int64 // the throttle; 0: the default
	budget           int64 // of each node's memory
}

// cephsScale says whether the runs are as large as Ceph's:
// ARGONAUT_SYNTHETIC_SCALE=ceph. They take minutes, and gigabytes of memory.
func cephsScale(t *testing.T) bool {
	v := os.Getenv("ARGONAUT_SYNTHETIC_SCALE")
	if v != "" && v != "ceph" {
		t.Fatalf("ARGONAUT_SYNTHETIC_SCALE=%q: may be ceph, or unset", v)
	}
	return v != ""
}

// ordered checks that what comes of one connection comes in order and once.
type ordered struct {
	BaseDispatcher
	mu   sync.Mutex
	last map[uint32]uint32
	bad  int
}

func (o *ordered) Dispatch(ctx context.Context, m *Message) bool {
	defer m.Release()
	c, n := binary.LittleEndian.Uint32(m.Front), binary.LittleEndian.Uint32(m.Front[4:])
	o.mu.Lock()
	if n <= o.last[c] {
		o.bad++
	}
	o.last[c] = n
	o.mu.Unlock()
	// An answer, so that both directions are busy.
	r := NewMessage(2)
	r.Front = append(r.Front, m.Front[:8]...)
	if m.Conn.Send(ctx, r) != nil {
		r.Release()
	}
	return true
}

// answers counts what the servers have sent back.
type answers struct {
	BaseDispatcher
	mu  sync.Mutex
	got map[uint32]uint32 // by connection, the last one
	bad int
}

func (a *answers) Dispatch(_ context.Context, m *Message) bool {
	defer m.Release()
	c, n := binary.LittleEndian.Uint32(m.Front), binary.LittleEndian.Uint32(m.Front[4:])
	a.mu.Lock()
	defer a.mu.Unlock()
	if n <= a.got[c] {
		a.bad++
	}
	a.got[c] = n
	return true
}

// opened is a connection of a run.
type opened struct {
	c       *Connection
	id      uint32
	sent    uint32
	client  int
	server  int
	dropped bool
}

func TestSynthetic(t *testing.T) {
	fail := func(n int) Inject {
		return Inject{SocketFailures: n, InternalDelays: 0.1, InternalDelayMax: 100 * time.Millisecond}
	}
	delayed := fail(30)
	delayed.DeliveryDelays, delayed.DeliveryDelayMax = 0.05, 5*time.Second
	few := syntheticScale{servers: 3, clients: 6, seeds: 1, ops: 600, budget: 4 << 20}
	throttled := few
	throttled.dispatchBytes = 64 << 10
	more := syntheticScale{servers: 4, clients: 8, seeds: 1, ops: 2000, budget: 4 << 20}
	cephs := func(servers, clients, ops int) syntheticScale {
		return syntheticScale{servers: servers, clients: clients, seeds: 100, ops: ops, payload: 4 << 20, budget: 256 << 20}
	}
	cephsThrottled := cephs(8, 32, 1000)
	cephsThrottled.dispatchBytes = 16 << 20
	for _, s := range []synthetic{
		{name: "stress", server: StatelessServer(), client: LossyClient(), ours: more, cephs: cephs(8, 32, 5000), send: 0.7, faultless: true},
		{name: "stress1", server: StatefulServer(), client: LosslessClient(), ours: more, cephs: cephs(16, 32, 10000), send: 0.5, faultless: true},
		{name: "inject1", server: StatefulServer(), client: LosslessClient(), ours: throttled, cephs: cephsThrottled, send: 0.8, inject: fail(30)},
		{name: "inject2", server: LosslessPeerReuse(), client: LosslessPeerReuse(), ours: few, cephs: cephs(8, 16, 1000), send: 0.8, inject: fail(30)},
		{name: "inject3", server: StatelessServer(), client: LossyClient(), ours: few, cephs: cephs(8, 16, 1000), send: 0.8, inject: fail(600)},
		{name: "inject4", server: LosslessPeer(), client: LosslessPeer(), ours: few, cephs: cephs(16, 32, 1000), send: 0.8, inject: delayed},
		{name: "inject5", server: StatefulServer(), client: LosslessClient(), send: 1, inject: Inject{Congestion: 3}, faultless: true,
			ours:  syntheticScale{servers: 1, clients: 2, seeds: 8, ops: 600, payload: 64 << 10, fixed: true, budget: 8 << 20},
			cephs: syntheticScale{servers: 1, clients: 2, seeds: 8, ops: 600, payload: 16 << 20, fixed: true, budget: 512 << 20}}, // 9.6 GB
	} {
		t.Run(s.name, func(t *testing.T) { under(t, s.run) })
	}
}

func (s synthetic) run(t *testing.T) {
	size := s.ours
	if cephsScale(t) {
		size = s.cephs
	} else if testing.Short() {
		size.ops /= 4
	}
	seed := env.Seed(t)
	rnd := rand.New(rand.NewPCG(seed, 0))
	var ords []*ordered
	var answ []*answers
	i := 0
	cl := messengertest.New(t, messengertest.Config{
		Nodes: size.servers + size.clients, Seed: seed, Budget: size.budget,
		Configure: func(_ *messengertest.Node, cfg *Config) {
			if cfg.Name.Type = OSD; i >= size.servers {
				cfg.Name.Type = Client
			}
			inject := s.inject
			inject.Seed = seed + uint64(i)
			cfg.Inject, cfg.DispatchBytes = &inject, size.dispatchBytes
		},
		Setup: func(n *messengertest.Node) {
			if i < size.servers {
				n.SetPolicy(Client, s.server)
				ords = append(ords, &ordered{last: map[uint32]uint32{}})
				n.AddDispatcher(ords[i])
			} else {
				n.SetPolicy(OSD, s.client)
				answ = append(answ, &answers{got: map[uint32]uint32{}})
				n.AddDispatcher(answ[i-size.servers])
			}
			i++
		},
	})
	var all []*opened
	at := map[[2]int]*opened{} // the live one between a client and a server
	open := func(c, sv int) {
		if o := at[[2]int{c, sv}]; o != nil && o.c.State() != StateClosed {
			return
		}
		conn, err := cl.Nodes[size.servers+c].ConnectTo(OSD, cl.Nodes[sv].Addrs())
		require.NoError(t, err)
		o := &opened{c: conn, id: uint32(len(all)), client: c, server: sv}
		all = append(all, o)
		at[[2]int{c, sv}] = o
	}
	pick := func() *opened { // one that lives, if there is any
		for range 100 {
			if o := all[rnd.IntN(len(all))]; o.c.State() != StateClosed {
				return o
			}
		}
		return all[len(all)-1]
	}
	for range size.seeds {
		open(rnd.IntN(size.clients), rnd.IntN(size.servers))
	}
	var data []*buffer.List // of each client, which all its messages share
	if size.payload > 0 {
		for c := range size.clients {
			l, err := cl.Nodes[size.servers+c].Arena.GetList(t.Context(), size.payload, buffer.Anonymous)
			require.NoError(t, err)
			defer l.Release()
			data = append(data, l)
		}
	}
	for range size.ops {
		switch x := rnd.Float64(); {
		case x < s.send:
			o := pick()
			m := NewMessage(1)
			m.Front = binary.LittleEndian.AppendUint32(m.Front, o.id)
			m.Front = binary.LittleEndian.AppendUint32(m.Front, o.sent+1)
			m.Front = append(m.Front, make([]byte, rnd.IntN(4000))...)
			if size.payload > 0 {
				m.Data = data[o.client].Share()
				if !size.fixed {
					m.Data.Split(rnd.Int64N(size.payload)).Release()
				}
			}
			if o.c.Send(t.Context(), m) != nil {
				m.Release()
				break
			}
			o.sent++
		case x < s.send+(1-s.send)*0.8:
			open(rnd.IntN(size.clients), rnd.IntN(size.servers))
		// Without reset checks a peer sends the next session what the one that
		// was dropped had received perhaps: nothing to be counted.
		case s.client.Lossy || s.client.ResetCheck:
			o := pick()
			o.dropped = true
			o.c.MarkDown()
		}
		if rnd.IntN(20) == 0 {
			time.Sleep(time.Duration(rnd.IntN(50)) * time.Millisecond)
		}
	}
	// counts reports whether all that was sent there has to be answered: unless
	// it was dropped, or a fault has ended a lossy session.
	counts := func(o *opened) bool {
		if o.dropped || !s.faultless && s.client.Lossy && o.c.State() == StateClosed {
			return false
		}
		// Where sessions are dropped and opened at once, one that is taken for the
		// old one may be reset: whoever has sent there is told.
		return s.client.Lossy || o.c.Stats().RemoteResets == 0
	}
	answered := func(o *opened) uint32 {
		a := answ[o.client]
		a.mu.Lock()
		defer a.mu.Unlock()
		return a.got[o.id]
	}
	done := func() bool {
		for _, o := range all {
			if counts(o) && answered(o) != o.sent {
				return false
			}
		}
		return true
	}
	settle(time.Minute) // faults are noticed
	for minute := 0; !done(); minute++ {
		if minute == 60 { // of virtual time
			for _, o := range all {
				if counts(o) && answered(o) != o.sent {
					t.Errorf("connection %d from client %d to server %d: %d sent, the server has got %d, %d answered; %+v", o.id, o.client, o.server,
						o.sent, ords[o.server].last[o.id], answered(o), o.c.Stats())
				}
			}
			t.FailNow()
		}
		settle(time.Minute)
	}
	settle(time.Minute)
	for _, o := range ords {
		require.Zero(t, o.bad, "out of order, or twice")
	}
	for _, a := range answ {
		require.Zero(t, a.bad, "answers out of order, or twice")
	}
	var faults, reconnects uint64
	for _, n := range cl.Nodes {
		faults, reconnects = faults+n.Stats().Faults, reconnects+n.Stats().Reconnects
	}
	complete, messages := 0, uint32(0)
	for _, o := range all {
		if counts(o) && o.sent > 0 {
			complete++
			messages += o.sent
		}
	}
	t.Logf("%d connections, %d of them answered whole, %d messages; %d faults, %d reconnects", len(all), complete, messages, faults, reconnects)
	require.NotZero(t, messages, "none was to be answered")
	if s.faultless {
		require.Zero(t, reconnects)
	}
	if s.inject.SocketFailures > 0 && s.inject.SocketFailures < 100 {
		require.NotZero(t, reconnects)
	}
}
