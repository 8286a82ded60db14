package messenger

import (
	"context"
	"errors"
	"fmt"
	"net"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/argonaut-rdma/argonaut/test/env"
)

// onPort is an address of a scheme with that port.
func onPort(scheme string, port uint16) AddrVec {
	return AddrVec{{URL: fmt.Sprintf("%s://%s", scheme, net.JoinHostPort(env.Addr(), fmt.Sprint(port)))}}
}

// freePorts is a range of n ports below those that systems give out, of which the
// first is free.
func freePorts(t *testing.T, scheme string, n uint16) PortRange {
	t.Helper()
	probe := newMessenger(t, Config{Name: EntityName{OSD, 99}})
	for first := uint16(20000); first < 32000; first += n {
		if probe.Bind(soon(t), onPort(scheme, first)) == nil {
			require.NoError(t, probe.Shutdown(soon(t)))
			return PortRange{first, first + n - 1}
		}
	}
	t.Fatal("no free port from 20000 to 32000")
	panic("unreachable")
}

// A port is the first of the range that can be had; Rebind takes none that it had
// nor one of those it is to avoid, and lets the old ones go, on every carrier.
func TestPortRange(t *testing.T) {
	carriers(t, func(t *testing.T, scheme string) {
		ports := freePorts(t, scheme, 40)
		inRange := func(m *Messenger) uint16 {
			t.Helper()
			require.Len(t, m.Addrs(), 1)
			port, ok := portOf(m.Addrs()[0])
			require.True(t, ok)
			require.GreaterOrEqual(t, port, ports.First)
			require.LessOrEqual(t, port, ports.Last)
			return port
		}
		bound := func(num int64) *Messenger {
			m := newMessenger(t, Config{Name: EntityName{OSD, num}, BindPorts: ports})
			m.AddDispatcher(&handler{dispatch: echo})
			require.NoError(t, m.Bind(soon(t), anyAddr(scheme)))
			return m
		}
		a := bound(0)
		first := inRange(a)
		b := bound(1)
		second := inRange(b)
		require.Greater(t, second, first, "the first one is taken")

		nonce := a.Addrs()[0].Nonce
		require.NoError(t, a.Rebind(soon(t), second+1, second+2))
		third := inRange(a)
		require.NotContains(t, []uint16{first, second, second + 1, second + 2}, third)
		require.NotEqual(t, nonce, a.Addrs()[0].Nonce)
		c, err := newMessenger(t, Config{}).ConnectTo(OSD, a.Addrs())
		require.NoError(t, err)
		r, err := c.Call(soon(t), NewMessage(1))
		require.NoError(t, err)
		r.Release()
		require.Less(t, inRange(bound(2)), third, "the first one is free again")

		full := newMessenger(t, Config{Name: EntityName{OSD, 3}, BindPorts: PortRange{second, second}})
		err = full.Bind(soon(t), anyAddr(scheme))
		require.ErrorContains(t, err, fmt.Sprintf("no port of %d to %d", second, second))
		require.Empty(t, full.Addrs())
	})
}

// Of several addresses none stays bound when one can not be, on any carrier.
func TestBindFailsAsAWhole(t *testing.T) {
	carriers(t, func(t *testing.T, scheme string) {
		taken := newMessenger(t, Config{Name: EntityName{OSD, 0}})
		require.NoError(t, taken.Bind(soon(t), anyAddr(scheme)))
		at := freePorts(t, scheme, 1)
		m := newMessenger(t, Config{Name: EntityName{OSD, 1}})
		require.Error(t, m.Bind(soon(t), append(onPort(scheme, at.First), taken.Addrs()...)))
		require.Empty(t, m.Addrs())
		again := newMessenger(t, Config{Name: EntityName{OSD, 2}})
		require.NoError(t, again.Bind(soon(t), onPort(scheme, at.First)), "it is free again")
		require.NoError(t, m.Bind(soon(t), anyAddr(scheme)))
	})
}

