package messengertest_test

import (
	"bytes"
	"context"
	"io"
	"net"
	"os"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/argonaut-rdma/argonaut/messenger/messengertest"
)

const (
	hostA, hostB, hostC = "10.0.0.1", "10.0.0.2", "10.0.0.3"
	port                = ":6800"
)

// joined is a connection from a to b over n.
func joined(t *testing.T, n *messengertest.Network, a, b string) (dialed, accepted net.Conn) {
	t.Helper()
	l, err := n.Listener(b)(t.Context(), b+":0")
	require.NoError(t, err)
	defer l.Close()
	dialed, err = n.Dialer(a)(t.Context(), l.Addr().String())
	require.NoError(t, err)
	accepted, err = l.Accept()
	require.NoError(t, err)
	t.Cleanup(func() {
		dialed.Close()
		accepted.Close()
	})
	return dialed, accepted
}

// got reads n bytes of c.
func got(t *testing.T, c net.Conn, n int) []byte {
	t.Helper()
	b := make([]byte, n)
	_, err := io.ReadFull(c, b)
	require.NoError(t, err)
	return b
}

func TestDialAndListen(t *testing.T) {
	n := messengertest.NewNetwork(1)
	ctx := t.Context()
	_, err := n.Dialer(hostA)(ctx, hostB+port)
	require.ErrorIs(t, err, syscall.ECONNREFUSED)
	_, err = n.Dialer(hostA)(ctx, "nobody")
	require.Error(t, err)

	l, err := n.Listener(hostB)(ctx, hostB+port)
	require.NoError(t, err)
	_, err = n.Listener(hostB)(ctx, hostB+port)
	require.ErrorIs(t, err, syscall.EADDRINUSE)
	other, err := n.Listener(hostC)(ctx, hostC+port)
	require.NoError(t, err, "another host has ports of its own")
	require.NoError(t, other.Close())

	c, err := n.Dialer(hostA)(ctx, hostB+port)
	require.NoError(t, err)
	s, err := l.Accept()
	require.NoError(t, err)
	require.Equal(t, hostB+port, c.RemoteAddr().String())
	require.Equal(t, c.RemoteAddr(), s.LocalAddr())
	require.Equal(t, c.LocalAddr(), s.RemoteAddr())
	require.Equal(t, 1, n.Connections())

	late, err := n.Dialer(hostA)(ctx, hostB+port) // nobody accepts it
	require.NoError(t, err)
	require.NoError(t, l.Close())
	require.NoError(t, l.Close())
	_, err = late.Read(make([]byte, 1))
	require.ErrorIs(t, err, syscall.ECONNRESET)
	_, err = l.Accept()
	require.ErrorIs(t, err, net.ErrClosed)
	_, err = n.Dialer(hostA)(ctx, hostB+port)
	require.ErrorIs(t, err, syscall.ECONNREFUSED)

	require.NoError(t, c.Close())
	require.NoError(t, s.Close())
	require.NoError(t, late.Close())
	require.Zero(t, n.Connections())
	require.Equal(t, 2, n.Dialed())
}

func TestBytesAndTheirEnd(t *testing.T) {
	a, b := joined(t, messengertest.NewNetwork(1), hostA, hostB)
	for _, dir := range [][2]net.Conn{{a, b}, {b, a}} {
		_, err := dir[0].Write([]byte("hello "))
		require.NoError(t, err)
		_, err = dir[0].Write([]byte("world"))
		require.NoError(t, err)
		require.Equal(t, "hello world", string(got(t, dir[1], 11)))
	}
	_, err := a.Write([]byte("last"))
	require.NoError(t, err)
	require.NoError(t, a.(interface{ CloseWrite() error }).CloseWrite())
	_, err = a.Write([]byte("more"))
	require.ErrorIs(t, err, net.ErrClosed)
	all, err := io.ReadAll(b)
	require.NoError(t, err)
	require.Equal(t, "last", string(all))
	_, err = b.Write([]byte("the other way still goes"))
	require.NoError(t, err)
	require.Equal(t, "the other", string(got(t, a, 9)))
	require.NoError(t, a.Close())
	_, err = a.Read(make([]byte, 1))
	require.ErrorIs(t, err, net.ErrClosed)
	_, err = b.Write([]byte("nobody reads"))
	require.ErrorIs(t, err, syscall.ECONNRESET)
}

func TestDeadlines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := joined(t, messengertest.NewNetwork(1), hostA, hostB)
		begin := time.Now()
		require.NoError(t, a.SetReadDeadline(begin.Add(3*time.Second)))
		_, err := a.Read(make([]byte, 1))
		require.ErrorIs(t, err, os.ErrDeadlineExceeded)
		require.Equal(t, 3*time.Second, time.Since(begin))
		var ne net.Error
		require.ErrorAs(t, err, &ne)
		require.True(t, ne.Timeout())

		require.NoError(t, a.SetDeadline(time.Now().Add(time.Second)))
		n, err := a.Write(make([]byte, 10<<20)) // more than is on its way at a time
		require.ErrorIs(t, err, os.ErrDeadlineExceeded)
		require.Less(t, n, 1<<20)
		require.NoError(t, a.SetDeadline(time.Time{}))
		require.NoError(t, b.SetDeadline(time.Time{}))
		got(t, b, n) // and those bytes have arrived

		go func() { // ends with the read
			time.Sleep(time.Second)
			a.SetReadDeadline(time.Now())
		}()
		_, err = a.Read(make([]byte, 1))
		require.ErrorIs(t, err, os.ErrDeadlineExceeded, "a deadline reaches a read that waits")
	})
}

