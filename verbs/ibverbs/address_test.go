//go:build ibverbs && linux && cgo

package ibverbs

import (
	"context"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/argonaut-rdma/argonaut/verbs/driver"
)

// TestIPv6 connects over an IPv6 address of the device's interface, and over the
// link-local one, which takes a zone.
func TestIPv6(t *testing.T) {
	name, addr := os.Getenv("ARGONAUT_RDMA_DEVICE"), os.Getenv("ARGONAUT_RDMA_ADDR6")
	if name == "" || addr == "" {
		t.Skip("no RDMA device with an IPv6 address: ARGONAUT_RDMA_DEVICE or ARGONAUT_RDMA_ADDR6 is not set")
	}
	for kind, addr := range map[string]string{"global": addr, "link-local": linkLocal(t, addr)} {
		t.Run(kind, func(t *testing.T) {
			d, err := open(Config{Device: name, Addr: addr})
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, d.Close()) })
			ctx := testContext(t)
			client, server := connect(t, ctx, d, addr)
			for _, q := range []driver.QP{client.qp, server.qp} {
				for _, a := range []string{q.LocalAddr(), q.RemoteAddr()} {
					host, _, err := net.SplitHostPort(a)
					require.NoError(t, err)
					require.Equal(t, addr, host)
				}
			}
			copy(client.mem[1<<16:], "over IPv6")
			client.send(driver.SendWR{WRID: 1, Opcode: driver.OpSend, Flags: driver.SendSignaled, SGEs: client.sge(1<<16, 9)})
			require.Equal(t, driver.StatusSuccess, client.next(ctx).Status)
			require.EqualValues(t, 9, server.next(ctx).ByteLen)
			require.Equal(t, "over IPv6", string(server.mem[:9]))
		})
	}
}

// linkLocal is the link-local address, with its zone, of the interface that has
// addr. (A new one is not to be used before the kernel has found no other.)
func linkLocal(t *testing.T, addr string) string {
	want := netip.MustParseAddr(addr)
	ifs, err := net.Interfaces()
	require.NoError(t, err)
	for _, ifi := range ifs {
		as, err := ifi.Addrs()
		require.NoError(t, err)
		has, local := false, netip.Addr{}
		for _, a := range as {
			ip, _ := netip.AddrFromSlice(a.(*net.IPNet).IP)
			has = has || ip == want
			if ip.Is6() && ip.IsLinkLocalUnicast() {
				local = ip.WithZone(ifi.Name)
			}
		}
		if !has {
			continue
		}
		require.True(t, local.IsValid(), "%s has no link-local address", ifi.Name)
		var lc net.ListenConfig
		require.Eventually(t, func() bool {
			l, err := lc.Listen(context.Background(), "tcp", net.JoinHostPort(local.String(), "0"))
			return err == nil && l.Close() == nil
		}, 10*time.Second, 10*time.Millisecond)
		return local.String()
	}
	t.Fatalf("no interface has %s", addr)
	return ""
}

// TestOverrides: a port and an entry of the GID table can be chosen, and one that
// is not there is refused, when the device is opened or when it is used.
func TestOverrides(t *testing.T) {
	d, addr := testDevice(t)
	name := d.caps.Name
	for _, c := range []Config{{Port: -1}, {Port: 256}, {GIDIndex: -1}, {GIDIndex: 256}, {Port: 2}} {
		c.Device, c.Addr = name, addr
		_, err := open(c)
		require.ErrorIs(t, err, driver.ErrInvalid, "%+v", c)
	}
	endpoint := func(c Config) (*device, driver.QPEndpoint, error) {
		d, err := open(c)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, d.Close()) })
		require.Equal(t, 1, d.port)
		ep, err := newEnd(t, d).qp.(driver.OutOfBand).Endpoint()
		return d, ep, err
	}
	_, ep, err := endpoint(Config{Device: name, Addr: addr, Port: 1})
	if d.iwarp() {
		require.ErrorIs(t, err, driver.ErrNotSupported)
		return
	}
	require.NoError(t, err)
	require.Equal(t, netip.MustParseAddr(addr), ep.GID.Unmap())

	devs, err := Devices()
	require.NoError(t, err)
	others := 0
	for _, dev := range devs {
		if dev.Name != name {
			continue
		}
		taken := map[int]bool{}
		for _, g := range dev.Ports[0].GIDs {
			taken[g.Index] = true
			if g.Index == 0 || g.Addr == ep.GID {
				continue
			}
			others++
			d, got, err := endpoint(Config{Device: name, Addr: addr, GIDIndex: g.Index})
			require.NoError(t, err)
			require.Equal(t, g.Addr, got.GID)
			own, err := d.ownGID()
			require.NoError(t, err)
			require.Equal(t, g.Index, own.index)
		}
		for i := 1; ; i++ {
			if !taken[i] {
				_, _, err := endpoint(Config{Device: name, Addr: addr, GIDIndex: i})
				require.ErrorIs(t, err, driver.ErrInvalid)
				require.ErrorContains(t, err, "is empty")
				break
			}
		}
	}
	require.Positive(t, others, "no other GID to choose")
}
