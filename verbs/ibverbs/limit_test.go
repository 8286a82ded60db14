//go:build ibverbs && linux && cgo

package ibverbs

import (
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/argonaut-rdma/argonaut/verbs/driver"
)

// TestLimitOfCgroup makes objects of every kind until the device has no more, as
// the rdma controller of the process's cgroup says: a device's own limits are too
// large to reach. Each time the error is ErrLimit, and what is given back can be
// had again.
func TestLimitOfCgroup(t *testing.T) {
	d, _ := testDevice(t)
	p, err := d.AllocPD()
	require.NoError(t, err)
	defer func() { require.NoError(t, p.Dealloc()) }()
	cq, err := d.CreateCQ(16, nil, 0)
	require.NoError(t, err)
	defer func() { require.NoError(t, cq.Destroy()) }()

	const most = 9
	cgroup(t, d.caps.Name+" hca_object="+strconv.Itoa(most))
	mem := make([]byte, 4096)
	for _, k := range []struct {
		name string
		has  bool
		make func() (func() error, error)
	}{
		{"PD", true, func() (func() error, error) {
			x, err := d.AllocPD()
			return func() error { return x.Dealloc() }, err
		}},
		{"CQ", true, func() (func() error, error) {
			x, err := d.CreateCQ(1, nil, 0)
			return func() error { return x.Destroy() }, err
		}},
		{"MR", true, func() (func() error, error) {
			x, err := p.RegMR(mem, driver.AccessLocalWrite)
			return func() error { return x.Deregister() }, err
		}},
		{"MW", d.caps.MW2, func() (func() error, error) {
			x, err := p.AllocMW()
			return func() error { return x.Dealloc() }, err
		}},
		{"SRQ", d.caps.SRQ, func() (func() error, error) {
			x, err := p.CreateSRQ(1, 1)
			return func() error { return x.Destroy() }, err
		}},
		{"QP", true, func() (func() error, error) {
			x, err := p.CreateQP(driver.QPAttr{SendCQ: cq, RecvCQ: cq, MaxSendWR: 1, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1})
			return func() error { return x.Destroy() }, err
		}},
	} {
		if !k.has {
			continue
		}
		var made []func() error
		for {
			f, err := k.make()
			if err != nil {
				require.ErrorIs(t, err, driver.ErrLimit, "%s: %v", k.name, err)
				break
			}
			made = append(made, f)
			require.LessOrEqual(t, len(made), most, k.name)
		}
		require.Len(t, made, most, k.name)
		require.NoError(t, made[0]())
		f, err := k.make()
		require.NoError(t, err, "%s: after one was given back", k.name)
		made[0] = f
		for _, f := range made {
			require.NoError(t, f())
		}
	}
}

// cgroup moves the process into a cgroup with this rdma.max until the test ends.
func cgroup(t *testing.T, limit string) {
	root := t.TempDir()
	require.NoError(t, unix.Mount("cgroup2", root, "cgroup2", 0, ""))
	t.Cleanup(func() { require.NoError(t, unix.Unmount(root, 0)) })
	write := func(s string, path ...string) {
		t.Helper()
		require.NoError(t, os.WriteFile(filepath.Join(append([]string{root}, path...)...), []byte(s), 0))
	}
	write("+rdma", "cgroup.subtree_control")
	sub := filepath.Join(root, "argonaut-test")
	require.NoError(t, os.Mkdir(sub, 0o755))
	t.Cleanup(func() { require.NoError(t, os.Remove(sub)) })
	write(limit, "argonaut-test", "rdma.max")
	pid := strconv.Itoa(os.Getpid())
	write(pid, "argonaut-test", "cgroup.procs")
	t.Cleanup(func() { write(pid, "cgroup.procs") })
}
