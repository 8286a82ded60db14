package conn

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/argonaut-rdma/argonaut/conn/internal/wire"
	"github.com/argonaut-rdma/argonaut/test/env"
	"github.com/argonaut-rdma/argonaut/verbs"
	"github.com/argonaut-rdma/argonaut/verbs/verbstest"
)

// TestShutdown: what was accepted before arrives, on every connection, in both
// directions, and then both ends know why it is over.
func TestShutdown(t *testing.T) {
	each(t, func(t *testing.T, cfg nodeConfig) {
		const conns, messages = 5, 20
		cfg.budget = 64 << 20
		b := newNode(t, cfg)
		a := newNode(t, cfg)
		addr := b.listen()
		want := map[string]string{}
		var peers []*Conn
		for range conns {
			_, err := a.Dial(t.Context(), addr)
			require.NoError(t, err)
			peers = append(peers, get(t, b.accepted))
		}
		for n, want := range map[*node]Stats{a: {Conns: conns, Dialed: conns}, b: {Conns: conns, Accepted: conns}} {
			var st Stats
			require.Eventually(t, func() bool { // the acceptor counts behind OnAccept
				st = n.Stats()
				return want == Stats{Conns: st.Conns, Dialed: st.Dialed, Accepted: st.Accepted, Refused: st.Refused, Stale: st.Stale}
			}, wait, time.Millisecond, "%+v", want)
			require.Positive(t, st.Lanes)
			require.GreaterOrEqual(t, st.RecvPosted, conns)
		}
		a.mu.Lock()
		var ours []*Conn
		for c := range a.conns {
			ours = append(ours, c)
		}
		a.mu.Unlock()
		for i, c := range ours {
			for j := range messages {
				head := fmt.Sprint(i, " ", j)
				want[head] = string(a.send(c, head, 30_000))
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), wait)
		defer cancel()
		require.NoError(t, a.Endpoint.Shutdown(ctx))
		for range conns * messages {
			m := get(t, b.messages)
			require.Equal(t, want[m.head], string(m.data))
			delete(want, m.head)
		}
		require.Empty(t, want)
		for range conns {
			require.ErrorIs(t, get(t, a.faults).err, ErrClosed)
			require.Equal(t, io.EOF, get(t, b.faults).err)
		}
		for _, c := range peers {
			get(t, c.Done())
		}
		a.clean()
		if a.useSRQ {
			require.Positive(t, a.Stats().Orphans, "the receives of the shared queue")
		}
		require.NoError(t, a.Endpoint.Shutdown(ctx))
		require.EqualValues(t, conns*messages, a.Stats().MessagesSent)
	})
}

// TestShutdownBothEnds: both ends shut down at once, with messages under way.
func TestShutdownBothEnds(t *testing.T) {
	for range 10 {
		p := newPair(t, nodeConfig{}, nodeConfig{})
		for i := range 10 {
			p.a.send(p.ab, fmt.Sprint(i), 20_000)
			p.b.send(p.ba, fmt.Sprint(i), 20_000)
		}
		ctx, cancel := context.WithTimeout(t.Context(), wait)
		defer cancel()
		var wg sync.WaitGroup
		for _, n := range []*node{p.a, p.b} {
			wg.Go(func() { require.NoError(t, n.Endpoint.Shutdown(ctx)) })
		}
		wg.Wait()
		require.Len(t, p.a.messages, 10)
		require.Len(t, p.b.messages, 10)
		for _, n := range []*node{p.a, p.b} { // whose goodbye was first is open
			require.Contains(t, []error{ErrClosed, io.EOF}, get(t, n.faults).err)
		}
	}
}

// TestCloseWhileSpinning: a poller that never sleeps lets its connections end, and
// the others of it go on.
func TestCloseWhileSpinning(t *testing.T) {
	cfg := nodeConfig{Config: Config{Spin: time.Hour, Pollers: 1}}
	p := newPair(t, cfg, cfg)
	other, err := p.a.Dial(t.Context(), p.b.Addr().String())
	require.NoError(t, err)
	peer := get(t, p.b.accepted)
	p.ab.Close()
	get(t, p.ab.Done())
	get(t, p.ba.Done())
	p.b.expect(peer, "on", p.a.send(other, "on", 100))
	ctx, cancel := context.WithTimeout(t.Context(), wait)
	defer cancel()
	require.NoError(t, other.Shutdown(ctx))
	get(t, peer.Done())
}

