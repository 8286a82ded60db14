package store

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.etcd.io/bbolt"
)

// runRole is what the test binary does as a subprocess.
func runRole(role, dir string) int {
	var err error
	switch role {
	case "writer":
		err = crashWriter(dir, os.Stdout)
	case "full-disk":
		err = fullDisk(dir)
	case "open":
		_, err = Open(Config{Dir: dir})
	default:
		err = fmt.Errorf("unknown role %q", role)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// command starts this test binary in a role.
func command(t *testing.T, role, dir string) *exec.Cmd {
	t.Helper()
	exe, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), "STORE_TEST_ROLE="+role, "STORE_TEST_DIR="+dir)
	cmd.Stderr = os.Stderr
	return cmd
}

const crashKeys = 4

// versioned is the content of version v of a key: v, then bytes that follow from it; 1 byte to about 400 KB.
func versioned(v uint64) []byte {
	r := rand.New(rand.NewPCG(v, 99))
	p := make([]byte, 8+r.IntN(400_000))
	for i := 8; i < len(p); i++ {
		p[i] = byte(v) + byte(i>>8)
	}
	binary.LittleEndian.PutUint64(p, v)
	return p
}

// crashWriter stores and removes versions of a few keys for ever. It says "begin KEY VERSION" before and "done KEY
// VERSION" after each; version 0 is a removal.
func crashWriter(dir string, out io.Writer) error {
	s, err := Open(Config{Dir: dir})
	if err != nil {
		return err
	}
	version := uint64(time.Now().UnixNano())
	for i := 0; ; i++ {
		key := fmt.Sprintf("k%d", rand.IntN(crashKeys))
		if rand.IntN(8) == 0 {
			fmt.Fprintf(out, "begin %s 0\n", key)
			if err := s.Remove(key); err != nil && !errors.Is(err, ErrNotFound) {
				return err
			}
			fmt.Fprintf(out, "done %s 0\n", key)
			continue
		}
		version++
		fmt.Fprintf(out, "begin %s %d\n", key, version)
		p := versioned(version)
		w, err := s.Create(key, int64(len(p)))
		if err != nil {
			return err
		}
		for len(p) > 0 {
			n := min(len(p), 2*ChunkSize)
			if err := w.Append([][]byte{p[:n]}, nil); err != nil {
				return err
			}
			p = p[n:]
		}
		if _, err := w.Commit(); err != nil {
			return err
		}
		fmt.Fprintf(out, "done %s %d\n", key, version)
	}
}

// A process that stores objects is killed at random moments. Whatever it acknowledged is there, whole; what it had begun
// is there whole or not at all; no file is left that no object owns.
func TestKill9(t *testing.T) {
	rounds := 25
	if testing.Short() {
		rounds = 6
	}
	if v := os.Getenv("ARGONAUT_CRASH_ROUNDS"); v != "" {
		n, err := strconv.Atoi(v)
		require.NoError(t, err)
		rounds = n
	}
	dir := t.TempDir()
	acked := map[string]uint64{}
	swept, inFlight := 0, 0
	for round := range rounds {
		cmd := command(t, "writer", dir)
		out, err := cmd.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, cmd.Start())
		lines := bufio.NewScanner(out)
		require.True(t, lines.Scan(), "the writer started")
		kill := time.AfterFunc(time.Duration(rand.IntN(60_000))*time.Microsecond, func() { cmd.Process.Kill() })
		begun := map[string]uint64{}
		for ok := true; ok; ok = lines.Scan() {
			f := strings.Fields(lines.Text())
			if len(f) != 3 {
				continue // the line that the kill cut
			}
			v, err := strconv.ParseUint(f[2], 10, 64)
			require.NoError(t, err)
			if f[0] == "begin" {
				begun = map[string]uint64{f[1]: v}
			} else {
				acked[f[1]], begun = v, map[string]uint64{}
			}
		}
		require.Error(t, cmd.Wait(), "killed, not ended")
		kill.Stop()
		inFlight += len(begun)

		s, err := Open(Config{Dir: dir})
		require.NoError(t, err, "round %d", round)
		swept += s.Swept()
		objects := 0
		for i := range crashKeys {
			key := fmt.Sprintf("k%d", i)
			version := uint64(0)
			o, err := s.Open(key)
			if err == nil {
				p := make([]byte, o.Info().Size)
				_, err := o.ReadAt([][]byte{p}, 0, nil)
				require.NoError(t, err, "round %d %s", round, key)
				require.NoError(t, o.Close())
				version = binary.LittleEndian.Uint64(p)
				require.True(t, bytes.Equal(versioned(version), p), "round %d %s version %d is whole", round, key, version)
				objects++
			} else {
				require.ErrorIs(t, err, ErrNotFound, "round %d %s", round, key)
			}
			if v, ok := begun[key]; !ok || v != version {
				require.Equal(t, acked[key], version, "round %d %s", round, key)
			}
			acked[key] = version
		}
		require.Len(t, blobs(t, dir), objects, "round %d", round)
		totals, err := s.Totals()
		require.NoError(t, err)
		require.EqualValues(t, objects, totals.Objects)
		require.NoError(t, s.Close())
	}
	t.Logf("%d rounds, %d killed inside an operation, %d unfinished blobs swept", rounds, inFlight, swept)
	require.Positive(t, inFlight)
	if runtime.GOOS == "linux" && rounds >= 25 {
		require.Positive(t, swept, "no kill fell into a PUT: the test shows nothing")
	}
}

