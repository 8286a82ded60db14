package messenger

import (
	"context"
	"encoding/binary"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// innocent is somebody with a lossless session with a server, over which it calls
// without a pause, while others mean harm to that server: it loses nothing, nothing
// comes twice or out of order, and nobody disturbs its connection.
type innocent struct {
	m     *Messenger
	c     *Connection
	calls uint64 // made so far, one after the other; the loop's until it is done

	mu  sync.Mutex
	got []uint64 // what the server has dispatched
}

const innocentType = 77

// takes has calls of x noted and answered by the server, and all else by others.
func (x *innocent) takes(others func(context.Context, *Message) bool) func(context.Context, *Message) bool {
	return func(ctx context.Context, m *Message) bool {
		if m.Type == innocentType {
			x.mu.Lock()
			x.got = append(x.got, binary.LittleEndian.Uint64(m.Front))
			x.mu.Unlock()
			return echo(ctx, m)
		}
		return others(ctx, m)
	}
}

// beside opens the session of x with a server of configuration cfg, and calls until
// end is called: at least once before beside returns, and once in end.
func (x *innocent) beside(t *testing.T, server *Messenger, cfg Config) (end func(undisturbed bool)) {
	t.Helper()
	x.m = newMessenger(t, Config{Name: EntityName{MDS, 1}, Auth: cfg.Auth[len(cfg.Auth)-1:], Modes: cfg.Modes})
	x.m.SetPolicy(OSD, LosslessClient())
	var err error
	x.c, err = x.m.ConnectTo(OSD, server.Addrs())
	require.NoError(t, err)
	data, want := randomList(t, x.m.cfg.Arena, 20_000)
	call := func() bool {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		m := NewMessage(innocentType)
		m.Front = binary.LittleEndian.AppendUint64(m.Front, x.calls)
		m.Data = data.Share()
		x.calls++
		r, err := x.c.Call(ctx, m)
		if err != nil {
			t.Errorf("call %d of an innocent: %v", x.calls, err)
			m.Release()
			return false
		}
		defer r.Release()
		if r.Data == nil || string(bytesOf(r.Data)) != string(want) {
			t.Errorf("call %d of an innocent: another answer", x.calls)
			return false
		}
		return true
	}
	require.True(t, call())
	stop, done := make(chan struct{}), make(chan struct{})
	halt := sync.OnceFunc(func() {
		close(stop)
		<-done
	})
	t.Cleanup(data.Release)
	t.Cleanup(halt)
	go func() { // ends with stop, or when a call fails
		defer close(done)
		for call() {
			select {
			case <-stop:
				return
			default:
			}
		}
	}()
	return func(undisturbed bool) {
		t.Helper()
		halt()
		require.False(t, t.Failed())
		require.True(t, call(), "after all that")
		x.mu.Lock()
		defer x.mu.Unlock()
		require.Len(t, x.got, int(x.calls))
		for i, n := range x.got {
			require.EqualValues(t, i, n, "an innocent's calls come once, in order")
		}
		require.Zero(t, x.c.Stats().RemoteResets)
		if undisturbed {
			require.Zero(t, x.c.Stats().Reconnects)
			require.Zero(t, x.m.Stats().Faults)
		}
	}
}