// TestShutdownSilentPeer: a peer that never answers delays it no longer than the
// context.
func TestShutdownSilentPeer(t *testing.T) {
	n := newNode(t, nodeConfig{Config: Config{EagerMax: -1}})
	r := newRawPeer(t)
	_, err := r.connect(n.listen(), rawHello(nil))
	require.NoError(t, err)
	c := get(t, n.accepted)
	r.send(rawPacket(wire.Packet{Epoch: rawEpoch}))
	n.send(c, "fetch me", 1<<20)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	begin := time.Now()
	require.NoError(t, n.Endpoint.Shutdown(ctx))
	require.Less(t, time.Since(begin), 5*time.Second)
	require.ErrorIs(t, get(t, n.faults).err, ErrClosed)
	get(t, c.Done())
	n.clean()
}

// dialing is a that dials b, whose OnAccept has been asked and has not answered; done
// has what Dial returns, and answer lets b go on, which is too late.
func dialing(t *testing.T, cfg Config) (a *node, done <-chan error, answer func()) {
	block := make(chan struct{})
	asked := make(chan struct{})
	b := newNode(t, nodeConfig{Config: Config{OnAccept: func(*Conn) bool {
		close(asked)
		<-block
		return true
	}}})
	a = newNode(t, nodeConfig{Config: cfg})
	addr := b.listen()
	dialed := make(chan error, 1)
	go func() { // ends with the endpoint
		_, err := a.Dial(context.Background(), addr)
		dialed <- err
	}()
	get(t, asked)
	return a, dialed, func() {
		close(block)
		require.Error(t, get(t, b.faults).err)
	}
}

// TestCloseWhileDialing: Close ends handshakes that are under way.
func TestCloseWhileDialing(t *testing.T) {
	a, done, answer := dialing(t, Config{DrainTimeout: wait}) // siw keeps what was connecting for 10 s
	require.NoError(t, a.Endpoint.Close())
	require.ErrorIs(t, get(t, done), ErrClosed)
	answer()
}

// TestShutdownEndsDials: a graceful shutdown does not wait for the answer to a
// dial, which nobody will use.
func TestShutdownEndsDials(t *testing.T) {
	a, done, answer := dialing(t, Config{DrainTimeout: wait, HandshakeTimeout: time.Hour})
	over := make(chan error, 1)
	go func() { over <- a.Endpoint.Shutdown(context.Background()) }() // ends when it does not wait
	require.ErrorIs(t, get(t, done), ErrClosed)
	require.NoError(t, get(t, over))
	a.clean()
	answer()
}

// TestShutdownFinishesLater: where a device does not let go of a connection that
// was being made, Dial and Shutdown return, and say so; when it does, all is given
// back without anybody asking again, or as part of the next Shutdown.
func TestShutdownFinishesLater(t *testing.T) {
	for _, c := range []struct {
		name  string
		op    verbstest.Op
		again bool
	}{
		{"Connect", verbstest.CallConnect, false},
		{"Connect, then Shutdown", verbstest.CallConnect, true},
		{"DestroyQP", verbstest.CallDestroyQP, false},
		{"DestroyQP, then Shutdown", verbstest.CallDestroyQP, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			block, asked := make(chan struct{}), make(chan struct{})
			b := newNode(t, nodeConfig{Config: Config{OnAccept: func(*Conn) bool {
				close(asked)
				<-block
				return true
			}}})
			stuck, release := make(chan struct{}), make(chan struct{})
			s := &verbstest.Script{Call: func(call verbstest.Call) verbstest.Fault {
				if call.Op != c.op || call.N > 0 {
					return verbstest.Fault{}
				}
				close(stuck)
				return verbstest.Fault{Wait: release}
			}}
			a := newNode(t, nodeConfig{Config: Config{DrainTimeout: 10 * time.Millisecond}, device: openFaulty(t, s)})
			addr := b.listen()
			dialed := make(chan error, 1)
			go func() { // ends with the endpoint, or with the stuck call
				_, err := a.Dial(context.Background(), addr)
				dialed <- err
			}()
			if c.op == verbstest.CallConnect {
				get(t, stuck)
			} else {
				get(t, asked)
			}
			err := a.Endpoint.Close()
			require.ErrorContains(t, err, "its queue pair is not destroyed")
			if c.op == verbstest.CallDestroyQP {
				get(t, stuck)
				require.ErrorIs(t, get(t, dialed), ErrClosed, "Dial does not wait for the device")
			}
			require.NotEmpty(t, a.dev.Resources())

			over := make(chan error, 1)
			if c.again {
				go func() { over <- a.Endpoint.Shutdown(context.Background()) }() // ends after release
			}
			close(release)
			if c.op == verbstest.CallConnect {
				require.ErrorIs(t, get(t, dialed), ErrClosed)
			}
			if c.again {
				require.NoError(t, get(t, over))
				a.clean()
			}
			require.Eventually(t, func() bool { return len(a.dev.Resources()) == 0 }, wait, time.Millisecond)
			require.NoError(t, a.Endpoint.Shutdown(t.Context()))
			a.clean()
			close(block)
			if c.op == verbstest.CallDestroyQP {
				require.Error(t, get(t, b.faults).err)
			}
		})
	}
}

