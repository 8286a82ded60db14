package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/argonaut-rdma/argonaut/test/env"
)

// Every command, over every transport.
func TestCommands(t *testing.T) {
	for _, device := range devices {
		t.Run(device, func(t *testing.T) {
			t.Parallel()
			p := startNode(t, t.TempDir(), listen(device)...)
			out := filepath.Join(t.TempDir(), "out")
			for _, n := range []int64{0, 1, 32 << 10, 32<<10 + 1, 64 << 10, 1 << 20, 5<<20 + 12345} {
				in := randomFile(t, n)
				key := fmt.Sprintf("dir/%d", n)
				ok(t, nil, to(p, "put", key, in)...)
				ok(t, nil, to(p, "get", key, out)...)
				sameFiles(t, in, out)

				// Through pipes the size is not known beforehand.
				data, err := os.ReadFile(in)
				require.NoError(t, err)
				ok(t, bytes.NewReader(data), to(p, "put", key+"/piped", "-")...)
				require.True(t, string(data) == ok(t, nil, to(p, "get", key+"/piped", "-")...), key)
			}

			in := randomFile(t, 5<<20+12345)
			data, err := os.ReadFile(in)
			require.NoError(t, err)
			key := "dir/5255225"
			for _, r := range []struct {
				flag     string
				from, to int
			}{
				{"0-1023", 0, 1024}, {"0-0", 0, 1}, {"65535-65536", 65535, 65537}, {"100-3000000", 100, 3000001},
				{"1048576-2097151", 1 << 20, 2 << 20}, {"5255000-", 5255000, 5255225}, {"5255224-9999999", 5255224, 5255225},
				{"70000-5000001", 70000, 5000002},
			} {
				got := ok(t, nil, to(p, "get", "--range", r.flag, key, "-")...)
				require.True(t, string(data[r.from:r.to]) == got, "range %s: %d bytes", r.flag, len(got))
			}
			require.Contains(t, fails(t, nil, to(p, "get", "--range", "5255225-", key, "-")...), "range outside the object")

			list := ok(t, nil, to(p, "ls")...)
			require.Equal(t, 14, strings.Count(list, "\n"), list)
			require.Equal(t, 2, strings.Count(ok(t, nil, to(p, "ls", "dir/32769")...), "\n"))
			require.Regexp(t, `(?m)^key +dir/1\nsize +1\nmodified +20\d\d-.*\nversion +[0-9a-f]{32}\n$`, ok(t, nil, to(p, "stat", "dir/1")...))

			ok(t, strings.NewReader("replaced"), to(p, "put", "dir/1", "-")...)
			require.Equal(t, "replaced", ok(t, nil, to(p, "get", "dir/1", "-")...))
			ok(t, nil, to(p, "rm", "dir/1")...)
			require.Contains(t, fails(t, nil, to(p, "get", "dir/1", out)...), `get "dir/1": no such object`)
			require.Contains(t, fails(t, nil, to(p, "rm", "dir/1")...), "no such object")
			require.Contains(t, fails(t, nil, to(p, "stat", "dir/1")...), "no such object")

			stat := p.stat()
			require.Equal(t, "13", stat["objects"])
			require.Equal(t, device, stat["device"])
			requireIdle(t, p, device)
		})
	}
}

// requireIdle asks the node for its state until nothing but the asking is left of its clients.
func requireIdle(t *testing.T, p *process, device string) {
	t.Helper()
	pairs := "0"
	if device != "tcp" {
		pairs = "1"
	}
	var stat map[string]string
	require.Eventually(t, func() bool {
		stat = p.stat()
		return strings.Contains(stat["arena"], "held 0,") && stat["queue pairs"] == pairs && stat["connections"] == "1" && stat["transfers"] == "0"
	}, patience, patience/100, "%v", &stat)
}

var stepLine = regexp.MustCompile(`^ +[0-9.]+(?:ns|µs|ms|s) +(\w+): `)

// The demonstration succeeds, and shows the steps of the shutdown in their order.
func TestDemo(t *testing.T) {
	for _, device := range devices {
		t.Run(device, func(t *testing.T) {
			t.Setenv("TMPDIR", t.TempDir())
			r := exec1(nil, "demo", "--device", device, "--listen", env.ListenAddr(), "--size", "8MiB")
			require.Zero(t, r.status, r.stderr+r.stdout)
			var steps []string
			for line := range strings.Lines(r.stdout) {
				if m := stepLine.FindStringSubmatch(line); m != nil {
					steps = append(steps, m[1])
				}
			}
			want := []string{"node", "messenger", "node", "arena", "arena", "device", "store"}
			if device == "tcp" {
				want = []string{"node", "messenger", "node", "arena", "arena", "store"}
			}
			require.Equal(t, want, steps, r.stdout)
			require.Regexp(t, `account   posted 0, held 0, free (\d+), total (\d+) bytes`, r.stdout)
			require.Contains(t, r.stdout, "all objects came back as they were stored")
			left, err := filepath.Glob(filepath.Join(os.TempDir(), "storage-node-demo-*"))
			require.NoError(t, err)
			require.Empty(t, left)
		})
	}
}

// The demonstration takes a largest object of any size.
func TestDemoOfSize(t *testing.T) {
	for size, part := range map[string]string{
		"0":      "0 bytes of demo/0, from byte 0 on: same",
		"1":      "1 bytes of demo/1, from byte 0 on: same",
		"123456": "61728 bytes of demo/123456, from byte 61728 on: same",
		"250000": "126544 bytes of demo/250000, from byte 123456 on: same",
	} {
		require.Contains(t, ok(t, nil, "demo", "--listen", "127.0.0.1:0", "--size", size), part)
	}
}

