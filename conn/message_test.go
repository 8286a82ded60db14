package conn

import (
	"context"
	"errors"
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/argonaut-rdma/argonaut/conn/internal/wire"
	"github.com/argonaut-rdma/argonaut/test/env"
	"github.com/argonaut-rdma/argonaut/verbs"
)

func TestMessages(t *testing.T) {
	each(t, func(t *testing.T, cfg nodeConfig) {
		p := newPair(t, cfg, cfg)
		for _, sizes := range [][]int{
			nil, {1}, {100}, {1 << 10}, {1<<10 + 1}, {4 << 10}, {10_000, 1, 5000}, {16 << 10}, {64 << 10},
			{1 << 20}, {1 << 20, 1 << 20, 77}, {100, 200, 300, 400, 500, 600, 700, 800, 900, 1000, 1100, 1200, 1300, 1400, 1500, 1600, 1700, 1800},
		} {
			head := fmt.Sprint(sizes)
			data := p.a.send(p.ab, head, sizes...)
			p.b.expect(p.ba, head, data)
			data = p.b.send(p.ba, head, sizes...)
			p.a.expect(p.ab, head, data)
		}
		require.NoError(t, p.ab.Err())
		require.NoError(t, p.ba.Err())
	})
}

func TestHeads(t *testing.T) {
	p := newPair(t, nodeConfig{}, nodeConfig{})
	for _, n := range []int{0, 1, 1000, maxTxHead - 1, maxTxHead, maxTxHead + 1, 5000, p.ab.MaxHead()} {
		head := string(make([]byte, n))
		data := p.a.send(p.ab, head, 3000)
		p.b.expect(p.ba, head, data)
		ok, err := p.ab.TrySend(Message{Head: []byte(head)})
		require.NoError(t, err)
		require.True(t, ok)
		p.b.expect(p.ba, head, nil)
	}
	err := p.ab.Send(t.Context(), Message{Head: make([]byte, p.ab.MaxHead()+1)})
	require.ErrorIs(t, err, ErrTooLarge)
	_, err = p.ab.TrySend(Message{Head: make([]byte, p.ab.MaxHead()+1)})
	require.ErrorIs(t, err, ErrTooLarge)
}

// TestOrder sends a mix of eager, coalesced and rendezvous messages from both
// ends as fast as credits allow: they arrive in order and whole.
func TestOrder(t *testing.T) {
	each(t, func(t *testing.T, cfg nodeConfig) {
		p := newPair(t, cfg, cfg)
		n := 300
		if env.Device() != "" && testing.Short() {
			n = 80 // under emulation
		}
		sizes := []int{0, 10, 20_000, 30, 300_000, 0, 3000, 100}
		flow := func(from, to *node, out, in *Conn) chan bool {
			sent := make(chan []byte, n)
			go func() {
				for i := range n {
					size := sizes[i%len(sizes)]
					var data []byte
					if size > 0 {
						data = from.send(out, fmt.Sprint(i), size)
					} else {
						from.send(out, fmt.Sprint(i))
					}
					sent <- data
				}
			}()
			done := make(chan bool)
			go func() {
				defer close(done)
				for i := range n {
					to.expect(in, fmt.Sprint(i), <-sent)
				}
			}()
			return done
		}
		d1 := flow(p.a, p.b, p.ab, p.ba)
		d2 := flow(p.b, p.a, p.ba, p.ab)
		<-d1
		<-d2
		require.NoError(t, p.ab.Err())
		require.NoError(t, p.ba.Err())
	})
}

// TestManySenders checks that concurrent senders get their turn, that small
// messages are coalesced when credits are out, and that none is lost.
func TestManySenders(t *testing.T) {
	p := newPair(t, nodeConfig{}, nodeConfig{Config: Config{Credits: 8}})
	const senders, each = 20, 200
	for s := range senders {
		go func() {
			for i := range each {
				p.a.send(p.ab, fmt.Sprintf("%d/%d", s, i), 64)
			}
		}()
	}
	next := make([]int, senders)
	heads := 0
	for range senders * each {
		var s, i int
		m := get(t, p.b.messages)
		heads += len(m.head)
		_, err := fmt.Sscanf(m.head, "%d/%d", &s, &i)
		require.NoError(t, err)
		require.Equal(t, next[s], i)
		next[s]++
	}
	st := p.ab.Stats()
	require.EqualValues(t, senders*each, st.MessagesSent)
	require.NotZero(t, st.Coalesced)
	require.EqualValues(t, heads+senders*each*64, st.BytesSent)
	require.EqualValues(t, senders*each*64, st.CopiedOut)
	far := p.ba.Stats()
	require.EqualValues(t, senders*each, far.MessagesReceived)
	require.Equal(t, st.BytesSent, far.BytesReceived)
	require.EqualValues(t, senders*each*64, far.CopiedIn)
	require.Positive(t, far.CreditUpdates, "nothing else could carry them")
	require.Eventually(t, func() bool { // the last one may be on its way
		far := p.ba.Stats()
		return far.CreditUpdates == far.PacketsSent
	}, wait, time.Millisecond)
}

