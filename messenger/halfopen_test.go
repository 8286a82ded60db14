package messenger

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
)

// What counts as one host: an IPv4 address in either form, the /64 that one IPv6
// host has to itself, whatever its port and zone.
func TestHostOf(t *testing.T) {
	for _, c := range []struct{ remote, host string }{
		{"192.0.2.1:6800", "192.0.2.1/32"},
		{"192.0.2.1:1", "192.0.2.1/32"},
		{"192.0.2.2:6800", "192.0.2.2/32"},
		{"[::ffff:192.0.2.1]:6800", "192.0.2.1/32"},
		{"[::ffff:c000:201]:6800", "192.0.2.1/32"},
		{"[2001:db8:0:1::1]:6800", "2001:db8:0:1::/64"},
		{"[2001:db8:0:1:ffff:ffff:ffff:ffff]:7", "2001:db8:0:1::/64"},
		{"[2001:db8:0:2::1]:6800", "2001:db8:0:2::/64"},
		{"[::1]:6800", "::/64"},
		{"[fe80::1%eth0]:6800", "fe80::/64"},
		{"[fe80::2%eth1]:6800", "fe80::/64"},
	} {
		require.Equal(t, netip.MustParsePrefix(c.host), hostOf(c.remote), c.remote)
	}
	for _, remote := range []string{"", "pipe", "node:6800", "192.0.2.1", "@"} {
		require.False(t, hostOf(remote).IsValid(), remote)
	}
}

// The bound of half-open peers is one for all addresses of a host, each in
// whatever form, and none of another's; what ends gives its place back.
func TestHalfOpenPerHost(t *testing.T) {
	m := newMessenger(t, Config{MaxHalfOpenPerHost: 2})
	var h halfOpen
	peer := func(remote string) *link { return &link{m: m, scheme: SchemeTCP, remote: remote} }
	for _, hosts := range [][]string{
		{"192.0.2.1:1", "[::ffff:192.0.2.1]:2", "192.0.2.1:3"},
		{"[2001:db8::1]:1", "[2001:db8::ffff:2]:2", "[2001:db8::3]:3"},
		{"[fe80::1%a]:1", "[fe80::2%b]:2", "[fe80::1]:3"},
	} {
		refused := m.Stats().HandshakesRefusedPerHost
		require.NoError(t, h.take(m, peer(hosts[0])))
		require.NoError(t, h.take(m, peer(hosts[1])))
		require.ErrorIs(t, h.take(m, peer(hosts[2])), ErrBusy)
		require.Equal(t, refused+1, m.Stats().HandshakesRefusedPerHost)
		h.give(peer(hosts[1]))
		require.NoError(t, h.take(m, peer(hosts[2])))
		require.ErrorIs(t, h.take(m, peer(hosts[0])), ErrBusy)
	}
	require.NoError(t, h.take(m, peer("[2001:db8:0:1::1]:1")), "another network")
	for range 3 { // what has no IP address is not told apart
		require.NoError(t, h.take(m, peer("pipe")))
	}
	require.Equal(t, 10, h.n)
}
