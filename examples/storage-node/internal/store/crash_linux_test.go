package store

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// A disk that is really full: a small tmpfs, mounted in a user and mount namespace of the subprocess's own.
func TestFullDisk(t *testing.T) {
	dir := t.TempDir()
	mount, err := exec.LookPath("mount")
	if err != nil {
		t.Skip("no mount command on this machine")
	}
	cmd := command(t, "full-disk", dir)
	cmd.Path, cmd.Args = "/bin/sh", []string{"sh", "-c",
		`"$1" -t tmpfs -o size=8m none "$2" || exit 77; exec "$3"`, "sh", mount, dir, cmd.Path}
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}},
	}
	err = cmd.Run()
	if cmd.ProcessState == nil || cmd.ProcessState.ExitCode() == 77 {
		t.Skipf("this machine does not let a test mount a tmpfs in a namespace of its own: %v", err)
	}
	require.NoError(t, err)
}

// The same kind of error from the process's file size limit, which needs no privilege anywhere.
func TestFileSizeLimit(t *testing.T) {
	dir := t.TempDir()
	s := openTest(t, dir)
	put(t, s, "k", []byte("kept"))
	w, err := s.Create("k", -1)
	require.NoError(t, err)

	var old unix.Rlimit
	require.NoError(t, unix.Getrlimit(unix.RLIMIT_FSIZE, &old))
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: 100_000, Max: old.Max}))
	err = w.Append([][]byte{bytes.Repeat([]byte("x"), 4*ChunkSize)}, nil)
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_FSIZE, &old))

	require.True(t, isKind(err, ErrNoSpace), "%v", err)
	require.NoError(t, w.Abort())
	require.Equal(t, "kept", string(get(t, s, "k")))
	files, err := filepath.Glob(filepath.Join(dir, "blobs", "*", "*"))
	require.NoError(t, err)
	require.Len(t, files, 1)
}

// The index is written before anything that it does not name is removed.
func TestNothingIsRemovedBeforeTheIndexIsWritten(t *testing.T) {
	dir := t.TempDir()
	s := openTest(t, dir)
	put(t, s, "k", []byte("kept"))
	w, err := s.Create("k", -1)
	require.NoError(t, err)
	require.NoError(t, w.f.Close()) // neither committed nor aborted
	require.NoError(t, s.Close())

	var said bytes.Buffer
	cmd := command(t, "open", dir)
	cmd.Path, cmd.Args, cmd.Stderr = "/bin/sh", []string{"sh", "-c", `ulimit -f 0 && exec "$1"`, "sh", cmd.Path}, &said
	require.Error(t, cmd.Run())
	require.Contains(t, said.String(), ErrNoSpace.Error())
	require.Len(t, blobs(t, dir), 2)

	s = openTest(t, dir)
	require.Equal(t, 1, s.Swept())
	require.Equal(t, "kept", string(get(t, s, "k")))
}
