package messenger_test

import (
	"context"
	"encoding/binary"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	. "github.com/argonaut-rdma/argonaut/messenger"
	"github.com/argonaut-rdma/argonaut/messenger/messengertest"
)

// synthetic is Ceph's SyntheticWorkload: servers and clients, and random
// operations between them.
type synthetic struct {
	name             string
	server, client   Policy
	servers, clients int
	ops              int
	send             float64 // share of sends; the rest opens and drops
	inject           Inject
	dispatchBytes    int64
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
	for _, s := range []synthetic{
		{name: "stress", server: StatelessServer(), client: LossyClient(), servers: 4, clients: 8, ops: 2000, send: 0.7},
		{name: "stress1", server: StatefulServer(), client: LosslessClient(), servers: 4, clients: 8, ops: 2000, send: 0.5},
		{name: "inject1", server: StatefulServer(), client: LosslessClient(), servers: 3, clients: 6, ops: 600, send: 0.8, inject: fail(30), dispatchBytes: 64 << 10},
		{name: "inject2", server: LosslessPeerReuse(), client: LosslessPeerReuse(), servers: 3, clients: 6, ops: 600, send: 0.8, inject: fail(30)},
		{name: "inject3", server: StatelessServer(), client: LossyClient(), servers: 3, clients: 6, ops: 600, send: 0.8, inject: fail(600)},
		{name: "inject4", server: LosslessPeer(), client: LosslessPeer(), servers: 3, clients: 6, ops: 600, send: 0.8, inject: delayed},
		{name: "inject5", server: StatefulServer(), client: LosslessClient(), servers: 1, clients: 2, ops: 600, send: 0.95,
			inject: Inject{Congestion: 3}},
	} {
		t.Run(s.name, func(t *testing.T) { under(t, s.run) })
	}
}

func (s synthetic) run(t *testing.T) {
	if testing.Short() {
		s.ops /= 4
	}
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 0))
	var ords []*ordered
	var answ []*answers
	i := 0
	cl := messengertest.New(t, messengertest.Config{
		Nodes: s.servers + s.clients, Seed: seed, Budget: 4 << 20,
		Configure: func(_ *messengertest.Node, cfg *Config) {
			if cfg.Name.Type = OSD; i >= s.servers {
				cfg.Name.Type = Client
			}
			inject := s.inject
			inject.Seed = seed + uint64(i)
			cfg.Inject, cfg.DispatchBytes = &inject, s.dispatchBytes
		},
		Setup: func(n *messengertest.Node) {
			if i < s.servers {
				n.SetPolicy(Client, s.server)
				ords = append(ords, &ordered{last: map[uint32]uint32{}})
				n.AddDispatcher(ords[i])
			} else {
				n.SetPolicy(OSD, s.client)
				answ = append(answ, &answers{got: map[uint32]uint32{}})
				n.AddDispatcher(answ[i-s.servers])
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
		conn, err := cl.Nodes[s.servers+c].ConnectTo(OSD, cl.Nodes[sv].Addrs())
		require.NoError(t, err)
		o := &opened{c: conn, id: uint32(len(all)), client: c, server: sv}
		all = append(all, o)
		at[[2]int{c, sv}] = o
	}
	pick := func() *opened { return all[rnd.IntN(len(all))] }
	open(0, 0)
	for range s.ops {
		switch x := rnd.Float64(); {
		case x < s.send:
			o := pick()
			m := NewMessage(1)
			m.Front = binary.LittleEndian.AppendUint32(m.Front, o.id)
			m.Front = binary.LittleEndian.AppendUint32(m.Front, o.sent+1)
			m.Front = append(m.Front, make([]byte, rnd.IntN(4000))...)
			if o.c.Send(t.Context(), m) != nil {
				m.Release()
				break
			}
			o.sent++
		case x < s.send+(1-s.send)*0.8:
			open(rnd.IntN(s.clients), rnd.IntN(s.servers))
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
	live, lossless := 0, !s.client.Lossy
	done := func() bool {
		for _, o := range all {
			a := answ[o.client]
			a.mu.Lock()
			got := a.got[o.id]
			a.mu.Unlock()
			// Where sessions are dropped and opened at once, one that is taken for
			// the old one may be reset: whoever has sent there is told.
			if lossless && !o.dropped && o.c.Stats().RemoteResets == 0 && got != o.sent {
				return false
			}
		}
		return true
	}
	for minute := 0; !done(); minute++ {
		if minute == 60 { // of virtual time
			for _, o := range all {
				if !o.dropped && answ[o.client].got[o.id] != o.sent {
					t.Errorf("connection %d from client %d to server %d: %d sent, the server has got %d, %d answered; %+v", o.id, o.client, o.server,
						o.sent, ords[o.server].last[o.id], answ[o.client].got[o.id], o.c.Stats())
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
	for _, o := range all {
		if !o.dropped {
			live++
		}
	}
	t.Logf("%d connections, %d not dropped; %d faults, %d reconnects", len(all), live, faults, reconnects)
	if s.inject.SocketFailures > 0 && s.inject.SocketFailures < 100 {
		require.NotZero(t, reconnects)
	}
}
