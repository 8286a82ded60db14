package conn

import (
	"context"
	"fmt"
	"io"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/argonaut-rdma/argonaut/test/env"
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
	for range senders * each {
		var s, i int
		_, err := fmt.Sscanf(get(t, p.b.messages).head, "%d/%d", &s, &i)
		require.NoError(t, err)
		require.Equal(t, next[s], i)
		next[s]++
	}
	st := p.ab.Stats()
	require.EqualValues(t, senders*each, st.MessagesSent)
	require.NotZero(t, st.Coalesced)
	require.EqualValues(t, senders*each, p.ba.Stats().MessagesReceived)
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
		var f *FaultError
		require.ErrorAs(t, get(t, p.b.faults).err, &f)
		require.Equal(t, FaultPath, f.Kind)
		get(t, p.ba.Done())
	})
}
