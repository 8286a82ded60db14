package messenger

import (
	"context"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
)

// A session at rest, with its link, costs at most 4 KiB of the heap in each mode:
// without socket or queue pair, and without goroutines.
func TestSessionAtRestIsSmall(t *testing.T) {
	for _, mode := range []Mode{ModeCRC, ModeSecure} {
		t.Run(mode.String(), func(t *testing.T) { sessionAtRest(t, mode) })
	}
}

func sessionAtRest(t *testing.T, mode Mode) {
	if checkedBuild {
		t.Skip("checked builds keep more")
	}
	m := newMessenger(t, Config{})
	const n = 500
	secret := make([]byte, 64)
	kept := make([]*Connection, 0, n)
	heap := func() uint64 {
		var s runtime.MemStats
		runtime.GC()
		runtime.GC()
		runtime.ReadMemStats(&s)
		return s.HeapAlloc
	}
	make1 := func() *Connection {
		c := m.newConnection(OSD, LosslessPeer())
		l := m.newLink(SchemeIWARP, "192.0.2.1:6800", true)
		tr := newRDMATransport(context.Background(), l, nil)
		l.mu.Lock()
		l.t = tr
		l.mu.Unlock()
		c.link = l
		l.owner.Store(c)
		if mode == ModeSecure {
			sh, err := newShield(secret, true)
			require.NoError(t, err)
			// One message has been sealed and opened.
			head, err := sh.sealHead(make([]byte, 300), nil)
			require.NoError(t, err)
			sh.peek = append(sh.peek, head...)
			l.shield = sh
			tr.rest()
		}
		return c
	}
	make1()
	before := heap()
	for now := heap(); now < before; now = heap() { // what other tests have left goes
		before = now
	}
	for range n {
		kept = append(kept, make1())
	}
	each := (float64(heap()) - float64(before)) / n
	t.Logf("%.0f bytes for each session", each)
	require.Less(t, each, 4096.0)
	for _, c := range kept {
		c.cancel()
	}
	runtime.KeepAlive(kept)
}