func TestWritersWaitForReaders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := joined(t, messengertest.NewNetwork(1), hostA, hostB)
		all := bytes.Repeat([]byte("0123456789abcdef"), 1<<16)
		done := make(chan error, 1)
		go func() { // ends when all has been read
			_, err := a.Write(all)
			done <- err
		}()
		synctest.Wait()
		select {
		case err := <-done:
			t.Fatal("a mebibyte was taken at once", err)
		default:
		}
		require.Equal(t, all, got(t, b, len(all)))
		require.NoError(t, <-done)
	})
}

func TestLatency(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := messengertest.NewNetwork(1)
		a, b := joined(t, n, hostA, hostB)
		n.SetLatency(func(from, to string) time.Duration {
			if from == hostA && to == hostB {
				return 70 * time.Millisecond
			}
			return 0
		})
		begin := time.Now()
		_, err := a.Write([]byte("x"))
		require.NoError(t, err)
		n.SetLatency(nil)
		_, err = a.Write([]byte("y"))
		require.NoError(t, err)
		require.Zero(t, time.Since(begin), "a writer does not wait")
		_, err = b.Write([]byte("z"))
		require.NoError(t, err)
		require.Equal(t, "z", string(got(t, a, 1)))
		require.Zero(t, time.Since(begin))
		require.Equal(t, "xy", string(got(t, b, 2)), "what is faster does not overtake")
		require.Equal(t, 70*time.Millisecond, time.Since(begin))
	})
}

func TestCutAfter(t *testing.T) {
	n := messengertest.NewNetwork(1)
	var asked [][2]string
	n.SetCutAfter(func(from, to string) int64 {
		asked = append(asked, [2]string{from, to})
		return 10
	})
	a, b := joined(t, n, hostA, hostB)
	n.SetCutAfter(nil)
	c, d := joined(t, n, hostA, hostB)
	require.Equal(t, [][2]string{{hostA, hostB}}, asked, "each connection when it is made")
	_, err := a.Write([]byte("1234"))
	require.NoError(t, err)
	_, err = b.Write([]byte("567890"))
	require.NoError(t, err, "ten bytes, both ways together")
	require.Equal(t, "1234", string(got(t, b, 4)))
	require.Equal(t, "567890", string(got(t, a, 6)))
	_, err = b.Write([]byte("x"))
	require.ErrorIs(t, err, syscall.ECONNRESET)
	_, err = a.Read(make([]byte, 1))
	require.ErrorIs(t, err, syscall.ECONNRESET)
	require.Equal(t, 1, n.Connections())
	_, err = c.Write(make([]byte, 1000))
	require.NoError(t, err)
	got(t, d, 1000)
}

func TestCut(t *testing.T) {
	n := messengertest.NewNetwork(1)
	a, b := joined(t, n, hostA, hostB)
	c, d := joined(t, n, hostC, hostB)
	_, err := a.Write([]byte("is lost"))
	require.NoError(t, err)
	n.Cut(hostB, hostA)
	for _, x := range []net.Conn{a, b} {
		_, err = x.Read(make([]byte, 10))
		require.ErrorIs(t, err, syscall.ECONNRESET)
		_, err = x.Write([]byte("x"))
		require.ErrorIs(t, err, syscall.ECONNRESET)
	}
	_, err = c.Write([]byte("others go on"))
	require.NoError(t, err)
	got(t, d, 12)
	n.CutAll()
	_, err = d.Read(make([]byte, 1))
	require.ErrorIs(t, err, syscall.ECONNRESET)
	require.Zero(t, n.Connections())
}

func TestSplitIsSilent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := messengertest.NewNetwork(1)
		a, b := joined(t, n, hostA, hostB)
		c, d := joined(t, n, hostC, hostB)
		n.Split([]string{hostA}, []string{hostB})
		_, err := a.Write([]byte("held up"))
		require.NoError(t, err)
		require.NoError(t, b.SetReadDeadline(time.Now().Add(time.Hour)))
		_, err = b.Read(make([]byte, 10))
		require.ErrorIs(t, err, os.ErrDeadlineExceeded)
		require.NoError(t, b.SetReadDeadline(time.Time{}))
		_, err = c.Write([]byte("on no side"))
		require.NoError(t, err)
		got(t, d, 10)

		begin := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		_, err = n.Dialer(hostA)(ctx, hostB+port)
		require.ErrorIs(t, err, context.DeadlineExceeded, "not even a refusal")
		require.Equal(t, time.Minute, time.Since(begin))
		refused := make(chan error, 1)
		go func() { // ends when the network is whole
			_, err := n.Dialer(hostA)(t.Context(), hostB+port)
			refused <- err
		}()
		require.NoError(t, a.Close()) // of which b hears nothing
		synctest.Wait()
		require.Empty(t, refused)
		n.Heal()
		require.ErrorIs(t, <-refused, syscall.ECONNREFUSED)
		all, err := io.ReadAll(b)
		require.NoError(t, err)
		require.Equal(t, "held up", string(all))
	})
}

// What is drawn depends on the seed alone.
func TestSeed(t *testing.T) {
	draw := func(seed uint64) (v []any) {
		n := messengertest.NewNetwork(seed)
		for range 50 {
			v = append(v, n.Chance(0.5), n.Exp(100))
		}
		return v
	}
	require.Equal(t, draw(1), draw(1))
	require.NotEqual(t, draw(1), draw(2))
	require.Contains(t, draw(1), true)
	require.Contains(t, draw(1), false)
	sum := 0.
	n := messengertest.NewNetwork(3)
	for range 10_000 {
		sum += n.Exp(7)
	}
	require.InDelta(t, 7, sum/10_000, 0.5)
	require.False(t, n.Chance(0))
	require.True(t, n.Chance(1))
}