// What a crash of the machine leaves of a directory is what it had when it was last synced. Of a new store, whose parents are
// new, too, that is everything that is needed to open it and to store an object.
func TestNewStoreIsDurable(t *testing.T) {
	base := t.TempDir()
	dir := filepath.Join(base, "srv", "node", "data")
	durable := map[string]bool{base: true}
	s, err := Open(Config{Dir: dir, sync: func(d string) error {
		entries, err := os.ReadDir(d)
		for _, e := range entries {
			durable[filepath.Join(d, e.Name())] = true
		}
		return err
	}})
	require.NoError(t, err)
	defer s.Close()
	put(t, s, "k", []byte("x"))
	require.NoError(t, filepath.WalkDir(base, func(path string, _ fs.DirEntry, err error) error {
		require.NoError(t, err)
		require.True(t, durable[path], path)
		return nil
	}))
}

// A start that failed before it had synced a directory, or was killed, leaves none of this to the next ones undone.
func TestStartsThatFailedAreMadeUpFor(t *testing.T) {
	base := t.TempDir()
	dir := filepath.Join(base, "srv", "node", "data")
	durable, failed := map[string]bool{base: true}, map[string]bool{filepath.Dir(base): true}
	open := func(bad func(d string) error) error {
		s, err := Open(Config{Dir: dir, sync: func(d string) error {
			if err := bad(d); err != nil {
				return err
			}
			entries, err := os.ReadDir(d)
			for _, e := range entries {
				durable[filepath.Join(d, e.Name())] = true
			}
			return err
		}})
		if err != nil {
			return err
		}
		return s.Close()
	}
	first := func(d string) error { // of each directory
		if failed[d] {
			return nil
		}
		failed[d] = true
		return syscall.EIO
	}
	starts := 1
	for ; ; starts++ {
		err := open(first)
		if err == nil {
			break
		}
		require.ErrorIs(t, err, syscall.EIO)
	}
	require.Greater(t, starts, 3)
	require.NoError(t, filepath.WalkDir(base, func(path string, _ fs.DirEntry, err error) error {
		require.NoError(t, err)
		require.True(t, durable[path], path)
		return nil
	}))

	require.NoError(t, open(func(d string) error {
		if d == filepath.Dir(dir) {
			return syscall.EACCES
		}
		return nil
	}), "made for us, in a directory that we may not read")
}

// A commit of the index that fails when its last page has been written may or may not be on the disk. Both blobs stay, what is
// read meanwhile is one or the other, and what the disk has decides at the next Open.
func TestIndexInDoubt(t *testing.T) {
	for name, change := range map[string]func(*Store) error{
		"put": func(s *Store) error {
			w, err := s.Create("k", 3)
			require.NoError(t, err)
			require.NoError(t, w.Append([][]byte{[]byte("new")}, nil))
			_, err = w.Commit()
			require.NoError(t, w.Abort())
			return err
		},
		"remove": func(s *Store) error { return s.Remove("k") },
	} {
		for _, written := range []bool{true, false} { // whether the disk has it
			t.Run(fmt.Sprintf("%s, written %v", name, written), func(t *testing.T) {
				dir := t.TempDir()
				s := openTest(t, dir)
				put(t, s, "k", []byte("old"))
				index := filepath.Join(dir, "index.db")
				before, err := os.ReadFile(index)
				require.NoError(t, err)
				s.update = func(f func(*bbolt.Tx) error) error { return errors.Join(s.db.Update(f), syscall.EIO) }

				err = change(s)
				require.True(t, isKind(err, ErrIndex), "%v", err)
				require.ErrorIs(t, err, syscall.EIO)
				check := func(changed bool) {
					t.Helper()
					switch {
					case !changed:
						require.Equal(t, "old", string(get(t, s, "k")))
					case name == "put":
						require.Equal(t, "new", string(get(t, s, "k")))
					default:
						_, err := s.Open("k")
						require.ErrorIs(t, err, ErrNotFound)
					}
				}
				check(true)
				s.update = s.db.Update
				_, err = s.Create("other", 0)
				require.True(t, isKind(err, ErrIndex), "%v", err)
				require.True(t, isKind(s.Remove("k"), ErrIndex))
				require.NoError(t, s.Close())

				if !written {
					require.NoError(t, os.WriteFile(index, before, 0o600))
				}
				s = openTest(t, dir)
				check(written)
				objects, err := s.Totals()
				require.NoError(t, err)
				require.Len(t, blobs(t, dir), int(objects.Objects))
				put(t, s, "k", []byte("again"))
			})
		}
	}
}

