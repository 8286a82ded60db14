package conn

import (
	"bytes"
	"crypto/rand"
	"io"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/argonaut-rdma/argonaut/buffer"
)

// tcpPair is a connected pair of TCP connections over loopback.
func tcpPair(t testing.TB) (a, b net.Conn) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	a, err = net.Dial("tcp", l.Addr().String())
	require.NoError(t, err)
	b, err = l.Accept()
	require.NoError(t, err)
	t.Cleanup(func() { a.Close(); b.Close() })
	return a, b
}

func streams(t testing.TB) (a, b *Stream) {
	x, y := tcpPair(t)
	return NewStream(x), NewStream(y)
}

func TestStreamReadFull(t *testing.T) {
	a, b := streams(t)
	data := make([]byte, 100_000)
	rand.Read(data)
	go a.Write(data, nil)
	var got []byte
	// Short reads share the read-ahead, long ones drain it first.
	for _, n := range []int{1, 32, 0, 5000, 10, readAhead, readAhead - 1, 60_000} {
		p := make([]byte, n)
		require.NoError(t, b.ReadFull(p))
		got = append(got, p...)
	}
	p := make([]byte, len(data)-len(got))
	require.NoError(t, b.ReadFull(p))
	require.True(t, bytes.Equal(data, append(got, p...)))
}

// counted counts Reads.
type counted struct {
	net.Conn
	reads int
}

func (c *counted) Read(p []byte) (int, error) {
	c.reads++
	return c.Conn.Read(p)
}

func TestStreamReadFullAhead(t *testing.T) {
	for _, room := range []int{0, 1, 31, readAhead, 2 * readAhead} {
		x, y := net.Pipe()
		a, in := NewStream(x), &counted{Conn: y}
		b := NewStream(in)
		data := make([]byte, 40_000)
		rand.Read(data)
		go func() {
			a.Write(data[:20_000], nil)
			a.Write(data[20_000:], nil)
			a.Close()
		}()
		var got []byte
		read := func(n, room int) {
			p := make([]byte, n+room)
			require.NoError(t, b.ReadFullAhead(p, n))
			got = append(got, p[:n]...)
		}
		read(10_000, room)
		reads := in.reads
		head := make([]byte, min(room, readAhead))
		require.NoError(t, b.ReadFull(head))
		require.Equal(t, reads, in.reads, "they came along")
		got = append(got, head...)
		read(0, room)
		read(8, room) // of what came, and no more of it
		read(15_000, room)
		read(len(data)-len(got), room)
		require.True(t, bytes.Equal(data, got))
		require.Equal(t, uint64(len(data)), b.Received())
		require.Equal(t, io.EOF, b.ReadFullAhead(make([]byte, 2), 1))
	}
}

func TestStreamReadFullAheadEnds(t *testing.T) {
	a, b := streams(t)
	require.NoError(t, a.Write([]byte("12345"), nil))
	require.NoError(t, a.Close())
	require.NoError(t, b.ReadFullAhead(make([]byte, 100), 2))
	require.Equal(t, io.ErrUnexpectedEOF, b.ReadFullAhead(make([]byte, 100), 4))
}

// TestStreamEnd cuts the stream at every position near the edges of two reads.
func TestStreamEnd(t *testing.T) {
	for _, sent := range []int{0, 1, 9, 10, 11, readAhead + 10, 3 * readAhead} {
		a, b := streams(t)
		require.NoError(t, a.Write(make([]byte, sent), nil))
		require.NoError(t, a.Close())
		want := func(have, want int) error {
			switch {
			case have >= want:
				return nil
			case have <= 0:
				return io.EOF
			}
			return io.ErrUnexpectedEOF
		}
		require.Equal(t, want(sent, 10), b.ReadFull(make([]byte, 10)), sent)
		if sent >= 10 {
			require.Equal(t, want(sent-10, 2*readAhead), b.ReadFull(make([]byte, 2*readAhead)), sent)
		}
	}
}

func TestStreamDeadlineAndClose(t *testing.T) {
	a, b := streams(t)
	require.NoError(t, b.SetReadDeadline(time.Now().Add(-time.Second)))
	var ne net.Error
	require.ErrorAs(t, b.ReadFull(make([]byte, 1)), &ne)
	require.True(t, ne.Timeout())
	require.NoError(t, b.SetDeadline(time.Time{}))
	done := make(chan error)
	go func() { done <- b.ReadFull(make([]byte, 1)) }()
	require.NoError(t, b.Close())
	require.ErrorIs(t, <-done, ErrClosed)
	require.NoError(t, b.Close())
	require.ErrorIs(t, b.Write([]byte("x"), nil), ErrClosed)
	require.Equal(t, a.LocalAddr(), b.RemoteAddr())
	require.Equal(t, b.LocalAddr(), a.RemoteAddr())
}

// TestStreamLists moves lists of odd pieces, gathered and scattered, behind
// heads, over TCP and over a connection that has no gathered write.
func TestStreamLists(t *testing.T) {
	arena, err := buffer.New(buffer.Config{Budget: 16 << 20, NoHugePages: true})
	require.NoError(t, err)
	defer func() { require.NoError(t, arena.Close(t.Context())) }()
	n := &node{t: t, a: arena}
	for name, pipe := range map[string]func() (*Stream, *Stream){
		"tcp": func() (*Stream, *Stream) { return streams(t) },
		"pipe": func() (*Stream, *Stream) {
			x, y := net.Pipe()
			t.Cleanup(func() { x.Close(); y.Close() })
			return NewStream(x), NewStream(y)
		},
	} {
		t.Run(name, func(t *testing.T) {
			a, b := pipe()
			sent := make(chan error, 1)
			for _, sizes := range [][]int{{1}, {5000, 1, 70_000}, {1 << 20, 3}, {10, 20, 30, 40, 50, 60}} {
				out, data := n.list(sizes...)
				go func() { sent <- a.Write([]byte("the head"), out) }()
				head := make([]byte, 8)
				require.NoError(t, b.ReadFull(head))
				require.Equal(t, "the head", string(head))
				// Received in other pieces than sent.
				in, err := arena.GetList(t.Context(), int64(len(data)), buffer.Anonymous)
				require.NoError(t, err)
				require.NoError(t, b.ReadList(in))
				require.NoError(t, <-sent)
				require.True(t, bytes.Equal(data, bytesOf(in)))
				out.Release()
				in.Release()
			}
			go func() { sent <- a.Write([]byte("x"), nil) }()
			require.NoError(t, b.ReadFull(make([]byte, 1)))
			require.NoError(t, <-sent)
			require.NoError(t, a.Write(nil, nil))
			in, _ := n.list(100, 100)
			go func() {
				a.Write(make([]byte, 150), nil)
				a.Close()
			}()
			require.Equal(t, io.ErrUnexpectedEOF, b.ReadList(in))
			in.Release()
		})
	}
}

func TestStreamNoAllocations(t *testing.T) {
	if checkedBuild {
		t.Skip("checked builds allocate")
	}
	arena, err := buffer.New(buffer.Config{Budget: 16 << 20, NoHugePages: true})
	require.NoError(t, err)
	defer func() { require.NoError(t, arena.Close(t.Context())) }()
	n := &node{t: t, a: arena}
	a, b := streams(t)
	out, _ := n.list(5000, 6000)
	in, _ := n.list(11_000)
	var head, got [32]byte
	require.Zero(t, testing.AllocsPerRun(200, func() {
		if a.Write(head[:], out) != nil || b.ReadFull(got[:]) != nil || b.ReadList(in) != nil {
			panic("stream failed")
		}
	}))
	out.Release()
	in.Release()
}
