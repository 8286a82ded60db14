package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// An arena that may not be pinned: the error has the numbers and says what to do.
func TestMemlock(t *testing.T) {
	cmd, dir := unprivileged(t)
	cmd.Args = append(cmd.Args, "serve", "--data", filepath.Join(dir, "data"), "--listen", "127.0.0.1:0", "--arena", "64MiB", "--pin")
	var old unix.Rlimit
	require.NoError(t, unix.Getrlimit(unix.RLIMIT_MEMLOCK, &old))
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_MEMLOCK, &unix.Rlimit{Cur: min(1<<20, old.Max), Max: old.Max}))
	out, err := cmd.CombinedOutput()
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_MEMLOCK, &old))
	require.Error(t, err)
	require.Equal(t, exitError, cmd.ProcessState.ExitCode(), "%s", out)
	require.Contains(t, string(out), "storage-node: error: ")
	require.Contains(t, string(out), "RLIMIT_MEMLOCK")
	require.Regexp(t, `\b(67108864|64 ?MiB|\d{8,})\b`, string(out), "the number of bytes needed")
	require.NotContains(t, string(out), "goroutine ")
}

var lockedLine = regexp.MustCompile(`VmLck:\s+(\d+) kB`)

// A node whose arena is pinned serves as any other.
func TestPinned(t *testing.T) {
	const arena = 64 << 20
	mem, err := unix.Mmap(-1, 0, arena+16<<20, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	require.NoError(t, err)
	err = unix.Mlock(mem)
	require.NoError(t, unix.Munmap(mem))
	if err != nil {
		t.Skip("80 MiB can not be locked here (raise RLIMIT_MEMLOCK, ulimit -l): ", err)
	}
	p := startNode(t, t.TempDir(), "--listen", "127.0.0.1:0", "--arena", "64MiB", "--pin")
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	require.NoError(t, err)
	m := lockedLine.FindSubmatch(status)
	require.NotNil(t, m)
	locked, err := strconv.ParseInt(string(m[1]), 10, 64)
	require.NoError(t, err)
	require.GreaterOrEqual(t, locked<<10, int64(arena))

	in, out := randomFile(t, 5<<20), filepath.Join(t.TempDir(), "out")
	ok(t, nil, to(p, "put", "big", in)...)
	ok(t, strings.NewReader("small"), to(p, "put", "small", "-")...)
	ok(t, nil, to(p, "get", "big", out)...)
	sameFiles(t, in, out)
	require.Equal(t, "small", ok(t, nil, to(p, "get", "small", "-")...))
	require.Contains(t, ok(t, nil, to(p, "stat", "big")...), fmt.Sprint(5<<20))
	requireIdle(t, p, p.device())
}
