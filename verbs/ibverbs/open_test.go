//go:build ibverbs && linux && cgo

package ibverbs

import (
	"os"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/argonaut-rdma/argonaut/verbs/driver"
)

func TestMemlockErrorNamesNumbersAndRemedy(t *testing.T) {
	d, _ := testDevice(t)
	p, err := d.AllocPD()
	require.NoError(t, err)
	defer func() { require.NoError(t, p.Dealloc()) }()
	mem, err := unix.Mmap(-1, 0, 1<<20, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	require.NoError(t, err)
	defer func() { require.NoError(t, unix.Munmap(mem)) }()

	var limit unix.Rlimit
	require.NoError(t, unix.Getrlimit(unix.RLIMIT_MEMLOCK, &limit))
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_MEMLOCK, &unix.Rlimit{Cur: 64 << 10, Max: limit.Max}))
	defer func() { require.NoError(t, unix.Setrlimit(unix.RLIMIT_MEMLOCK, &limit)) }()
	runtime.LockOSThread() // for good: the thread loses a capability, and ends with this goroutine
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var caps [2]unix.CapUserData
	require.NoError(t, unix.Capget(&header, &caps[0]))
	caps[0].Effective &^= 1 << unix.CAP_IPC_LOCK
	require.NoError(t, unix.Capset(&header, &caps[0]))

	_, err = p.RegMR(mem, driver.AccessLocalWrite)
	require.ErrorIs(t, err, driver.ErrMemlock)
	for _, part := range []string{"1048576 bytes to pin", "RLIMIT_MEMLOCK is 65536", "ulimit -l 1024", "LimitMEMLOCK=1048576", "CAP_IPC_LOCK"} {
		require.ErrorContains(t, err, part)
	}
	m, err := p.RegMR(mem[:4096], driver.AccessLocalWrite)
	require.NoError(t, err)
	require.NoError(t, m.Deregister())
}

// A machine without a device has not lost one.
func TestNoDeviceIsNotALoss(t *testing.T) {
	err := channelErr(unix.ENODEV)
	require.ErrorIs(t, err, os.ErrNotExist)
	require.NotErrorIs(t, err, driver.ErrDeviceLost)
	require.ErrorContains(t, err, "no RDMA device")
	require.ErrorContains(t, err, "rdma link add")
	for _, errno := range []unix.Errno{unix.ENOENT, unix.EACCES} {
		err := channelErr(errno)
		require.ErrorIs(t, err, errno)
		require.ErrorContains(t, err, "rdma_ucm")
	}
}

func TestOpenErrors(t *testing.T) {
	testDevice(t)
	_, err := open(Config{Device: "none0"})
	require.ErrorIs(t, err, os.ErrNotExist)
	_, err = open(Config{Addr: "192.0.2.1"})
	require.ErrorIs(t, err, os.ErrNotExist)
	_, err = open(Config{Addr: "nonsense"})
	require.ErrorIs(t, err, driver.ErrInvalid)
}

func TestCapsAreAsTheDeviceIs(t *testing.T) {
	d, _ := testDevice(t)
	t.Logf("%+v", d.Caps())
	c := d.Caps()
	require.Equal(t, d.ctx.Name(), c.Name)
	switch c.Name {
	case "rxe0":
		require.Equal(t, driver.TransportRoCE, c.Transport)
		require.True(t, c.MW2 && c.Atomics && c.Imm && c.SendInv && c.SRQ && c.RNRRetry && c.DeregBarrier && c.FlushCompletes)
		require.False(t, c.MWConfines || c.ODP || c.LastWQE || c.ErrPostCompletesRQ)
	case "siw0":
		require.Equal(t, driver.TransportIWARP, c.Transport)
		require.True(t, c.SRQ)
		require.False(t, c.MW2 || c.Atomics || c.Imm || c.SendInv || c.ODP || c.RNRRetry || c.DeregBarrier || c.InOrderCompletions || c.FlushCompletes)
		require.Equal(t, 1, c.MaxReadSGE)
		require.Equal(t, 6, c.MaxSGE)
	}
	require.Positive(t, c.MaxInline)
}
