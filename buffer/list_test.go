package buffer

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func listArena(tb testing.TB) *Arena {
	return newArena(tb, Config{Budget: 256 << 10, Classes: []int{Page, 4 * Page}, Reserve: -1})
}

// listOf is a list of n bytes, and what is in it.
func listOf(tb testing.TB, a *Arena, n int64) (*List, []byte) {
	tb.Helper()
	l, ok := a.TryGetList(n, Anonymous)
	require.True(tb, ok)
	p := make([]byte, n)
	r := rand.NewChaCha8([32]byte{byte(n)})
	_, _ = r.Read(p)
	require.EqualValues(tb, n, l.CopyFrom(p))
	return l, p
}

func contents(l *List) []byte {
	p := make([]byte, l.Len())
	l.CopyTo(p)
	return p
}

func TestListSplitTruncateShare(t *testing.T) {
	a := listArena(t)
	const n = 9*Page + 100 // two of 16 KiB and one of 8 KiB less
	for _, at := range []int64{0, 1, Page, 4*Page - 1, 4 * Page, 4*Page + 1, 9 * Page, n - 1, n} {
		l, p := listOf(t, a, n)
		s := l.Share()
		require.Equal(t, p, contents(s))
		r := l.Split(at)
		require.Equal(t, p[:at], contents(l))
		require.Equal(t, p[at:], contents(r))
		l.Release()
		require.Equal(t, p[at:], contents(r))
		s.Truncate(at)
		require.Equal(t, p[:at], contents(s))
		r.AppendList(s)
		require.Equal(t, append(p[at:len(p):len(p)], p[:at]...), contents(r))
		r.Release()
		require.Zero(t, a.Account().Held)
	}
	l, _ := listOf(t, a, 10)
	require.Panics(t, func() { l.Split(11) })
	require.Panics(t, func() { l.Split(-1) })
	require.Panics(t, func() { l.AppendList(l) })
	l.Release()
	require.PanicsWithValue(t, "buffer: a List was released twice", l.Release)
	require.Panics(t, func() { l.Share() })
}

func TestListOfTheCaller(t *testing.T) {
	a := listArena(t)
	var l List
	require.Zero(t, l.Len())
	b := mustGet(t, a, 10, Anonymous)
	l.Append(b.Retain())
	l.Append(b.Slice(0, 0)) // takes and releases
	require.Equal(t, 1, l.Segments())
	require.Equal(t, 10, l.At(0).Len())
	l.Release()
	require.Zero(t, l.Len())
	l.Append(mustGet(t, a, 10, Anonymous)) // it may be used again
	l.Release()
	require.Zero(t, a.Account().Held)
}

func TestListIO(t *testing.T) {
	a := listArena(t)
	const n = 9*Page + 100
	l, p := listOf(t, a, n)
	require.NoError(t, iotest.TestReader(l, p))
	_, err := l.Seek(0, io.SeekStart)
	require.NoError(t, err)
	var out bytes.Buffer
	m, err := l.WriteTo(&out)
	require.NoError(t, err)
	require.EqualValues(t, n, m)
	require.Equal(t, p, out.Bytes())
	m, err = l.WriteTo(&out)
	require.NoError(t, err)
	require.Zero(t, m)
	for _, c := range []struct {
		off    int64
		whence int
		want   int64
	}{{5, io.SeekStart, 5}, {Page, io.SeekCurrent, Page + 5}, {-100, io.SeekEnd, 9 * Page}, {0, io.SeekEnd, n}} {
		pos, err := l.Seek(c.off, c.whence)
		require.NoError(t, err)
		require.Equal(t, c.want, pos)
		rest, err := io.ReadAll(onlyReader{l})
		require.NoError(t, err)
		require.Equal(t, p[c.want:], rest)
		_, err = l.Seek(c.want, io.SeekStart)
		require.NoError(t, err)
	}
	for _, c := range []struct {
		off    int64
		whence int
	}{{-1, io.SeekStart}, {n + 1, io.SeekStart}, {1, io.SeekEnd}, {0, 7}} {
		_, err := l.Seek(c.off, c.whence)
		require.ErrorIs(t, err, ErrInvalid)
	}
	l.Release()

	// ReadFrom: full, short, one byte at a time, failing, stuck.
	l, ok := a.TryGetList(n, Anonymous)
	require.True(t, ok)
	fill := func(r io.Reader) (int64, error) {
		_, err := l.Seek(0, io.SeekStart)
		require.NoError(t, err)
		return l.ReadFrom(r)
	}
	m, err = fill(bytes.NewReader(append(p, 1, 2, 3)))
	require.NoError(t, err)
	require.EqualValues(t, n, m)
	require.Equal(t, p, contents(l))
	l.CopyFrom(make([]byte, n))
	m, err = fill(iotest.OneByteReader(bytes.NewReader(p[:5000])))
	require.NoError(t, err)
	require.EqualValues(t, 5000, m)
	require.Equal(t, p[:5000], contents(l)[:5000])
	m, err = fill(iotest.DataErrReader(bytes.NewReader(p[:5000])))
	require.NoError(t, err)
	require.EqualValues(t, 5000, m)
	broken := errors.New("broken")
	m, err = fill(io.MultiReader(bytes.NewReader(p[:100]), iotest.ErrReader(broken)))
	require.ErrorIs(t, err, broken)
	require.EqualValues(t, 100, m)
	_, err = fill(stuck{})
	require.ErrorIs(t, err, io.ErrNoProgress)
	_, err = fill(liar{})
	require.Error(t, err)

	// WriteTo: short and lying writers.
	_, err = l.Seek(0, io.SeekStart)
	require.NoError(t, err)
	m, err = l.WriteTo(shortWriter{})
	require.ErrorIs(t, err, io.ErrShortWrite)
	require.EqualValues(t, 1, m)
	_, err = l.WriteTo(liar{})
	require.Error(t, err)
	l.Release()
}