// TestShutdownOrder: what a shutdown asks of the device, in the order of
// ARCHITECTURE: stop listening, say goodbye, disconnect, QP to ERR, destroy it, then
// queues, channels, shared queues, the arena's regions, the protection domain.
func TestShutdownOrder(t *testing.T) {
	env.UserSpace(t, "the kernel's connection managers are asked for more")
	order := []verbstest.Op{
		verbstest.CallCloseListener, verbstest.CallPostSend, verbstest.CallDisconnect, verbstest.CallSetState,
		verbstest.CallDestroyQP, verbstest.CallDestroyCQ, verbstest.CallCloseCompChannel, verbstest.CallDestroySRQ,
		verbstest.CallDeregister, verbstest.CallDeallocPD,
	}
	var calls []verbstest.Op // from CloseListener on; the script's calls come one at a time
	s := &verbstest.Script{Call: func(c verbstest.Call) verbstest.Fault {
		if slices.Contains(order, c.Op) && (len(calls) > 0 || c.Op == verbstest.CallCloseListener) {
			calls = append(calls, c.Op)
		}
		return verbstest.Fault{}
	}}
	n := newNode(t, nodeConfig{Config: Config{DrainTimeout: 50 * time.Millisecond}, device: openFaulty(t, s)})
	r := newRawPeer(t) // one that does not disconnect first
	_, err := r.connect(n.listen(), rawHello(nil))
	require.NoError(t, err)
	c := get(t, n.accepted)
	r.send(rawPacket(wire.Packet{Epoch: rawEpoch}))
	n.send(c, "there", 1000)
	over := make(chan error, 1)
	go func() { over <- n.Endpoint.Shutdown(t.Context()) }() // ends after the goodbyes
	for said := false; !said; {
		p, _ := r.recv()
		for b := p[wire.PacketLen:]; len(b) > 0; {
			rec, n, err := wire.ParseRecord(b)
			require.NoError(t, err)
			said = said || rec.Type == wire.Goodbye
			b = b[n:]
		}
	}
	r.send(rawPacket(wire.Packet{Epoch: rawEpoch}, wire.Record{Type: wire.Goodbye}))
	require.NoError(t, get(t, over))
	require.Equal(t, order, slices.Compact(calls), "%v", calls)
}

// TestShutdownStuckDestructor: a device that does not return from a destructor holds
// a shutdown up no longer than CloseTimeout, is named in the error, and the next
// shutdown does the rest.
func TestShutdownStuckDestructor(t *testing.T) {
	env.UserSpace(t, "that a destructor of the kernel's is slow is not what is tested")
	for op, says := range map[verbstest.Op]string{
		verbstest.CallCloseListener:    "close listener is still running",
		verbstest.CallDestroyCQ:        "close CQ is still running",
		verbstest.CallCloseCompChannel: "close comp channel is still running",
		verbstest.CallDestroySRQ:       "close SRQ is still running",
		verbstest.CallDeregister:       "deregister",
		verbstest.CallDeallocPD:        "close PD is still running",
	} {
		t.Run(op.String(), func(t *testing.T) {
			release := make(chan struct{})
			s := &verbstest.Script{Call: func(c verbstest.Call) verbstest.Fault {
				if c.Op != op || c.N > 0 {
					return verbstest.Fault{}
				}
				return verbstest.Fault{Wait: release}
			}}
			dev, err := verbs.NewDevice(verbstest.NewFaulty(env.OpenDriver(t), s), verbs.Config{CloseTimeout: 100 * time.Millisecond})
			require.NoError(t, err)
			p := newPair(t, nodeConfig{Config: Config{DrainTimeout: 50 * time.Millisecond}, device: dev}, nodeConfig{})
			p.a.listen()
			over := make(chan error, 1)
			go func() { over <- p.a.Endpoint.Close() }() // ends before release
			err = get(t, over)
			require.ErrorContains(t, err, says)
			if op != verbstest.CallDeregister {
				require.ErrorAs(t, err, new(*verbs.StuckError))
			}
			require.NotEmpty(t, dev.Resources())
			close(release)
			require.Eventually(t, func() bool { return p.a.Endpoint.Close() == nil }, wait, time.Millisecond)
			p.a.clean()
			require.ErrorIs(t, get(t, p.b.faults).err, ErrPeerClosed)
		})
	}
}

