package messenger_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	. "github.com/argonaut-rdma/argonaut/messenger"
)

// Close while a Shutdown waits for a handler: that ends now, and Close returns
// when it has.
func TestCloseEndsAShutdown(t *testing.T) {
	under(t, func(t *testing.T) {
		d := newDuo(t, LossyClient(), StatelessServer())
		c := d.connect(t, 0)
		d.rec[1].hook = func(ctx context.Context, _ *Message) { <-ctx.Done() }
		send(t, c, 1)
		settle(time.Second)
		down := make(chan error, 1)
		go func() { down <- d.Nodes[1].Shutdown(context.Background()) }() // ends with Close
		settle(time.Hour)
		require.Empty(t, down)
		begin := time.Now()
		require.NoError(t, d.Nodes[1].Close())
		require.LessOrEqual(t, time.Since(begin), 2*time.Second)
		settle(0) // the peer gets to know
		require.Equal(t, StateClosed, c.State(), "it is closed")
		err := <-down
		require.ErrorIs(t, err, context.Canceled)
		require.ErrorContains(t, err, "handlers under way")
		require.NoError(t, d.Nodes[1].Close())
	})
}

// Of two Shutdowns the earliest end of a context counts, also where the second
// one's does.
func TestShutdownTwice(t *testing.T) {
	under(t, func(t *testing.T) {
		d := newDuo(t, LossyClient(), StatelessServer())
		c := d.connect(t, 0)
		d.rec[1].hook = func(ctx context.Context, _ *Message) { <-ctx.Done() }
		send(t, c, 1)
		settle(time.Second)
		begin := time.Now()
		down := make(chan error, 2)
		for _, after := range []time.Duration{time.Hour, time.Minute} {
			go func() { // ends with its context, or the other's
				ctx, cancel := context.WithTimeout(context.Background(), after)
				defer cancel()
				down <- d.Nodes[1].Shutdown(ctx)
			}()
			settle(time.Second)
		}
		err := <-down
		if err == nil {
			err = <-down
		} else {
			require.NoError(t, <-down)
		}
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.InDelta(t, time.Minute, time.Since(begin), float64(5*time.Second))
	})
}

// A handler that does not end is an error of Close, whoever waits for it.
func TestCloseNamesAHandlerThatRunsOn(t *testing.T) {
	under(t, func(t *testing.T) {
		d := newDuo(t, LossyClient(), StatelessServer())
		c := d.connect(t, 0)
		d.rec[1].hook = func(context.Context, *Message) { time.Sleep(time.Hour) }
		send(t, c, 1)
		settle(time.Second)
		require.ErrorContains(t, d.Nodes[1].Close(), "handlers still running")
		settle(time.Hour)
	})
}

// From when Close is called no handler begins: what is queued is dropped, of sessions
// that have ended too, also where a Shutdown has been waiting for it, and the calls
// among it end.
func TestCloseDropsWhatIsQueued(t *testing.T) {
	for name, waiting := range map[string]bool{"alone": false, "during a Shutdown": true} {
		t.Run(name, func(t *testing.T) {
			under(t, func(t *testing.T) {
				d := newDuo(t, LossyClient(), StatelessServer())
				server := d.Nodes[1]
				var handled atomic.Int32
				d.rec[1].hook = func(context.Context, *Message) {
					handled.Add(1)
					time.Sleep(300 * time.Millisecond)
				}
				ended := d.connect(t, 0)
				lives, err := d.Nodes[0].ConnectAnonymous(OSD, server.Addrs())
				require.NoError(t, err)
				ready(t, lives)
				send(t, server.Loopback(), 0)
				for n := range uint32(50) {
					send(t, ended, n)
					send(t, lives, n)
				}
				calls := make(chan error, 2)
				for _, c := range []*Connection{lives, server.Loopback()} {
					go func() { // ends with the call
						_, err := c.Call(context.Background(), NewMessage(1))
						calls <- err
					}()
					settle(0)
				}
				settle(time.Millisecond)
				ended.MarkDown()
				settle(100 * time.Millisecond)
				require.Equal(t, 3, int(handled.Load()), "one of each connection")
				if waiting {
					down := make(chan error, 1)
					go func() { down <- server.Shutdown(context.Background()) }() // ends with Close
					settle(0)
					require.Empty(t, down)
					defer func() { require.ErrorContains(t, <-down, "handlers still running") }()
				}
				begin := time.Now()
				require.NoError(t, server.Close())
				require.Less(t, time.Since(begin), time.Second, "those that ran have returned")
				settle(time.Hour)
				require.Equal(t, 3, int(handled.Load()))
				require.Equal(t, StateClosed, lives.State())
				for range 2 {
					err := <-calls
					require.True(t, errors.Is(err, ErrReset) || errors.Is(err, ErrClosed), "%v", err)
				}
			})
		})
	}
}

// A handler may shut down another messenger, as a proxy does, but not its own,
// however deep it is in handlers of others.
func TestShutdownOfAnotherFromAHandler(t *testing.T) {
	under(t, func(t *testing.T) {
		d := newDuo(t, LossyClient(), StatelessServer())
		other := unbound(t, d, 7)
		c := d.connect(t, 0)
		got := make(chan error, 2)
		// Fast handlers of the loopback run in the sender.
		fast := &fastHook{hook: func() { got <- d.Nodes[1].Shutdown(context.Background()) }}
		other.AddDispatcher(fast)
		d.rec[1].hook = func(context.Context, *Message) {
			m := NewMessage(1)
			if err := other.Loopback().Send(context.Background(), m); err != nil {
				m.Release()
				got <- err
			}
			got <- d.Nodes[0].Shutdown(context.Background())
		}
		send(t, c, 1)
		require.ErrorIs(t, <-got, ErrInvalid, "its own, from within the other's")
		require.NoError(t, <-got)
		settle(time.Second)
		require.Equal(t, StateClosed, c.State())
		require.True(t, d.Nodes[1].Health().Ready)
	})
}

type fastHook struct {
	BaseDispatcher
	hook func()
}

func (f *fastHook) FastDispatch(m *Message) bool {
	defer m.Release()
	f.hook()
	return true
}