func TestGoodbye(t *testing.T) {
	each(t, func(t *testing.T, cfg nodeConfig) {
		p := newPair(t, cfg, cfg)
		var want [][]byte
		for i := range 20 {
			want = append(want, p.a.send(p.ab, fmt.Sprint(i), 50_000))
		}
		ctx, cancel := context.WithTimeout(t.Context(), wait)
		defer cancel()
		require.NoError(t, p.ab.Shutdown(ctx))
		for i, data := range want {
			p.b.expect(p.ba, fmt.Sprint(i), data)
		}
		f := get(t, p.b.faults)
		require.Same(t, p.ba, f.c)
		require.Equal(t, io.EOF, f.err)
		f = get(t, p.a.faults)
		require.Same(t, p.ab, f.c)
		require.ErrorIs(t, f.err, ErrClosed)
		get(t, p.ba.Done())
		require.ErrorIs(t, p.ab.Send(ctx, Message{}), ErrClosed)
		require.ErrorIs(t, p.ba.Send(ctx, Message{}), io.EOF)
	})
}

func TestClose(t *testing.T) {
	each(t, func(t *testing.T, cfg nodeConfig) {
		p := newPair(t, cfg, cfg)
		p.a.send(p.ab, "x", 100_000)
		require.NoError(t, p.ab.Close())
		require.NoError(t, p.ab.Close())
		require.ErrorIs(t, get(t, p.a.faults).err, ErrClosed)
		get(t, p.ab.Done())
		requireClosed(t, get(t, p.b.faults).err)
		get(t, p.ba.Done())
		if env.Device() == "" {
			require.Zero(t, p.b.Stats().Faults)
		}
	})
}

// requireClosed: the peer has said that it closes. On a device of the kernel's,
// under emulation, it may have no time to.
func requireClosed(t *testing.T, err error) {
	t.Helper()
	if env.Device() != "" && !errors.Is(err, ErrPeerClosed) {
		var f *FaultError
		require.ErrorAs(t, err, &f)
		require.Equal(t, FaultPath, f.Kind)
		return
	}
	require.ErrorIs(t, err, ErrPeerClosed)
	require.NotErrorIs(t, err, ErrClosed)
	require.NotErrorIs(t, err, io.EOF)
}

// The end of a peer's endpoint is said, too, and is heard although messages wait
// to be admitted.
func TestCloseIsHeardBehindWhatIsParked(t *testing.T) {
	p := newPair(t, nodeConfig{}, nodeConfig{Config: Config{Admit: func(*Conn, []byte, int64) bool { return false }}})
	for range 3 {
		p.a.send(p.ab, "never taken", 5000)
	}
	require.Eventually(t, func() bool { return p.ba.Stats().Parks == 1 }, wait, time.Millisecond)
	require.NoError(t, p.a.Endpoint.Close())
	err := get(t, p.b.faults).err
	requireClosed(t, err)
	if errors.Is(err, ErrPeerClosed) {
		require.ErrorContains(t, err, "with its endpoint")
	}
}

// Without a credit nothing can be said, and nobody waits for it; nor for a peer
// that does not answer, or does not know CLOSE.
func TestCloseOfASilentPeer(t *testing.T) {
	for name, hello := range map[string]func(*wire.Hello){
		"silent":   func(h *wire.Hello) { h.Features |= wire.FeatureClose },
		"old peer": nil,
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, nodeConfig{})
			r := newRawPeer(t)
			_, err := r.connect(n.listen(), rawHello(hello))
			require.NoError(t, err)
			c := get(t, n.accepted)
			r.send(rawPacket(wire.Packet{Epoch: rawEpoch}))
			n.send(c, "x") // once it may
			for r.poll().WRID != 0 {
			}
			require.NoError(t, c.Close())
			get(t, c.Done())
			if name == "silent" {
				for r.poll().WRID != 1 {
				}
				rec, _, err := wire.ParseRecord(r.mem[rawSize+wire.PacketLen:])
				require.NoError(t, err)
				require.Equal(t, wire.Record{Type: wire.Close, Payload: wire.CloseConn}, rec)
			}
		})
	}
}

// Who has not been promoted is not waited for: there may be as many of them as
// there is room for.
func TestCloseBeforePromote(t *testing.T) {
	n := newNode(t, nodeConfig{Config: Config{StagedCredits: 2}})
	r := newRawPeer(t)
	_, err := r.connect(n.listen(), rawHello(func(h *wire.Hello) { h.Features |= wire.FeatureClose }))
	require.NoError(t, err)
	c := get(t, n.accepted)
	r.send(rawPacket(wire.Packet{Epoch: rawEpoch}))
	n.send(c, "x") // once it may
	next := func() (packet []byte, ok bool) {
		wc := r.poll()
		if wc.Status != verbs.StatusSuccess {
			return nil, false
		}
		return r.mem[wc.WRID*rawSize:][wire.PacketLen:wc.ByteLen], true
	}
	for {
		packet, ok := next()
		require.True(t, ok)
		if len(packet) > 0 && wire.Type(packet[0]) == wire.Msg {
			break
		}
	}
	require.NoError(t, c.Close())
	get(t, c.Done())
	for packet, ok := next(); ok; packet, ok = next() {
		_, said := wire.IsClose(packet)
		require.False(t, said)
	}
}
