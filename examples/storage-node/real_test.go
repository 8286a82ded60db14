package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/argonaut-rdma/argonaut/test/env"
)

// needDevice skips where the environment names no RDMA device.
func needDevice(t *testing.T) {
	t.Helper()
	env.Need(t, env.Device() != "", "no RDMA device: ARGONAUT_RDMA_DEVICE is not set")
}

// doctor names the device, its address and GID, chooses it for its address and for no other, and tries the arena.
func TestDoctorOfADevice(t *testing.T) {
	needDevice(t)
	for _, args := range [][]string{{}, {"--addr", env.Addr()}, {"--addr", env.Addr(), "--device", env.Device()}} {
		out := ok(t, nil, append([]string{"doctor", "--arena", "32MiB"}, args...)...)
		require.Contains(t, out, env.Device())
		require.Contains(t, out, "ACTIVE")
		require.Contains(t, out, env.Addr())
		require.Contains(t, out, "usable: yes")
		if strings.HasPrefix(env.Device(), "rxe") {
			require.Contains(t, out, "RoCE v2")
			require.Regexp(t, `(?m)^ +GID \d+ +::ffff:`+regexp.QuoteMeta(env.Addr())+` +RoCE v2`, out)
		} else {
			require.Regexp(t, `(?m)^ +GID 0 +`, out)
		}
		require.Regexp(t, `(?m)^memlock +(no limit|\d+ bytes), for an arena of 33554432 bytes$`, out)
		require.Regexp(t, `(?m)^huge pages +of 2 MiB: \d+, of which \d+ are free; transparent: `, out)
		require.Regexp(t, `(?m)^RDMA netns +(shared|exclusive): `, out)
		require.Regexp(t, `(?m)^files +usable in /dev/infiniband: uverbs\d.* rdma_cm$`, out)
	}
	r := exec1(nil, "doctor", "--arena", "32MiB", "--device", env.Device(), "--addr", "127.0.0.1")
	require.Equal(t, exitError, r.status, r.stdout)
	require.Contains(t, r.stdout, "remedy: ")
}

// With auto node and client take the device that serves the address, and say why.
func TestDeviceAutoOnADevice(t *testing.T) {
	needDevice(t)
	p := startNode(t, t.TempDir(), "--device", "auto", "--listen", env.ListenAddr(), "--arena", "64MiB")
	require.True(t, strings.HasPrefix(p.addr, "rdma://"), p.addr)
	p.lineAfter(0, regexp.MustCompile(`msg=serving .* device=`+regexp.QuoteMeta(env.Device())+` device_chosen=`))
	_, hostport, _ := strings.Cut(p.addr, "://")
	ok(t, strings.NewReader("x"), "put", "--device", "auto", "--server", hostport, "k", "-")
	require.Equal(t, "x", ok(t, nil, "get", "--device", "auto", "--server", hostport, "k", "-"))
	requireIdle(t, p, env.Device())
}

// The adapter in software and an iWARP device of the kernel, as node and client in both directions: small objects in
// messages, large ones by grants of either side, ranges.
func TestSoftwareAndKernelIWARP(t *testing.T) {
	needDevice(t)
	env.Need(t, strings.HasPrefix(env.Device(), "siw"), "it does not speak iWARP")
	for _, x := range []struct{ node, client string }{{env.Device(), "iwarp"}, {"iwarp", env.Device()}} {
		t.Run(x.client+" to "+x.node, func(t *testing.T) {
			p := startNode(t, t.TempDir(), "--device", x.node, "--listen", "rdma://"+env.ListenAddr(), "--arena", "64MiB")
			with := func(args ...string) []string {
				return append([]string{args[0], "--device", x.client, "--server", p.addr}, args[1:]...)
			}
			for _, size := range []int64{0, 1, 32 << 10, 32<<10 + 1, 1 << 20, 5<<20 + 4321} {
				in := randomFile(t, size)
				want, err := os.ReadFile(in)
				require.NoError(t, err)
				ok(t, nil, with("put", "k", in)...)
				out := filepath.Join(t.TempDir(), "out")
				ok(t, nil, with("get", "k", out)...)
				got, err := os.ReadFile(out)
				require.NoError(t, err)
				require.True(t, string(want) == string(got), "%d bytes differ", size)
			}
			require.Len(t, ok(t, nil, with("get", "--range", "1000000-3000000", "k", "-")...), 2_000_001)
			requireIdle(t, p, x.node)
		})
	}
}
