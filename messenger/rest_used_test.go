package messenger_test

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/argonaut-rdma/argonaut/conn"
	. "github.com/argonaut-rdma/argonaut/messenger"
	"github.com/argonaut-rdma/argonaut/messenger/messengertest"
)

// answering answers every call, and keeps nothing.
type answering struct{ BaseDispatcher }

func (answering) Dispatch(ctx context.Context, m *Message) bool {
	defer m.Release()
	r := NewMessage(m.Type)
	r.Front = append(r.Front, m.Front...)
	if m.Reply(ctx, r) != nil {
		r.Release()
	}
	return true
}

// A lossless session on a stream that has been used, in both directions, and rests,
// costs at most 4 KiB of the heap at each end, in both modes: as that which has not been
// used, without its stream, whose figure is in the log, and without goroutines, but with
// what the reader has.
func TestUsedSessionAtRestIsSmall(t *testing.T) {
	if CheckedBuild {
		t.Skip("checked builds keep more")
	}
	plain := func(c Config) Config { return c }
	t.Run("crc", func(t *testing.T) {
		under(t, func(t *testing.T) { usedAndRested(t, plain) })
	})
	t.Run("secure", func(t *testing.T) {
		under(t, func(t *testing.T) { usedAndRested(t, Secured) })
	})
}

func usedAndRested(t *testing.T, configured func(Config) Config) {
	const n = 100
	cl := messengertest.New(t, messengertest.Config{Nodes: 2,
		Configure: func(_ *messengertest.Node, cfg *Config) {
			*cfg = configured(*cfg)
			cfg.IdleTimeout = -1
		},
		Setup: func(n *messengertest.Node) {
			n.SetPolicy(Client, StatefulServer())
			n.AddDispatcher(answering{})
		},
	})
	server := cl.Nodes[0]
	clients := make([]*Messenger, n)
	for i := range clients {
		dial := cl.Net.Dialer(fmt.Sprintf("10.1.0.%d", i+1))
		m, err := New(configured(Config{Name: EntityName{Type: Client, Num: int64(i)}, Arena: server.Arena, DialStream: dial, IdleTimeout: -1, Workers: 1}))
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, m.Close()) })
		m.SetPolicy(OSD, LosslessClient())
		clients[i] = m
	}
	heap := func() float64 {
		settle(time.Minute)
		var s runtime.MemStats
		for range 3 {
			runtime.GC()
		}
		runtime.ReadMemStats(&s)
		return float64(s.HeapAlloc)
	}

	// What messengers keep when they have been used, and what the runtime keeps of
	// goroutines that have ended, is there before.
	for _, m := range clients {
		c, err := m.ConnectTo(OSD, cl.Nodes[1].Addrs())
		require.NoError(t, err)
		require.NoError(t, callOn(t, c, 1))
		c.MarkDown()
	}
	var many sync.WaitGroup
	for range 20 * n {
		many.Go(func() { time.Sleep(time.Second) }) // ends by itself
	}
	many.Wait()

	// What n streams cost.
	ln, err := cl.Net.Listener("10.9.9.9")(t.Context(), "10.9.9.9:7000")
	require.NoError(t, err)
	defer ln.Close()
	before := heap()
	var bare []*conn.Stream
	for i := range n {
		a, err := cl.Net.Dialer(fmt.Sprintf("10.1.0.%d", i+1))(t.Context(), "10.9.9.9:7000")
		require.NoError(t, err)
		b, err := ln.Accept()
		require.NoError(t, err)
		ends := []*conn.Stream{conn.NewStream(a), conn.NewStream(b)}
		for _, s := range ends {
			require.NoError(t, s.Write([]byte{1}, nil))
		}
		for _, s := range ends {
			require.NoError(t, s.ReadFull(make([]byte, 1)))
			s.Trim()
		}
		bare = append(bare, ends...)
	}
	streams := heap() - before
	for _, s := range bare {
		require.NoError(t, s.Close())
	}

	before = heap()
	kept := make([]*Connection, n)
	for i, m := range clients {
		kept[i], err = m.ConnectTo(OSD, server.Addrs())
		require.NoError(t, err)
		require.NoError(t, callOn(t, kept[i], 1))
	}
	each := (heap() - before - streams) / (2 * n)
	for _, c := range kept {
		require.Equal(t, StateOpen, c.State())
	}
	t.Logf("%.0f bytes for each end of a session, and %.0f for its stream", each, streams/(2*n))
	require.Less(t, each, 4096.0)
}
