package conn

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/argonaut-rdma/argonaut/buffer"
	"github.com/argonaut-rdma/argonaut/conn/internal/wire"
)

// used is how much of an arena buffers take.
func used(a *buffer.Arena) (n int64) {
	for _, c := range a.Stats().Classes {
		n += int64(c.Size) * int64(c.Used)
	}
	return n
}

// TestManyShortParts: a payload of many pieces comes in many packets, a few pieces
// in each, and does not keep a receive buffer for each of them.
func TestManyShortParts(t *testing.T) {
	for name, sizes := range map[string]func(i int) int{
		"all short":           func(int) int { return 300 },
		"a byte each":         func(int) int { return 1 },
		"long ones and short": func(i int) int { return 1 + i%40/39*40_000 },
	} {
		t.Run(name, func(t *testing.T) {
			got := make(chan *buffer.List, 1)
			p := newPair(t, nodeConfig{}, nodeConfig{Config: Config{
				OnMessage: func(_ *Conn, m Message) { got <- m.Payload },
			}})
			const pieces = 1000
			whole, _ := p.a.list(64 << 10)
			l := buffer.NewList()
			for i := range pieces {
				l.Append(whole.At(0).Slice(i, i+sizes(i)).Retain())
			}
			n, before := l.Len(), used(p.b.a)
			want := make([]byte, n)
			l.CopyTo(want)
			require.NoError(t, p.ab.Send(t.Context(), Message{Payload: l}))
			whole.Release()
			m := get(t, got)
			require.Equal(t, n, m.Len())
			have := make([]byte, n)
			m.CopyTo(have)
			require.True(t, string(want) == string(have))
			require.LessOrEqual(t, used(p.b.a)-before, 2*n+int64(4*p.b.cfg.RecvSize))
			require.Less(t, m.Segments(), pieces/2)
			m.Release()
		})
	}
}

// TestEndInShortParts: what has come of a message when its connection ends is given
// back, the short parts too.
func TestEndInShortParts(t *testing.T) {
	n := newNode(t, nodeConfig{})
	r := newRawPeer(t)
	_, err := r.connect(n.listen(), rawHello(nil))
	require.NoError(t, err)
	c := get(t, n.accepted)
	ok := wire.Packet{Epoch: rawEpoch}
	r.send(rawPacket(ok, wire.Record{Type: wire.Msg, Head: 1, Payload: 5000}, "h12"))
	r.send(rawPacket(ok, wire.Record{Type: wire.Frag, Payload: 4998}, "3"))
	r.send(rawPacket(ok, wire.Record{Type: wire.Frag, Payload: 4997}, "4"))
	require.Eventually(t, func() bool { return c.Stats().CopiedIn == 4 }, wait, time.Millisecond)
	require.NoError(t, r.qp.SetError())
	get(t, n.faults)
	get(t, c.Done())
}
