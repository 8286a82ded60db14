package messenger

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/argonaut-rdma/argonaut/conn"
	"github.com/argonaut-rdma/argonaut/test/env"
	"github.com/argonaut-rdma/argonaut/verbs/verbstest"
)

// A device or a handler that holds a connection up does not hold up Shutdown, which
// names it; when it lets go, all is given back.
func TestShutdownIsBounded(t *testing.T) {
	shutdown := func(m *Messenger) error {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
		defer cancel()
		return m.Shutdown(ctx)
	}
	for name, end := range map[string]func(*Messenger) error{
		"Shutdown, device": shutdown, "Shutdown, fast handler": shutdown,
		"Close, device": (*Messenger).Close, "Close, fast handler": (*Messenger).Close,
	} {
		t.Run(name, func(t *testing.T) {
			_, who, _ := strings.Cut(name, ", ")
			stuck, release := make(chan struct{}), make(chan struct{})
			dev := env.Core(t, verbstest.NewFaulty(env.OpenDriver(t), &verbstest.Script{Call: func(call verbstest.Call) verbstest.Fault {
				if who != "device" || call.Op != verbstest.CallDestroyQP || call.N > 0 {
					return verbstest.Fault{}
				}
				close(stuck)
				return verbstest.Fault{Wait: release}
			}}))
			arena := newArena(t)
			server, err := New(Config{
				Name: EntityName{OSD, 0}, Arena: arena,
				Transports: []Transport{{Scheme: schemeDevice, Open: func(c conn.Config) (*conn.Endpoint, error) {
					c.DrainTimeout = 50 * time.Millisecond
					return conn.NewEndpoint(dev, arena, c)
				}}},
			})
			require.NoError(t, err)
			server.AddDispatcher(&handler{fast: func(m *Message) bool {
				close(stuck)
				<-release
				m.Release()
				return true
			}})
			require.NoError(t, server.Bind(soon(t), anyAddr(schemeDevice)))
			c, err := newMessenger(t, Config{}).ConnectTo(OSD, server.Addrs())
			require.NoError(t, err)
			require.NoError(t, c.Ready(soon(t)))
			if who == "fast handler" {
				require.NoError(t, c.Send(soon(t), ofNumber(1, 1)))
				receiveOne(t, stuck, "message")
			}
			over := make(chan error, 1)
			go func() { over <- end(server) }() // ends by itself
			require.ErrorIs(t, receiveOne(t, over, "end"), conn.ErrNotDestroyed)
			receiveOne(t, stuck, "reason")
			close(release)
			require.Eventually(t, func() bool { return len(dev.Resources()) == 0 }, patience, time.Millisecond)
			require.NoError(t, dev.Close())
		})
	}
}
