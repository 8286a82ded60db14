package ibverbs

import (
	"net"
	"net/netip"
	"os"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"
)

// sysfs is the directory of a machine with one adapter of each kind.
func sysfs() fstest.MapFS {
	fs := fstest.MapFS{}
	file := func(name, content string) {
		fs["sys/class/infiniband/"+name] = &fstest.MapFile{Data: []byte(content + "\n")}
	}
	file("mlx5_0/node_type", "1: CA")
	file("mlx5_0/fw_ver", "22.31.1014")
	file("mlx5_0/ports/1/state", "4: ACTIVE")
	file("mlx5_0/ports/1/link_layer", "Ethernet")
	file("mlx5_0/ports/1/rate", "100 Gb/sec (4X EDR)")
	gid := func(dev, i, addr, typ, ndev string) {
		file(dev+"/ports/1/gids/"+i, addr)
		file(dev+"/ports/1/gid_attrs/types/"+i, typ)
		if ndev != "" {
			file(dev+"/ports/1/gid_attrs/ndevs/"+i, ndev)
		}
	}
	gid("mlx5_0", "0", "fe80:0000:0000:0000:1e34:daff:fe00:0001", "IB/RoCE v1", "eth0")
	gid("mlx5_0", "1", "fe80:0000:0000:0000:1e34:daff:fe00:0001", "RoCE v2", "eth0")
	gid("mlx5_0", "2", "0000:0000:0000:0000:0000:ffff:c000:0201", "IB/RoCE v1", "eth0")
	gid("mlx5_0", "3", "0000:0000:0000:0000:0000:0000:0000:0000", "", "")
	gid("mlx5_0", "10", "0000:0000:0000:0000:0000:ffff:c000:0201", "RoCE v2", "eth0")
	gid("mlx5_0", "11", "2001:0db8:0000:0000:0000:0000:0000:0001", "RoCE v2", "eth0")
	file("mlx4_0/node_type", "1: CA")
	file("mlx4_0/ports/1/state", "4: ACTIVE")
	file("mlx4_0/ports/1/link_layer", "InfiniBand")
	gid("mlx4_0", "0", "fe80:0000:0000:0000:f452:1403:0010:0001", "IB/RoCE v1", "")
	file("siw0/node_type", "4: RNIC")
	file("siw0/ports/1/state", "4: ACTIVE")
	file("siw0/ports/1/link_layer", "Ethernet")
	gid("siw0", "0", "5254:0012:3456:0000:0000:0000:0000:0000", "", "")
	file("rxe0/node_type", "1: CA")
	file("rxe0/ports/1/state", "1: DOWN")
	file("rxe0/ports/1/link_layer", "Ethernet")
	gid("rxe0", "0", "0000:0000:0000:0000:0000:ffff:0a00:0001", "RoCE v2", "eth2")
	gid("rxe0", "1", "fe80:0000:0000:0000:5054:00ff:fe12:0003", "RoCE v2", "eth3")
	return fs
}

func TestDevicesOf(t *testing.T) {
	devs, err := devicesOf(fstest.MapFS{})
	require.NoError(t, err)
	require.Empty(t, devs)

	devs, err = devicesOf(sysfs())
	require.NoError(t, err)
	require.Len(t, devs, 4)
	mlx5 := devs[1]
	require.Equal(t, "mlx5_0", mlx5.Name)
	require.Equal(t, "22.31.1014", mlx5.Firmware)
	require.False(t, mlx5.IWARP)
	require.True(t, mlx5.Ports[0].Active())
	require.Equal(t, []string{"eth0"}, mlx5.Ports[0].NetDevs)
	require.Len(t, mlx5.Ports[0].GIDs, 5, "the hole is left out")
	require.Equal(t, GIDInfo{10, netip.MustParseAddr("::ffff:192.0.2.1"), "RoCE v2", "eth0"}, mlx5.Ports[0].GIDs[3])
	require.True(t, devs[3].IWARP)
}

