package messenger

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/argonaut-rdma/argonaut/conn"
	"github.com/argonaut-rdma/argonaut/test/env"
	"github.com/argonaut-rdma/argonaut/verbs/driver"
	"github.com/argonaut-rdma/argonaut/verbs/verbstest"
)

// onFaulty is a messenger with a device that lose loses.
func onFaulty(t *testing.T, cfg Config) (m *Messenger, lose func()) {
	f := verbstest.NewFaulty(env.OpenDriver(t), nil)
	dev := env.Core(t, f)
	t.Cleanup(func() { require.NoError(t, dev.Close()) })
	cfg.Arena = newArena(t)
	cfg.Transports = []Transport{{Scheme: schemeDevice, Open: func(c conn.Config) (*conn.Endpoint, error) {
		return conn.NewEndpoint(dev, cfg.Arena, c)
	}}}
	return newMessenger(t, cfg), func() { f.Inject(driver.Event{Type: driver.EventDeviceFatal}) }
}

// twoTransports is addresses on the device and on a stream.
func twoTransports() AddrVec { return append(anyAddr(schemeDevice), anyAddr(SchemeTCP)...) }

// tellNumbers tells the numbers of what comes, answers type 2, and only answers type 3.
func tellNumbers(to *syncSlice[uint32]) *handler {
	return &handler{dispatch: func(ctx context.Context, m *Message) bool {
		if m.Type == 3 {
			return echo(ctx, m)
		}
		to.add(binary.LittleEndian.Uint32(m.Front))
		if m.Type == 2 {
			return echo(ctx, m)
		}
		m.Release()
		return true
	}}
}

func ofNumber(typ uint16, n uint32) *Message {
	m := NewMessage(typ)
	m.Front = binary.LittleEndian.AppendUint32(m.Front, n)
	return m
}

// When the device of either side is lost in the middle of traffic, lossless sessions
// go on by the stream, on both sides, and every message arrives once and in order.
func TestSessionsOutliveTheDevice(t *testing.T) {
	for _, side := range []string{"who connected", "who was connected to"} {
		t.Run(side, func(t *testing.T) {
			const count = 400
			var got [2]syncSlice[uint32]
			peers := [2]*Messenger{}
			var lose func()
			for i := range peers {
				cfg := Config{Name: EntityName{OSD, int64(i)}}
				if (i == 0) == (side == "who connected") {
					peers[i], lose = onFaulty(t, cfg)
				} else {
					peers[i] = newMessenger(t, cfg)
				}
				peers[i].SetPolicy(OSD, LosslessPeerReuse())
				peers[i].AddDispatcher(tellNumbers(&got[i]))
				require.NoError(t, peers[i].Bind(soon(t), twoTransports()))
			}
			there, err := peers[0].ConnectTo(OSD, peers[1].Addrs())
			require.NoError(t, err)
			require.NoError(t, there.Ready(soon(t)))
			require.Equal(t, schemeDevice, there.Stats().Transport)
			back, err := peers[1].ConnectTo(OSD, peers[0].Addrs())
			require.NoError(t, err)
			errs := make(chan error, 2)
			for _, c := range []*Connection{there, back} {
				go func() { // ends with its messages
					for n := range uint32(count) {
						if err := c.Send(soon(t), ofNumber(1, n)); err != nil {
							errs <- err
							return
						}
						if n == count/4 && c == there {
							lose()
						}
					}
					r, err := c.Call(soon(t), ofNumber(2, count))
					if err == nil {
						r.Release()
					}
					errs <- err
				}()
			}
			for range 2 {
				require.NoError(t, receiveOne(t, errs, "end of sending"))
			}
			for i := range got {
				all := got[i].all()
				require.Len(t, all, count+1)
				for n, v := range all {
					require.EqualValues(t, n, v)
				}
			}
			for _, c := range []*Connection{there, back} {
				// All may have come through before the loss was known, and a session that has
				// nothing to send does not connect.
				for end := time.Now().Add(patience); c.Stats().Transport != SchemeTCP; {
					require.True(t, time.Now().Before(end), "still on %q", c.Stats().Transport)
					r, err := c.Call(soon(t), NewMessage(3))
					require.NoError(t, err)
					r.Release()
				}
				require.NotZero(t, c.Stats().Reconnects)
				require.Zero(t, c.Stats().Undelivered)
			}
			for i, m := range peers {
				require.Zero(t, m.Stats().RemoteResets)
				require.Equal(t, 1, m.Stats().Open)
				require.Zero(t, m.Stats().Skipped)
				lost := (i == 0) == (side == "who connected")
				if h := m.Health(); lost {
					require.Eventually(t, func() bool { return len(m.Addrs()) == 1 }, patience, time.Millisecond)
					require.Equal(t, SchemeTCP, m.Addrs()[0].Scheme(), "nobody is told of the other one")
					require.Len(t, h.Problems, 1)
					require.Contains(t, h.Problems[0], "is lost")
				} else {
					require.Empty(t, h.Problems)
				}
				require.True(t, m.Health().Ready)
			}
		})
	}
}

