package messenger

import (
	"net"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// sockopt reads an option of the socket of c, which is open.
func sockopt(t *testing.T, c *Connection, level, option int) (v int) {
	t.Helper()
	c.mu.Lock()
	nc := c.link.transport().(*streamTransport).nc
	c.mu.Unlock()
	raw, err := nc.(syscall.Conn).SyscallConn()
	require.NoError(t, err)
	var failed error
	require.NoError(t, raw.Control(func(fd uintptr) { v, failed = syscall.GetsockoptInt(int(fd), level, option) }))
	require.NoError(t, failed)
	return v
}

// What Config says of sockets is so on both sides, of both families; otherwise they
// are as net makes them.
func TestSocketOptions(t *testing.T) {
	const size = 32 << 10 // Linux doubles it
	tuned := Config{TCPDelay: true, TCPReceiveBuffer: size, SocketPriority: 6}
	hosts := []string{"127.0.0.1"}
	if probe, err := net.Listen("tcp", "[::1]:0"); err == nil {
		require.NoError(t, probe.Close())
		hosts = append(hosts, "::1")
	} else {
		t.Log("no IPv6 on the loopback here: ", err)
	}
	for _, host := range hosts {
		for name, cfg := range map[string]Config{"default": {}, "tuned": tuned} {
			t.Run(host+" "+name, func(t *testing.T) {
				var lines syncSlice[string]
				cfg.Logger = newLogger(&lines)
				scfg := cfg
				scfg.Name = EntityName{OSD, 0}
				server := newMessenger(t, scfg)
				accepted := make(chan *Connection, 1)
				server.AddDispatcher(&handler{accept: func(c *Connection) { accepted <- c }, dispatch: echo})
				require.NoError(t, server.Bind(soon(t), AddrVec{{URL: "tcp://" + net.JoinHostPort(host, "0")}}))
				c, err := newMessenger(t, cfg).ConnectTo(OSD, server.Addrs())
				require.NoError(t, err)
				r, err := c.Call(soon(t), NewMessage(1))
				require.NoError(t, err)
				r.Release()
				for _, c := range []*Connection{c, receiveOne(t, accepted, "connection")} {
					noDelay, priority, class := 1, 0, 0
					if name == "tuned" {
						noDelay, priority, class = 0, 6, classCS6
						require.Equal(t, 2*size, sockopt(t, c, syscall.SOL_SOCKET, syscall.SO_RCVBUF))
					} else {
						require.NotEqual(t, 2*size, sockopt(t, c, syscall.SOL_SOCKET, syscall.SO_RCVBUF))
					}
					require.Equal(t, noDelay, sockopt(t, c, syscall.IPPROTO_TCP, syscall.TCP_NODELAY))
					require.Equal(t, priority, sockopt(t, c, syscall.SOL_SOCKET, syscall.SO_PRIORITY))
					if host == "::1" {
						require.Equal(t, class, sockopt(t, c, syscall.IPPROTO_IPV6, syscall.IPV6_TCLASS))
					} else {
						require.Equal(t, class, sockopt(t, c, syscall.IPPROTO_IP, syscall.IP_TOS))
					}
				}
				require.NotContains(t, lines.String(), "socket options", "nothing was refused")
			})
		}
	}
}
