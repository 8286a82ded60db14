package store

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"go.etcd.io/bbolt"
)

func isKind(err, kind error) bool {
	var e *Error
	return errors.As(err, &e) && errors.Is(e.Kind, kind)
}

// Every way in which a blob can be wrong is noticed, is a typed error, and hurts no other object.
func TestDamage(t *testing.T) {
	const n = ChunkSize + 5000
	flip := func(t *testing.T, path string, at int64) {
		f, err := os.OpenFile(path, os.O_RDWR, 0)
		require.NoError(t, err)
		defer f.Close()
		b := make([]byte, 1)
		_, err = f.ReadAt(b, at)
		require.NoError(t, err)
		b[0] ^= 0x10
		_, err = f.WriteAt(b, at)
		require.NoError(t, err)
	}
	cases := map[string]struct {
		hurt func(t *testing.T, path, other string)
		kind error
	}{
		"first byte":      {func(t *testing.T, p, _ string) { flip(t, p, 0) }, ErrDamaged},
		"last byte":       {func(t *testing.T, p, _ string) { flip(t, p, n-1) }, ErrDamaged},
		"table magic":     {func(t *testing.T, p, _ string) { flip(t, p, tableOffset(0, n)) }, ErrDamaged},
		"table sum":       {func(t *testing.T, p, _ string) { flip(t, p, tableOffset(0, n)+tableSumAt) }, ErrDamaged},
		"table entry":     {func(t *testing.T, p, _ string) { flip(t, p, tableOffset(0, n)+tableHeader+4) }, ErrDamaged},
		"table tail":      {func(t *testing.T, p, _ string) { flip(t, p, tableOffset(0, n)+pageSize-1) }, ErrDamaged},
		"cut in the data": {func(t *testing.T, p, _ string) { require.NoError(t, os.Truncate(p, 1000)) }, ErrDamaged},
		"no table":        {func(t *testing.T, p, _ string) { require.NoError(t, os.Truncate(p, tableOffset(0, n))) }, ErrDamaged},
		"gone":            {func(t *testing.T, p, _ string) { require.NoError(t, os.Remove(p)) }, ErrDamaged},
		"another blob":    {func(t *testing.T, p, o string) { require.NoError(t, os.Remove(p)); require.NoError(t, os.Link(o, p)) }, ErrDamaged},
		"a directory": {func(t *testing.T, p, _ string) {
			require.NoError(t, os.Remove(p))
			require.NoError(t, os.Mkdir(p, 0o700))
		}, ErrUnreadable},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			s := openTest(t, t.TempDir())
			info := put(t, s, "hurt", pattern(1, n))
			other := put(t, s, "sound", pattern(2, n))
			path := func(i Info) string { return filepath.Join(s.dir, "blobs", i.Version[:1], i.Version) }
			c.hurt(t, path(info), path(other))

			o, err := s.Open("hurt")
			if err == nil {
				_, err = o.ReadAt([][]byte{make([]byte, n)}, 0, nil)
				require.NoError(t, o.Close())
			}
			require.ErrorIs(t, err, c.kind)
			require.True(t, isKind(err, c.kind))
			require.Equal(t, pattern(2, n), get(t, s, "sound"))

			put(t, s, "hurt", []byte("stored again"))
			require.Equal(t, "stored again", string(get(t, s, "hurt")))
		})
	}
}

func TestDamagedRecord(t *testing.T) {
	dir := t.TempDir()
	s := openTest(t, dir)
	put(t, s, "k", []byte("one"))
	spoil := func() {
		require.NoError(t, s.db.Update(func(tx *bbolt.Tx) error {
			v := append([]byte(nil), tx.Bucket(bucketObjects).Get([]byte("k"))...)
			v[9] ^= 1
			return tx.Bucket(bucketObjects).Put([]byte("k"), v)
		}))
	}
	spoil()
	_, err := s.Open("k")
	require.ErrorIs(t, err, ErrDamaged)
	infos, _, err := s.List("", "", 10)
	require.NoError(t, err)
	require.EqualValues(t, -1, infos[0].Size)

	put(t, s, "k", []byte("two"))
	require.Equal(t, "two", string(get(t, s, "k")))
	require.NoError(t, s.Close())
	s = openTest(t, dir)
	require.Equal(t, 1, s.Swept(), "the blob that the damaged record named")
	require.Equal(t, "two", string(get(t, s, "k")))
	spoil()
	require.NoError(t, s.Remove("k"))
	_, err = s.Open("k")
	require.ErrorIs(t, err, ErrNotFound)
}

// A store without its index is not a new store.
func TestLostIndex(t *testing.T) {
	dir := t.TempDir()
	index, aside := filepath.Join(dir, "index.db"), filepath.Join(t.TempDir(), "index.db")
	s := openTest(t, dir)
	put(t, s, "k", []byte("kept"))
	require.NoError(t, s.Close())
	require.NoError(t, os.Rename(index, aside))

	for range 2 { // the second time an index of the first is there
		_, err := Open(Config{Dir: dir})
		require.True(t, isKind(err, ErrNoIndex), "%v", err)
		require.Len(t, blobs(t, dir), 1)
	}

	require.NoError(t, os.Rename(aside, index))
	s = openTest(t, dir)
	require.Equal(t, "kept", string(get(t, s, "k")))
	require.NoError(t, s.Close())

	require.NoError(t, os.Remove(index))
	require.NoError(t, os.Rename(filepath.Join(dir, "blobs"), filepath.Join(t.TempDir(), "blobs")))
	s = openTest(t, dir)
	_, err := s.Stat("k")
	require.ErrorIs(t, err, ErrNotFound)
}

func TestSweepLeavesForeignFiles(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, openTest(t, dir).Close())
	foreign := filepath.Join(dir, "blobs", "0", "README")
	orphan := filepath.Join(dir, "blobs", "0", fmt.Sprintf("%032x", 7))
	require.NoError(t, os.WriteFile(foreign, []byte("x"), 0o600))
	require.NoError(t, os.WriteFile(orphan, []byte("x"), 0o600))
	s := openTest(t, dir)
	require.Equal(t, 1, s.Swept())
	require.FileExists(t, foreign)
	require.NoFileExists(t, orphan)
}

func FuzzRecord(f *testing.F) {
	f.Add(record{size: 5, modified: 7, id: blobID{1, 2, 3}}.encode())
	f.Add(record{}.encode())
	f.Fuzz(func(t *testing.T, p []byte) {
		r, err := decodeRecord(p)
		if err == nil {
			again, err := decodeRecord(r.encode())
			require.NoError(t, err)
			require.Equal(t, r, again)
			require.GreaterOrEqual(t, r.size, int64(0))
		}
	})
}

func FuzzTable(f *testing.F) {
	var t0 table
	t0.count = 3
	for i := range 3 {
		t0.set(i, uint32(i)*77)
	}
	f.Add(append([]byte(nil), t0.seal(blobID{9}, 4)...), uint64(4), 3)
	f.Fuzz(func(t *testing.T, p []byte, group uint64, count int) {
		var tb table
		copy(tb.page[:], p)
		if tb.check(blobID{9}, int64(group), count) == nil {
			require.Equal(t, count, tb.count)
		}
	})
}