// What has lost its device is not dialed any more; who has nothing else is told.
func TestConnectingWithoutTheDevice(t *testing.T) {
	server := newMessenger(t, Config{Name: EntityName{OSD, 0}})
	server.AddDispatcher(&handler{dispatch: echo})
	require.NoError(t, server.Bind(soon(t), twoTransports()))
	resets := make(chan *Connection, 1)
	m, lose := onFaulty(t, Config{Name: EntityName{OSD, 1}})
	m.AddDispatcher(&handler{reset: func(c *Connection) { resets <- c }})
	require.NoError(t, m.Bind(soon(t), anyAddr(schemeDevice)))
	only, err := m.ConnectTo(OSD, server.Addrs()[:1])
	require.NoError(t, err)
	require.NoError(t, only.Ready(soon(t)))
	require.True(t, m.Health().Ready)

	lose()
	require.Same(t, only, receiveOne(t, resets, "HandleReset"))
	require.ErrorIs(t, only.Err(), conn.ErrDeviceLost)
	require.Eventually(t, func() bool { return !m.Health().Ready }, patience, time.Millisecond)
	require.True(t, m.Health().Live)
	require.Empty(t, m.Addrs())
	_, err = m.ConnectTo(OSD, server.Addrs()[:1])
	require.ErrorIs(t, err, ErrInvalid)
	require.Error(t, m.Bind(soon(t), anyAddr(schemeDevice)))
	require.NoError(t, m.Bind(soon(t), anyAddr(SchemeTCP)))

	before := m.Stats().FallbacksNoTransport
	c, err := m.ConnectTo(OSD, server.Addrs())
	require.NoError(t, err)
	r, err := c.Call(soon(t), NewMessage(1))
	require.NoError(t, err)
	r.Release()
	require.Equal(t, SchemeTCP, c.Stats().Transport)
	require.Equal(t, before+1, m.Stats().FallbacksNoTransport)
	require.NoError(t, m.Rebind(soon(t)), fmt.Sprint("with what is left: ", m.Addrs()))
	require.Len(t, m.Addrs(), 1)
}

// A device that is lost while Bind or Rebind is under way leaves no address behind
// that nobody listens on: Bind fails as a whole, Rebind goes on with what is left.
func TestDeviceIsLostWhileBinding(t *testing.T) {
	for _, again := range []bool{false, true} {
		t.Run(map[bool]string{false: "Bind", true: "Rebind"}[again], func(t *testing.T) {
			var lines syncSlice[string]
			var streams []net.Listener
			meanwhile := func() {}
			m, lose := onFaulty(t, Config{
				Name: EntityName{OSD, 0}, Logger: newLogger(&lines), BindRetries: 1000, BindRetryDelay: time.Hour,
				ListenStream: func(ctx context.Context, hostport string) (net.Listener, error) {
					meanwhile() // that of the device has been got
					var lc net.ListenConfig
					ln, err := lc.Listen(ctx, "tcp", hostport)
					streams = append(streams, ln)
					return ln, err
				},
			})
			lost := func() {
				lose()
				require.Eventually(t, func() bool { return strings.Contains(lines.String(), "the device of a transport is lost") },
					patience, time.Millisecond, "watch has been there, and does not come again")
				meanwhile = func() {}
			}
			if again {
				require.NoError(t, m.Bind(soon(t), twoTransports()))
				require.Len(t, m.Addrs(), 2)
				meanwhile = lost
				require.NoError(t, m.Rebind(soon(t)))
				require.Len(t, m.Addrs(), 1)
				require.Equal(t, SchemeTCP, m.Addrs()[0].Scheme())
			} else {
				meanwhile = lost
				require.ErrorIs(t, m.Bind(soon(t), twoTransports()), conn.ErrDeviceLost)
				require.Empty(t, m.Addrs())
			}
			require.Empty(t, m.endpoints[schemeDevice].Addrs(), "what was got on the device has been given up")
			for _, ln := range streams[:len(streams)-len(m.Addrs())] {
				_, err := ln.Accept()
				require.ErrorIs(t, err, net.ErrClosed)
			}
			require.ErrorIs(t, m.Bind(soon(t), anyAddr(schemeDevice)), conn.ErrDeviceLost, "at once: that does not pass")
			require.NoError(t, m.Bind(soon(t), anyAddr(SchemeTCP)))
		})
	}
}