func TestUsage(t *testing.T) {
	for _, args := range [][]string{
		{}, {"fly"}, {"put"}, {"put", "--server", "x"}, {"get", "--server", "x", "--range", "5-1", "k", "-"},
		{"get", "--server", "x", "--range", "a-b", "k", "-"}, {"serve", "--listen", "x"},
		{"serve", "--listen", "x", "--data", "y", "--arena", "lots"},
	} {
		r := exec1(nil, args...)
		require.Equal(t, exitUsage, r.status, "%q", args)
		require.Contains(t, r.stderr, "storage-node: error: ", "%q", args)
	}
	r := exec1(nil, "--help")
	require.Zero(t, r.status)
	require.Contains(t, r.stdout, "demo")
}

func TestByteSize(t *testing.T) {
	for text, want := range map[string]int64{"0": 0, "4096": 4096, "64KiB": 65536, "1.5MiB": 3 << 19, "2GiB": 2 << 30, "10MB": 1e7, "7B": 7} {
		var s byteSize
		require.NoError(t, s.UnmarshalText([]byte(text)), text)
		require.EqualValues(t, want, s, text)
	}
	for _, text := range []string{"", "MiB", "-1", "1e30TiB", "4 apples", "NaN", "0x10q", "Inf"} {
		var s byteSize
		require.Error(t, s.UnmarshalText([]byte(text)), text)
	}
	require.Equal(t, "256MiB", byteSize(256<<20).String())
	require.Equal(t, "1.5KiB", byteSize(1536).String())
	require.Equal(t, "7B", byteSize(7).String())
}

func TestByteRange(t *testing.T) {
	for text, want := range map[string]byteRange{
		"0-1023": {0, 1024, true}, "5-5": {5, 1, true}, "7-": {7, -1, true}, "0-9223372036854775806": {0, 9223372036854775807, true},
	} {
		var r byteRange
		require.NoError(t, r.UnmarshalText([]byte(text)), text)
		require.Equal(t, want, r, text)
	}
	for _, text := range []string{"", "-", "5", "-5", "5-4", "a-b", "0-9223372036854775807", "1-99999999999999999999", "1-2-3"} {
		var r byteRange
		require.Error(t, r.UnmarshalText([]byte(text)), text)
	}
}

// doctor says what there is, and whether it will do.
func TestDoctor(t *testing.T) {
	t.Parallel()
	out := ok(t, nil, "doctor")
	for _, part := range []string{"provider ", "\ndevices\n", "\naddresses\n", "127.0.0.1", "\nchosen ", "usable: yes"} {
		require.Contains(t, out, part)
	}
	if runtime.GOOS == "linux" {
		require.Regexp(t, `(?m)^memlock +(no limit|\d+ bytes), for an arena of 268435456 bytes$`, out)
		require.Regexp(t, `(?m)^huge pages +of 2 MiB: \d+, of which \d+ are free; transparent: `, out)
	}
	r := exec1(nil, "doctor", "--device", "no-such-device", "--addr", "127.0.0.1")
	require.Equal(t, exitError, r.status)
	require.Contains(t, r.stdout, "usable: NO")
	require.Equal(t, strings.Count(r.stdout, "PROBLEM"), strings.Count(r.stdout, "remedy: "), r.stdout)
	require.Contains(t, r.stderr, "not usable")
	require.NotRegexp(t, `remedy: (ibverbs: |.*: (no such file|permission denied))`, r.stdout, "an error is no remedy")
	if runtime.GOOS == "linux" {
		r = exec1(nil, "doctor", "--device", "iwarp", "--arena", "1000TiB")
		require.Equal(t, exitError, r.status)
		require.Contains(t, r.stdout, "is larger than all memory there is")
		require.Contains(t, fails(t, nil, "serve", "--data", t.TempDir(), "--listen", "127.0.0.1:0", "--arena", "1000TiB"), "make --arena smaller")
	}
	require.Contains(t, fails(t, nil, "serve", "--data", t.TempDir(), "--listen", "127.0.0.1:0", "--device", "no-such-device"), "no-such-device")
	r = exec1(nil, "doctor", "--addr", "192.0.2.1")
	require.Equal(t, exitError, r.status, "no address of this machine")
	require.Contains(t, r.stdout, "192.0.2.1 is no address of this machine")
	r = exec1(nil, "doctor", "--addr", "no-such-host.invalid:1")
	require.Equal(t, exitError, r.status, "no address at all")
	require.Contains(t, r.stdout, "can not be resolved")
}

// With auto a node takes the adapter in software where no device serves the address, and says why.
func TestDeviceAuto(t *testing.T) {
	t.Parallel()
	p := startNode(t, t.TempDir(), "--device", "auto", "--listen", "127.0.0.1:0", "--arena", "64MiB")
	require.True(t, strings.HasPrefix(p.addr, "iwarp://"), p.addr)
	r := exec1(strings.NewReader("x"), "put", "--server", p.addr, "--device", "auto", "k", "-")
	require.Zero(t, r.status, r.stderr)
	require.Regexp(t, `level=INFO msg=device device=iwarp device_chosen="the address says so"`, r.stderr, "the client says so, too")
	require.NotContains(t, r.stderr, "msg=device device=iwarp why")
	require.Equal(t, "x", ok(t, nil, to(p, "get", "k", "-")...))
	require.Regexp(t, `device=iwarp device_chosen="the adapter in software, because: `, p.log())
}
