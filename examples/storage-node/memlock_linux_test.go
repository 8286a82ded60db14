package main

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// An arena that may not be pinned: the error has the numbers and says what to do.
func TestMemlock(t *testing.T) {
	dir, err := os.MkdirTemp("", "storage-node-memlock-")
	require.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	exe, err := os.ReadFile(mustExecutable(t))
	require.NoError(t, err)
	// A copy, where an unprivileged user can run it.
	bin := filepath.Join(dir, "storage-node")
	require.NoError(t, os.WriteFile(bin, exe, 0o755))
	require.NoError(t, os.Chmod(dir, 0o777))

	cmd := command("serve", "--data", filepath.Join(dir, "data"), "--listen", "127.0.0.1:0", "--arena", "64MiB", "--pin")
	cmd.Path = bin
	cmd.SysProcAttr = &syscall.SysProcAttr{}
	if os.Getuid() == 0 {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: 65534, Gid: 65534}
	}
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

func mustExecutable(t *testing.T) string {
	t.Helper()
	exe, err := os.Executable()
	require.NoError(t, err)
	return exe
}
