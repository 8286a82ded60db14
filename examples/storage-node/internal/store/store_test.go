package store

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"go.etcd.io/bbolt"
)

func openTest(t *testing.T, dir string) *Store {
	t.Helper()
	s, err := Open(Config{Dir: dir})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

// pattern is n bytes that differ for every seed and position.
func pattern(seed uint64, n int) []byte {
	p := make([]byte, n)
	r := rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8), byte(seed >> 16), byte(seed >> 24), 7})
	r.Read(p)
	return p
}

// cut divides p into pieces of random lengths.
func cut(r *rand.Rand, p []byte) [][]byte {
	var segs [][]byte
	for len(p) > 0 {
		n := min(1+r.IntN(len(p)), len(p))
		segs = append(segs, p[:n])
		p = p[n:]
	}
	return segs
}

func sums(p []byte) []uint32 {
	var s []uint32
	for len(p) > 0 {
		n := min(len(p), ChunkSize)
		s = append(s, Checksum(p[:n]))
		p = p[n:]
	}
	return s
}

func put(t *testing.T, s *Store, key string, p []byte) Info {
	t.Helper()
	w, err := s.Create(key, int64(len(p)))
	require.NoError(t, err)
	require.NoError(t, w.Append([][]byte{p}, sums(p)))
	info, err := w.Commit()
	require.NoError(t, err)
	return info
}

func get(t *testing.T, s *Store, key string) []byte {
	t.Helper()
	o, err := s.Open(key)
	require.NoError(t, err)
	defer o.Close()
	p := make([]byte, o.Info().Size)
	_, err = o.ReadAt([][]byte{p}, 0, nil)
	require.NoError(t, err)
	return p
}

// blobs lists the blob files of the store in dir.
func blobs(t *testing.T, dir string) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "blobs", "*", "*"))
	require.NoError(t, err)
	return files
}

func TestLayout(t *testing.T) {
	require.EqualValues(t, 0, fileSize(0))
	require.EqualValues(t, 2*pageSize, fileSize(1))
	require.EqualValues(t, ChunkSize+pageSize, fileSize(ChunkSize))
	require.EqualValues(t, groupSpan, fileSize(groupData))
	require.EqualValues(t, groupSpan+2*pageSize, fileSize(groupData+1))
	require.EqualValues(t, groupSpan, fileOffset(groupData))
	for _, n := range []int64{1, pageSize, ChunkSize + 1, groupData - 1, groupData, groupData + 1, 5*groupData + 12345} {
		last := fileOffset(n - 1)
		require.Less(t, last, fileSize(n)-pageSize, "data of %d bytes ends before the last table page", n)
		require.Zero(t, fileSize(n)%pageSize)
	}
}

func TestRoundTrip(t *testing.T) {
	dir := t.TempDir()
	s := openTest(t, dir)
	r := rand.New(rand.NewPCG(1, 2))
	for i, n := range []int{0, 1, pageSize - 1, pageSize, ChunkSize - 1, ChunkSize, ChunkSize + 1, 10*ChunkSize + 77} {
		key := fmt.Sprintf("object/%d", n)
		p := pattern(uint64(i), n)
		w, err := s.Create(key, -1)
		require.NoError(t, err)
		for rest := p; len(rest) > 0; {
			k := min(len(rest), (1+r.IntN(3))*ChunkSize)
			require.NoError(t, w.Append(cut(r, rest[:k]), nil))
			rest = rest[k:]
		}
		info, err := w.Commit()
		require.NoError(t, err)
		require.EqualValues(t, n, info.Size)
		require.True(t, bytes.Equal(p, get(t, s, key)))
		stat, err := s.Stat(key)
		require.NoError(t, err)
		require.Equal(t, info, stat)

		o, err := s.Open(key)
		require.NoError(t, err)
		for range 10 { // whole chunks anywhere, into slices cut anywhere
			first := int64(0)
			if n > 0 {
				first = r.Int64N(Chunks(int64(n)))
			}
			count := r.Int64N(Chunks(int64(n)) - first + 1)
			from, to := first*ChunkSize, min((first+count)*ChunkSize, int64(n))
			q := make([]byte, to-from)
			got, err := o.ReadAt(cut(r, q), from, []uint32{42})
			require.NoError(t, err)
			require.True(t, bytes.Equal(p[from:to], q))
			require.Equal(t, append([]uint32{42}, sums(q)...), got)
		}
		require.NoError(t, o.Close())
		require.NoError(t, o.Close())
	}
	files := blobs(t, dir)
	require.Len(t, files, 8)
}