// What is in use is tried again, as often as Config says.
func TestBindRetries(t *testing.T) {
	carriers(t, func(t *testing.T, scheme string) {
		was := newMessenger(t, Config{Name: EntityName{OSD, 0}})
		require.NoError(t, was.Bind(soon(t), anyAddr(scheme)))
		var lines syncSlice[string]
		m := newMessenger(t, Config{
			Name: EntityName{OSD, 1}, BindRetries: 1000, BindRetryDelay: time.Millisecond, Logger: newLogger(&lines),
		})
		bound := make(chan error, 1)
		go func() { bound <- m.Bind(soon(t), was.Addrs()) }() // ends with the call
		require.Eventually(t, func() bool { return strings.Contains(lines.String(), "listening failed, trying again") },
			patience, time.Millisecond)
		require.NoError(t, was.Shutdown(soon(t)))
		require.NoError(t, receiveOne(t, bound, "end of Bind"))
		require.Equal(t, was.Addrs()[0].URL, m.Addrs()[0].URL)
	})
	t.Run("counted", func(t *testing.T) {
		tries, taken := 0, errors.New("taken")
		cfg := Config{Name: EntityName{OSD, 0}, BindRetries: 3, BindRetryDelay: time.Millisecond,
			ListenStream: func(context.Context, string) (net.Listener, error) { tries++; return nil, taken }}
		m := newMessenger(t, cfg)
		require.ErrorIs(t, m.Bind(soon(t), anyAddr(SchemeTCP)), taken)
		require.Equal(t, 4, tries)
		cfg.BindRetries, cfg.Arena = 0, nil
		tries = 0
		require.ErrorIs(t, newMessenger(t, cfg).Bind(soon(t), anyAddr(SchemeTCP)), taken)
		require.Equal(t, 1, tries)
		cfg.BindRetries, cfg.BindRetryDelay = 1, time.Hour
		last := newMessenger(t, cfg)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond) // over at once, or in the pause
		defer cancel()
		require.NoError(t, last.binding.take(t.Context()))
		defer last.binding.give()
		err := last.bind(ctx, anyAddr(SchemeTCP), nil)
		require.ErrorIs(t, err, taken)
		require.ErrorIs(t, err, context.DeadlineExceeded)
	})
}

// Bindings are made one after the other; who waits for one may give up.
func TestBindWaitsItsTurn(t *testing.T) {
	m := newMessenger(t, Config{Name: EntityName{OSD, 0}})
	require.NoError(t, m.binding.take(soon(t)))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, m.Bind(ctx, anyAddr(SchemeTCP)), context.Canceled)
	require.ErrorIs(t, m.Rebind(ctx), context.Canceled)
	m.binding.give()
	require.NoError(t, m.Bind(soon(t), anyAddr(SchemeTCP)))
}

func TestBindConfig(t *testing.T) {
	arena := newArena(t)
	for name, change := range map[string]func(*Config){
		"BindPorts = 0 to 5": func(c *Config) { c.BindPorts.Last = 5 },
		"BindPorts = 9 to 5": func(c *Config) { c.BindPorts = PortRange{9, 5} },
		"BindBeforeConnect": func(c *Config) {
			c.BindBeforeConnect = true
			c.DialStream = func(context.Context, string) (net.Conn, error) { return nil, nil }
		},
	} {
		cfg := Config{Name: EntityName{OSD, 0}, Arena: arena}
		change(&cfg)
		_, err := New(cfg)
		require.ErrorIs(t, err, ErrInvalid)
		require.ErrorContains(t, err, name)
	}
	require.Equal(t, "any", PortRange{}.String())
	require.Equal(t, "6800 to 7568", PortRange{6800, 7568}.String())
}

// Connections come from the host that is bound, where that can be.
func TestBindBeforeConnect(t *testing.T) {
	m := newMessenger(t, Config{Name: EntityName{OSD, 1}, BindBeforeConnect: true})
	from := func(bound AddrVec, to string) string {
		m.mu.Lock()
		m.bound = bound
		m.mu.Unlock()
		defer func() {
			m.mu.Lock()
			m.bound = nil
			m.mu.Unlock()
		}()
		if a := m.dialFrom(to); a != nil {
			return a.String()
		}
		return ""
	}
	v4, v6, all := EntityAddr{URL: "tcp://192.0.2.1:1"}, EntityAddr{URL: "iwarp://[2001:db8::1]:2"}, EntityAddr{URL: "tcp://0.0.0.0:3"}
	require.Equal(t, "192.0.2.1:0", from(AddrVec{all, v4, v6}, "192.0.2.9:7"))
	require.Equal(t, "[2001:db8::1]:0", from(AddrVec{all, v4, v6}, "[2001:db8::9]:7"))
	require.Empty(t, from(AddrVec{all, v4}, "[2001:db8::9]:7"))
	require.Empty(t, from(AddrVec{all}, "192.0.2.9:7"))
	require.Empty(t, from(nil, "192.0.2.9:7"))
	require.Equal(t, "192.0.2.1:0", from(AddrVec{v4, v6}, "node:7"))

	if runtime.GOOS != "linux" {
		return // 127.0.0.2 is not there
	}
	server := newMessenger(t, Config{Name: EntityName{OSD, 0}})
	accepted := make(chan string, 2)
	server.AddDispatcher(&handler{accept: func(c *Connection) {
		c.mu.Lock()
		defer c.mu.Unlock()
		accepted <- c.link.remote
	}})
	require.NoError(t, server.Bind(soon(t), AddrVec{{URL: "tcp://127.0.0.1:0"}}))
	require.NoError(t, m.Bind(soon(t), AddrVec{{URL: "tcp://127.0.0.2:0"}}))
	c, err := m.ConnectTo(OSD, server.Addrs())
	require.NoError(t, err)
	require.NoError(t, c.Ready(soon(t)))
	host, _, err := net.SplitHostPort(receiveOne(t, accepted, "connection"))
	require.NoError(t, err)
	require.Equal(t, "127.0.0.2", host)
}
