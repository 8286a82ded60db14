package fabric

import (
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"
)

// The smallest limit counts, and what is no limit does not.
func TestMemory(t *testing.T) {
	file := func(s string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(s)} }
	root := fstest.MapFS{"proc/meminfo": file("MemFree:  7 kB\nMemTotal:       1048576 kB\n")}
	require.EqualValues(t, 1<<30, memoryIn(root).Bytes)
	require.NoError(t, memoryIn(root).CheckArena(1<<30))
	err := memoryIn(root).CheckArena(1<<30 + 1)
	require.ErrorIs(t, err, ErrMemory)
	require.ErrorContains(t, err, "MemTotal")

	root["proc/self/cgroup"] = file("3:memory:/old\n0::/a.slice/b.service\n")
	root["sys/fs/cgroup/a.slice/b.service/memory.max"] = file("max\n")
	require.EqualValues(t, 1<<30, memoryIn(root).Bytes)
	root["sys/fs/cgroup/a.slice/memory.max"] = file("4096\n")
	require.EqualValues(t, 4096, memoryIn(root).Bytes)
	require.ErrorContains(t, memoryIn(root).CheckArena(8192), "/sys/fs/cgroup/a.slice/memory.max is 4096 bytes")
	root["sys/fs/cgroup/a.slice/b.service/memory.max"] = file("8192\n")
	require.EqualValues(t, 4096, memoryIn(root).Bytes)
	// Of a container: its group is the root of what is mounted.
	root["proc/self/cgroup"] = file("0::/\n")
	root["sys/fs/cgroup/memory.max"] = file("2048\n")
	require.EqualValues(t, 2048, memoryIn(root).Bytes)

	require.Zero(t, memoryIn(fstest.MapFS{}).Bytes)
	require.NoError(t, memoryIn(fstest.MapFS{}).CheckArena(1<<50))
}

// Addresses of kernel devices are not served by the adapter in software, unless that was asked for by its name.
func TestRDMAAddressesInSoftware(t *testing.T) {
	const addr = "rdma://127.0.0.1:7000"
	for _, device := range []string{"", DeviceAuto} {
		_, err := Choose(device, addr, true).ParseAddrs(addr)
		require.ErrorIs(t, err, ErrScheme, device)
		require.ErrorContains(t, err, "--device")
		require.ErrorContains(t, err, "iwarp://127.0.0.1:7000")
		_, err = Choose(device, "iwarp://127.0.0.1:7000", true).ParseAddrs("iwarp://127.0.0.1:7000," + addr)
		require.ErrorIs(t, err, ErrScheme, device)
		addrs, err := Choose(device, "127.0.0.1:7000", true).ParseAddrs("127.0.0.1:7000")
		require.NoError(t, err)
		require.Equal(t, "iwarp://127.0.0.1:7000", addrs[0].URL)
	}
	for _, device := range []string{DeviceIWARP, "siw0"} {
		c := Choose(device, addr, true)
		addrs, err := c.ParseAddrs(addr)
		require.NoError(t, err, device)
		require.Equal(t, addr, addrs[0].URL)
	}
	require.Contains(t, Choose(DeviceIWARP, addr, true).Why, "in software")
}