// An object of several groups, its table pages in between; every group is read out of order.
func TestGroups(t *testing.T) {
	s := openTest(t, t.TempDir())
	const n = 2*groupData + 3*ChunkSize + 5
	w, err := s.Create("big", n)
	require.NoError(t, err)
	block := pattern(9, 5*ChunkSize)
	content := func(off, n int64) []byte { // byte i of the object is block[(i/ChunkSize%5)*ChunkSize + i%ChunkSize]
		p := make([]byte, 0, n)
		for n > 0 {
			at := off % int64(len(block))
			k := min(n, int64(len(block))-at)
			p = append(p, block[at:at+k]...)
			off, n = off+k, n-k
		}
		return p
	}
	for off := int64(0); off < n; {
		k := min(n-off, 37*ChunkSize)
		require.NoError(t, w.Append([][]byte{content(off, k)}, nil))
		off += k
	}
	_, err = w.Commit()
	require.NoError(t, err)
	o, err := s.Open("big")
	require.NoError(t, err)
	defer o.Close()
	for _, first := range []int64{2 * groupChunks, 0, groupChunks - 1, 2*groupChunks - 2, 1, groupChunks} {
		off := first * ChunkSize
		k := min(n-off, 4*ChunkSize)
		p := make([]byte, k)
		_, err := o.ReadAt([][]byte{p}, off, nil)
		require.NoError(t, err, "chunk %d", first)
		require.True(t, bytes.Equal(content(off, k), p), "chunk %d", first)
	}
}

func TestReopen(t *testing.T) {
	dir := t.TempDir()
	s := openTest(t, dir)
	p := pattern(3, 100_000)
	put(t, s, "a", p)
	put(t, s, "b", p[:7])
	w, err := s.Create("a", -1)
	require.NoError(t, err)
	require.NoError(t, w.Append([][]byte{p}, nil))
	require.NoError(t, s.Remove("b"))
	require.NoError(t, s.Close())
	_, err = w.Commit()
	require.ErrorIs(t, err, ErrClosed)

	s = openTest(t, dir)
	require.True(t, bytes.Equal(p, get(t, s, "a")))
	_, err = s.Stat("b")
	require.ErrorIs(t, err, ErrNotFound)
	totals, err := s.Totals()
	require.NoError(t, err)
	require.Equal(t, Totals{Objects: 1, Bytes: 100_000}, totals)
	require.Len(t, blobs(t, dir), 1)

	_, err = Open(Config{Dir: dir})
	require.ErrorIs(t, err, ErrInUse)
}

func TestReplaceAndRemoveKeepReaders(t *testing.T) {
	dir := t.TempDir()
	s := openTest(t, dir)
	old, fresh := pattern(1, 200_000), pattern(2, 90_000)
	v1 := put(t, s, "k", old)
	o, err := s.Open("k")
	require.NoError(t, err)
	defer o.Close()

	v2 := put(t, s, "k", fresh)
	require.NotEqual(t, v1.Version, v2.Version)
	require.True(t, bytes.Equal(fresh, get(t, s, "k")))
	require.NoError(t, s.Remove("k"))
	_, err = s.Open("k")
	require.ErrorIs(t, err, ErrNotFound)
	require.ErrorIs(t, s.Remove("k"), ErrNotFound)

	p := make([]byte, len(old))
	_, err = o.ReadAt([][]byte{p}, 0, nil)
	require.NoError(t, err)
	require.True(t, bytes.Equal(old, p))
	require.Empty(t, blobs(t, dir))
}