// A commit that fails before that has changed nothing, and the next may succeed.
func TestIndexNotWritten(t *testing.T) {
	dir := t.TempDir()
	s := openTest(t, dir)
	put(t, s, "k", []byte("old"))
	s.update = func(f func(*bbolt.Tx) error) error {
		return s.db.Update(func(tx *bbolt.Tx) error { return errors.Join(f(tx), syscall.ENOSPC) })
	}
	w, err := s.Create("k", 0)
	require.NoError(t, err)
	_, err = w.Commit()
	require.True(t, isKind(err, ErrNoSpace), "%v", err)
	require.True(t, isKind(s.Remove("k"), ErrNoSpace))
	require.Equal(t, "old", string(get(t, s, "k")))
	require.Len(t, blobs(t, dir), 1)
	s.update = s.db.Update
	put(t, s, "k", []byte("new"))
	require.Equal(t, "new", string(get(t, s, "k")))
}

// fullDisk stores objects until the disk is full and checks what must hold then.
func fullDisk(dir string) error {
	s, err := Open(Config{Dir: dir, Reserve: 1 << 20})
	if err != nil {
		return fmt.Errorf("open: %w", err)
	}
	defer s.Close()
	store := func(key string, size int64, n int) error {
		w, err := s.Create(key, size)
		if err != nil {
			return err
		}
		if err := w.Append([][]byte{pattern(uint64(n), n)}, nil); err != nil {
			return errors.Join(err, w.Abort())
		}
		_, err = w.Commit()
		return err
	}
	kept := 0
	for i := 0; ; i++ {
		size := int64(-1) // alternately announced and not, so that both ways of running out are taken
		if i%2 == 0 {
			size = 700_000
		}
		err = store(fmt.Sprintf("k%d", i), size, 700_000)
		if err != nil {
			break
		}
		kept++
	}
	if !isKind(err, ErrNoSpace) || kept == 0 || kept > 1000 {
		return fmt.Errorf("after %d objects: %w", kept, err)
	}
	if err := store("huge", -1, 60<<20); !isKind(err, ErrNoSpace) {
		return fmt.Errorf("60 MiB: %w", err)
	}
	for i := range kept {
		o, err := s.Open(fmt.Sprintf("k%d", i))
		if err != nil {
			return err
		}
		p := make([]byte, o.Info().Size)
		if _, err := o.ReadAt([][]byte{p}, 0, nil); err != nil {
			return err
		}
		if !bytes.Equal(p, pattern(700_000, 700_000)) {
			return fmt.Errorf("k%d has changed", i)
		}
		o.Close()
	}
	if err := s.Remove("k0"); err != nil {
		return fmt.Errorf("removing from a full disk: %w", err)
	}
	if err := store("again", 600_000, 600_000); err != nil {
		return fmt.Errorf("after making room: %w", err)
	}
	totals, err := s.Totals()
	if err != nil || totals.Objects != int64(kept) {
		return fmt.Errorf("totals %+v after %d objects: %w", totals, kept, err)
	}
	return nil
}

func TestReserve(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("free space is known on Linux only")
	}
	dir := t.TempDir()
	s, err := Open(Config{Dir: dir, Reserve: 1 << 60})
	require.NoError(t, err)
	defer s.Close()
	_, err = s.Create("k", 1)
	require.True(t, isKind(err, ErrNoSpace), "%v", err)
	_, err = s.Create("k", -1)
	require.True(t, isKind(err, ErrNoSpace), "%v", err)
	require.Empty(t, blobs(t, dir))
}