func TestFind(t *testing.T) {
	devs, err := devicesOf(sysfs())
	require.NoError(t, err)
	ipoib, _ := net.ParseMAC("80:00:02:08:fe:80:00:00:00:00:00:00:f4:52:14:03:00:10:00:01")
	mac, _ := net.ParseMAC("52:54:00:12:34:56")
	other, _ := net.ParseMAC("52:54:00:12:34:57")
	for _, c := range []struct {
		addr, netdev string
		hw           net.HardwareAddr
		want         Match
		why          string
	}{
		{"192.0.2.1", "eth0", other, Match{Device: "mlx5_0", Port: 1, GID: 10}, "RoCE v2"},
		{"2001:db8::1", "eth0", other, Match{Device: "mlx5_0", Port: 1, GID: 11}, "RoCE v2"},
		{"fe80::1e34:daff:fe00:1", "eth0", other, Match{Device: "mlx5_0", Port: 1, GID: 1}, "RoCE v2"},
		{"192.0.2.9", "ib0", ipoib, Match{Device: "mlx4_0", Port: 1, GID: 0}, "IPoIB"},
		{"10.9.0.2", "eth1", mac, Match{Device: "siw0", Port: 1, GID: -1}, "iWARP"},
	} {
		m, err := find(devs, netip.MustParseAddr(c.addr), c.netdev, c.hw)
		require.NoError(t, err, c.addr)
		require.Contains(t, m.Why, c.why)
		c.want.Why, c.want.NetDev = m.Why, c.netdev
		require.Equal(t, c.want, m)
	}
	for _, c := range []struct{ addr, netdev, why string }{
		{"10.0.0.1", "eth2", "port 1 of rxe0 serves it, but is DOWN"},
		{"192.0.2.77", "eth0", "has no GID with the address"},
		{"127.0.0.1", "lo", "no RDMA device belongs to lo"},
	} {
		_, err := find(devs, netip.MustParseAddr(c.addr), c.netdev, other)
		require.ErrorIs(t, err, os.ErrNotExist)
		require.ErrorContains(t, err, c.why)
	}
	_, err = Find(nil, netip.MustParseAddr("192.0.2.200"))
	require.ErrorIs(t, err, os.ErrNotExist)
	require.ErrorContains(t, err, "no address of this machine")
	_, err = Find(nil, netip.MustParseAddr("127.0.0.1"))
	require.ErrorContains(t, err, "no RDMA device belongs to")
}

func TestGIDOutOfBand(t *testing.T) {
	devs, err := devicesOf(sysfs())
	require.NoError(t, err)
	port := map[string]*PortInfo{}
	for i := range devs {
		port[devs[i].Name] = &devs[i].Ports[0]
	}
	for _, c := range []struct {
		dev, addr string
		want      int
	}{
		{"mlx5_0", "", 10}, // RoCE v2, routable
		{"mlx5_0", "192.0.2.1", 10},
		{"mlx5_0", "2001:db8::1", 11},
		{"mlx5_0", "fe80::1e34:daff:fe00:1%eth0", 1},
		{"mlx5_0", "192.0.2.2", -1},
		{"mlx4_0", "192.0.2.9", 0}, // InfiniBand: the GID is no IP address
		{"rxe0", "", 0},
	} {
		var addr netip.Addr
		if c.addr != "" {
			addr = netip.MustParseAddr(c.addr)
		}
		g, ok := port[c.dev].GID(addr)
		require.Equal(t, c.want >= 0, ok, c)
		if ok {
			require.Equal(t, c.want, g.Index, c)
		}
	}
	far := PortInfo{GIDs: []GIDInfo{{Index: 256, Addr: netip.MustParseAddr("192.0.2.1"), Type: roceV2}, {Index: 3}}}
	g, ok := far.GID(netip.Addr{})
	require.True(t, ok)
	require.Equal(t, 3, g.Index, "no queue pair can name entry 256")
}