func TestAbortLeavesNothing(t *testing.T) {
	dir := t.TempDir()
	s := openTest(t, dir)
	p := pattern(1, 3*ChunkSize)
	put(t, s, "k", p[:10])
	for name, end := range map[string]func(w *Writer) error{
		"abort": func(w *Writer) error { return w.Abort() },
		"too few": func(w *Writer) error {
			require.NoError(t, w.Append([][]byte{p[:ChunkSize]}, nil))
			_, err := w.Commit()
			require.ErrorIs(t, err, ErrSize)
			return nil
		},
		"too many": func(w *Writer) error {
			require.ErrorIs(t, w.Append([][]byte{p}, nil), ErrSize)
			_, err := w.Commit()
			require.ErrorIs(t, err, ErrSize)
			return nil
		},
		"after a partial chunk": func(w *Writer) error {
			require.NoError(t, w.Append([][]byte{p[:5]}, nil))
			require.ErrorIs(t, w.Append([][]byte{p[:5]}, nil), ErrSize)
			require.ErrorIs(t, w.Append([][]byte{}, nil), ErrSize, "the error stays")
			return w.Abort()
		},
		"wrong checksum": func(w *Writer) error {
			bad := sums(p[:2*ChunkSize])
			bad[1] ^= 1
			require.ErrorIs(t, w.Append([][]byte{p[:2*ChunkSize]}, bad), ErrChecksum)
			return w.Abort()
		},
		"missing checksum": func(w *Writer) error {
			require.ErrorIs(t, w.Append([][]byte{p[:2*ChunkSize]}, sums(p[:ChunkSize])), ErrChecksum)
			return w.Abort()
		},
	} {
		t.Run(name, func(t *testing.T) {
			w, err := s.Create("k", 2*ChunkSize)
			require.NoError(t, err)
			require.NoError(t, end(w))
			require.NoError(t, w.Abort())
			_, err = w.Commit()
			require.Error(t, err)
			require.True(t, bytes.Equal(p[:10], get(t, s, "k")))
			require.Len(t, blobs(t, dir), 1)
		})
	}
}

func TestBadKeys(t *testing.T) {
	s := openTest(t, t.TempDir())
	for _, key := range []string{"", "a\x00b", "a\nb", string([]byte{0xff, 0xfe}), string(bytes.Repeat([]byte("x"), MaxKeyLen+1))} {
		_, err := s.Create(key, 0)
		require.ErrorIs(t, err, ErrBadKey)
		_, err = s.Open(key)
		require.ErrorIs(t, err, ErrBadKey)
		require.ErrorIs(t, s.Remove(key), ErrBadKey)
		_, err = s.Stat(key)
		require.ErrorIs(t, err, ErrBadKey)
	}
	for _, key := range []string{"../../etc/passwd", "/", "a b", "größe/木", string(bytes.Repeat([]byte("x"), MaxKeyLen))} {
		put(t, s, key, []byte(key))
		require.Equal(t, key, string(get(t, s, key)))
	}
}

func TestRanges(t *testing.T) {
	s := openTest(t, t.TempDir())
	put(t, s, "k", pattern(1, 2*ChunkSize+100))
	o, err := s.Open("k")
	require.NoError(t, err)
	for _, c := range []struct{ off, n int64 }{
		{-ChunkSize, ChunkSize}, {1, ChunkSize}, {0, 1}, {0, 3 * ChunkSize}, {2 * ChunkSize, 99}, {2 * ChunkSize, 101},
		{4 * ChunkSize, 1}, {4 * ChunkSize, 0},
	} {
		_, err := o.ReadAt([][]byte{make([]byte, c.n)}, c.off, nil)
		require.ErrorIs(t, err, ErrRange, "%v", c)
	}
	require.NoError(t, o.Close())
	_, err = o.ReadAt(nil, 0, nil)
	require.ErrorIs(t, err, ErrClosed)
}