// TestCallbacksMayClose: a connection can be closed, and sent on, from its
// callbacks; after OnFault there is none.
func TestCallbacksMayClose(t *testing.T) {
	var after bool
	over := make(chan error, 1)
	b := nodeConfig{}
	b.OnMessage = func(c *Conn, m Message) {
		if after {
			panic("a message after OnFault")
		}
		c.Close()
		if err := c.Send(context.Background(), Message{}); !errors.Is(err, ErrClosed) {
			panic(fmt.Sprint("send on a closed connection: ", err))
		}
	}
	b.OnFault = func(c *Conn, err error) {
		after = true
		c.Close()
		over <- err
	}
	p := newPair(t, nodeConfig{}, b)
	for range 100 {
		if p.ab.Send(t.Context(), Message{Head: []byte("x")}) != nil {
			break
		}
	}
	require.ErrorIs(t, get(t, over), ErrClosed)
	get(t, p.ba.Done())
	get(t, p.ab.Done())
	require.Empty(t, over)
}

// TestIdle: an endpoint with idle connections sleeps, and wakes for the next
// message.
func TestIdle(t *testing.T) {
	cfg := nodeConfig{Config: Config{Spin: time.Millisecond}}
	p := newPair(t, cfg, cfg)
	p.b.expect(p.ba, "x", p.a.send(p.ab, "x", 100))
	asleep := func() bool {
		for _, n := range []*node{p.a, p.b} {
			for _, p := range n.pollers {
				if !p.sleeping.Load() {
					return false
				}
			}
		}
		return true
	}
	turns := func() uint64 {
		a, b := p.a.Stats(), p.b.Stats()
		return a.Sleeps + a.Upcalls + b.Sleeps + b.Upcalls
	}
	before := uint64(0)
	require.Eventually(t, func() bool { // asleep, and nothing but a completion ends it
		last := before
		before = turns()
		return asleep() && before > 0 && last == before
	}, wait, 50*time.Millisecond)
	p.b.expect(p.ba, "y", p.a.send(p.ab, "y", 100))
	require.Eventually(t, func() bool { return asleep() && turns() > before }, wait, time.Millisecond, "it sleeps again")
	if p.a.dev.Caps().Provider == "iwarp" {
		require.Positive(t, p.a.Stats().Upcalls+p.b.Stats().Upcalls, "the device has done what the sleepers had to")
	}
}

func TestConfig(t *testing.T) {
	n := newNode(t, nodeConfig{})
	for name, cfg := range map[string]Config{
		"pollers":    {Pollers: -1},
		"recv size":  {RecvSize: 100},
		"recv sizes": {RecvSize: 2 << 20},
		"credits":    {Credits: 7},
		"depth":      {SendDepth: 1 << 20},
		"op depth":   {OpDepth: 1},
		"rendezvous": {Rendezvous: 1000},
		"message":    {MaxMessage: -1},
		"handshake":  {HandshakeTimeout: -1},
	} {
		_, err := NewEndpoint(n.dev, n.a, cfg)
		require.Error(t, err, name)
	}
	require.Len(t, n.dev.Resources(), 3) // of the node: PD, MR, channel
}

func TestUserAndAddrs(t *testing.T) {
	p := newPair(t, nodeConfig{}, nodeConfig{})
	require.Nil(t, p.ab.User())
	p.ab.SetUser(7)
	require.Equal(t, 7, p.ab.User())
	c, err := p.a.DialUser(t.Context(), p.b.Addr().String(), "me")
	require.NoError(t, err)
	require.Equal(t, "me", c.User())
	require.Equal(t, p.ab.LocalAddr().String(), p.ba.RemoteAddr().String())
	require.Equal(t, p.ba.LocalAddr().String(), p.ab.RemoteAddr().String())
	require.Equal(t, p.ab.Epoch(), p.ba.Epoch())
	require.NotEqual(t, c.Epoch(), p.ab.Epoch())
	require.Same(t, p.a.Endpoint, c.Endpoint())
	require.Equal(t, 2, p.a.Stats().Conns)
	require.EqualValues(t, 2, p.a.Stats().Dialed)
}