type onlyReader struct{ io.Reader }

type stuck struct{}

func (stuck) Read([]byte) (int, error) { return 0, nil }

type liar struct{}

func (liar) Read(p []byte) (int, error)  { return len(p) + 1, nil }
func (liar) Write(p []byte) (int, error) { return len(p) + 1, nil }

type shortWriter struct{}

func (shortWriter) Write([]byte) (int, error) { return 1, nil }

func TestListAppendCopy(t *testing.T) {
	a := listArena(t)
	ctx, cancel := context.WithCancel(context.Background())
	l := NewList()
	p := bytes.Repeat([]byte("argonaut"), 5000)
	require.NoError(t, l.AppendCopy(ctx, a, Anonymous, p))
	require.NoError(t, l.AppendCopy(ctx, a, Anonymous, nil))
	require.Equal(t, p, contents(l))
	require.EqualValues(t, len(p), a.Stats().Copied)
	all, ok := a.TryGetList(a.Account().Free, Anonymous)
	require.True(t, ok)
	cancel()
	require.ErrorIs(t, l.AppendCopy(ctx, a, Anonymous, p), context.Canceled)
	require.Equal(t, p, contents(l), "unchanged")
	all.Release()
	l.RetainPosted()
	require.Zero(t, a.Account().Held)
	s := l.Share()
	l.Release()
	s.ReleasePosted()
	require.Equal(t, p, bytes.Join(s.IOVec(nil), nil))
	require.Len(t, s.SGEs(nil, nil), s.Segments())
	n := 0
	for b := range s.Buffers() {
		n += b.Len()
		if n > Page {
			break
		}
	}
	s.Release()
	require.Zero(t, a.Account().Held)
}

// A list against a slice of bytes.
func TestListModel(t *testing.T) {
	a := listArena(t)
	rapid.Check(t, func(t *rapid.T) {
		l, p := NewList(), []byte(nil)
		var copies []*List
		var want [][]byte
		t.Repeat(map[string]func(*rapid.T){
			"append": func(t *rapid.T) {
				if l.Len() > 40<<10 || len(copies) > 2 {
					t.Skip("enough")
				}
				n := rapid.Int64Range(1, 20<<10).Draw(t, "n")
				q := bytes.Repeat([]byte{byte(n), byte(n >> 8)}, int(n+1)/2)[:n]
				require.NoError(t, l.AppendCopy(context.Background(), a, Anonymous, q))
				p = append(p, q...)
			},
			"share": func(t *rapid.T) {
				copies, want = append(copies, l.Share()), append(want, bytes.Clone(p))
			},
			"split and join": func(t *rapid.T) {
				at := rapid.Int64Range(0, l.Len()).Draw(t, "at")
				r := l.Split(at)
				r.AppendList(l)
				l = r
				p = append(bytes.Clone(p[at:]), p[:at]...)
			},
			"truncate": func(t *rapid.T) {
				n := rapid.Int64Range(0, l.Len()).Draw(t, "n")
				l.Truncate(n)
				p = p[:n]
			},
			"drop": func(t *rapid.T) {
				if len(copies) == 0 {
					t.Skip("none")
				}
				copies[0].Release()
				copies, want = copies[1:], want[1:]
			},
			"": func(t *rapid.T) {
				require.EqualValues(t, len(p), l.Len())
				require.True(t, bytes.Equal(p, contents(l)))
				for i, c := range copies {
					require.True(t, bytes.Equal(want[i], contents(c)))
				}
			},
		})
		l.Release()
		for _, c := range copies {
			c.Release()
		}
		require.Zero(t, a.Account().Held)
	})
}