func TestList(t *testing.T) {
	s := openTest(t, t.TempDir())
	for i := range 25 {
		put(t, s, fmt.Sprintf("b/%02d", i), nil)
	}
	put(t, s, "a", nil)
	put(t, s, "c", nil)
	var got []string
	for after, more := "", true; more; {
		var infos []Info
		var err error
		infos, more, err = s.List("b/", after, 10)
		require.NoError(t, err)
		for _, i := range infos {
			got = append(got, i.Key)
		}
		after = got[len(got)-1]
	}
	require.Len(t, got, 25)
	require.IsIncreasing(t, got)
	all, more, err := s.List("", "", 100)
	require.NoError(t, err)
	require.False(t, more)
	require.Len(t, all, 27)
	none, _, err := s.List("b/", "zzz", 100)
	require.NoError(t, err)
	require.Empty(t, none)
}

// Many goroutines put, get and remove the same few keys; every get sees one whole version.
func TestConcurrent(t *testing.T) {
	dir := t.TempDir()
	s := openTest(t, dir)
	const size = 2*ChunkSize + 9
	var wg sync.WaitGroup
	for g := range 6 {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(uint64(g), 1))
			for i := range 25 {
				key := fmt.Sprintf("k%d", r.IntN(3))
				switch r.IntN(5) {
				case 0, 1:
					p := bytes.Repeat([]byte{byte(g*40 + i)}, size)
					w, err := s.Create(key, size)
					if err == nil {
						err = w.Append([][]byte{p}, nil)
					}
					if err == nil {
						_, err = w.Commit()
					}
					if err != nil {
						t.Errorf("put: %v", err)
					}
				case 2:
					if err := s.Remove(key); err != nil {
						if !isKind(err, ErrNotFound) {
							t.Errorf("remove: %v", err)
						}
					}
				default:
					o, err := s.Open(key)
					if isKind(err, ErrNotFound) {
						continue
					}
					if err != nil {
						t.Errorf("open: %v", err)
						continue
					}
					p := make([]byte, size)
					if _, err := o.ReadAt([][]byte{p}, 0, nil); err != nil {
						t.Errorf("read: %v", err)
					} else if !bytes.Equal(p, bytes.Repeat(p[:1], size)) {
						t.Error("a get saw two versions")
					}
					o.Close()
				}
			}
		})
	}
	wg.Wait()
	infos, _, err := s.List("", "", 10)
	require.NoError(t, err)
	require.Len(t, blobs(t, dir), len(infos))
	totals, err := s.Totals()
	require.NoError(t, err)
	require.Equal(t, Totals{Objects: int64(len(infos)), Bytes: int64(len(infos)) * size}, totals)
}

func TestForeignDirectory(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "index.db"), bytes.Repeat([]byte("no index\n"), 4096), 0o600))
	_, err := Open(Config{Dir: dir})
	require.ErrorIs(t, err, ErrFormat)

	dir = t.TempDir()
	db, err := bbolt.Open(filepath.Join(dir, "index.db"), 0o600, nil)
	require.NoError(t, err)
	require.NoError(t, db.Update(func(tx *bbolt.Tx) error {
		b, err := tx.CreateBucket(bucketMeta)
		require.NoError(t, err)
		return b.Put(metaFormat, []byte("argonaut-store-99"))
	}))
	require.NoError(t, db.Close())
	_, err = Open(Config{Dir: dir})
	require.ErrorIs(t, err, ErrFormat)

	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	_, err = Open(Config{Dir: file})
	require.Error(t, err)
	_, err = Open(Config{})
	require.Error(t, err)
}
