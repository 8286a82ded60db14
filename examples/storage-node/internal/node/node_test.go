package node

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/argonaut-rdma/argonaut/examples/storage-node/internal/fabric"
	"github.com/argonaut-rdma/argonaut/examples/storage-node/internal/store"
	"github.com/argonaut-rdma/argonaut/examples/storage-node/internal/wire"
)

// Windows may come in any order; they are written in that of the object.
func TestWindowsOutOfOrder(t *testing.T) {
	eachDevice(t, func(t *testing.T, device string) {
		e := newEnv(t, device, nil)
		c := e.connect(device)
		p := random(3*wire.MaxWindow + 777)
		id := c.begin("k", -1)
		var wg sync.WaitGroup
		var windows []*wire.PutWindow
		for off := 0; off < len(p); off += wire.MaxWindow {
			windows = append(windows, c.window(id, int64(off), p[off:min(off+wire.MaxWindow, len(p))]))
		}
		errs := make([]error, len(windows))
		for i := len(windows) - 1; i > 0; i-- {
			wg.Go(func() { errs[i] = c.ask(wire.TypePutWindow, windows[i], nil) })
		}
		errs[0] = c.ask(wire.TypePutWindow, windows[0], nil)
		wg.Wait()
		require.NoError(t, errors.Join(errs...))
		require.NoError(t, c.ask(wire.TypePutCommit, &wire.PutCommit{Transfer: id, Size: int64(len(p))}, nil))
		o, err := e.store.Open("k")
		require.NoError(t, err)
		defer o.Close()
		got := make([]byte, len(p))
		_, err = o.ReadAt([][]byte{got}, 0, nil)
		require.NoError(t, err)
		require.True(t, bytes.Equal(p, got))
		e.clean(1)
	})
}

// More windows than the terms allow are refused, and the transfer is none the worse.
func TestTooManyWindows(t *testing.T) {
	e := newEnv(t, adapter, nil)
	c := e.connect(adapter)
	p := random(store.ChunkSize)
	id := c.begin("k", -1)
	var wg sync.WaitGroup
	statuses := make(chan error, 40)
	// They are in nobody's way yet: they wait for the first, which does not come.
	for i := range cap(statuses) {
		w := c.window(id, int64(i+1)*store.ChunkSize, p)
		wg.Go(func() { statuses <- c.ask(wire.TypePutWindow, w, nil) })
	}
	for range cap(statuses) - windowsPerTransfer {
		require.ErrorIs(t, <-statuses, wire.StatusBusy)
	}
	require.NoError(t, c.ask(wire.TypeEnd, &wire.EndRequest{Transfer: id}, nil))
	wg.Wait()
	for range windowsPerTransfer {
		require.ErrorIs(t, <-statuses, wire.StatusNoTransfer)
	}
	e.clean(0)
}

// A client can neither read through what it made up nor beyond what it began.
// Every range of a small object and many of a larger one come back right, eager or not, with the right checksums.
func TestRangeChecksums(t *testing.T) {
	e := newEnv(t, fabric.DeviceTCP, nil)
	c := e.connect(fabric.DeviceTCP)
	p := random(3*store.ChunkSize + 1000)
	c.put("k", p)
	r := rand.New(rand.NewPCG(1, 1))
	edges := []int64{0, 1, store.ChunkSize - 1, store.ChunkSize, store.ChunkSize + 1, 2 * store.ChunkSize, int64(len(p)) - 1}
	for range 300 {
		from, n := edges[r.IntN(len(edges))], r.Int64N(wire.MaxEager+1)
		front, data, err := c.raw(wire.TypeGet, (&wire.GetRequest{Key: "k", Offset: from, Length: n}).Append(nil), nil)
		require.NoError(t, err)
		var reply wire.GetReply
		require.NoError(t, reply.Decode(front))
		require.True(t, reply.Eager)
		want := p[from:min(from+n, int64(len(p)))]
		require.True(t, bytes.Equal(want, data), "%d bytes at %d", n, from)
		var wantSums []uint32
		for off, rest := from, want; len(rest) > 0; {
			k := min(int64(len(rest)), store.ChunkSize-off%store.ChunkSize)
			wantSums = append(wantSums, store.Checksum(rest[:k]))
			off, rest = off+k, rest[k:]
		}
		require.Equal(t, wantSums, reply.Sums, "%d bytes at %d", n, from)
	}
	e.clean(1)
}

// A client that begins and then says nothing does not keep its transfer.
func TestIdle(t *testing.T) {
	e := newEnv(t, adapter, func(c *Config) { c.TransferIdle = 20 * time.Millisecond })
	c := e.connect(adapter)
	id := c.begin("k", 1<<20)
	e.clean(0)
	require.ErrorIs(t, c.ask(wire.TypePutCommit, &wire.PutCommit{Transfer: id}, nil), wire.StatusNoTransfer)
}

func TestTransferLimit(t *testing.T) {
	e := newEnv(t, adapter, func(c *Config) { c.MaxTransfers = 2 })
	c := e.connect(adapter)
	first := c.begin("a", -1)
	c.begin("b", -1)
	require.ErrorIs(t, c.ask(wire.TypePut, &wire.PutRequest{Key: "c", Size: -1}, nil), wire.StatusBusy)
	require.NoError(t, c.ask(wire.TypeEnd, &wire.EndRequest{Transfer: first}, nil))
	require.Eventually(t, func() bool { r, _ := e.node.Report(); return r.Transfers == 1 }, 10*time.Second, time.Millisecond)
	c.begin("c", -1)
	require.Equal(t, 2, e.node.Stop())
	require.ErrorIs(t, c.ask(wire.TypePut, &wire.PutRequest{Key: "d", Size: -1}, nil), wire.StatusShuttingDown)
	require.NoError(t, e.node.Drain(context.Background()))
	e.clean(0)
}

// More transfers at a time than there is memory for: they wait for each other and all come through.
func TestLittleMemory(t *testing.T) {
	eachDevice(t, func(t *testing.T, device string) {
		e := newEnv(t, device, func(c *Config) { c.TransferBytes = 2 * wire.MaxWindow })
		p := random(3*wire.MaxWindow + 5)
		var wg sync.WaitGroup
		for i := range 6 {
			c := e.connect(device)
			wg.Go(func() {
				key := fmt.Sprint(i)
				c.put(key, p)
				id := c.beginGet(key)
				gs, l := c.grant(make([]byte, wire.MaxWindow), true)
				require.NoError(t, c.ask(wire.TypeGetWindow, &wire.GetWindow{Transfer: id, Offset: wire.MaxWindow, Length: wire.MaxWindow, Grants: gs}, nil))
				require.NoError(t, c.conn.Revoke(context.Background(), gs))
				got := make([]byte, wire.MaxWindow)
				l.CopyTo(got)
				require.True(t, bytes.Equal(p[wire.MaxWindow:2*wire.MaxWindow], got))
				require.NoError(t, c.ask(wire.TypeEnd, &wire.EndRequest{Transfer: id}, nil))
			})
		}
		wg.Wait()
		e.clean(6)
	})
}

// The client goes while its PUT is under way: its transfer ends, the blob goes.
func TestClientGone(t *testing.T) {
	eachDevice(t, func(t *testing.T, device string) {
		e := newEnv(t, device, nil)
		c := e.connect(device)
		id := c.begin("k", -1)
		require.NoError(t, c.ask(wire.TypePutWindow, c.window(id, 0, random(store.ChunkSize)), nil))
		r, err := e.node.Report()
		require.NoError(t, err)
		require.EqualValues(t, 1, r.Transfers)
		c.conn.MarkDown()
		e.clean(0)
		require.Eventually(t, func() bool { r, _ := e.node.Report(); return r.Connections == 0 && r.QueuePairs == 0 }, 10*time.Second, time.Millisecond)
	})
}
