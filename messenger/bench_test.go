package messenger

import (
	"io"
	"net"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/argonaut-rdma/argonaut/buffer"
)

func benchCarriers(b *testing.B, f func(b *testing.B, scheme string)) {
	for _, scheme := range []string{SchemeTCP, schemeDevice} {
		b.Run(scheme, func(b *testing.B) { f(b, scheme) })
	}
}

// BenchmarkRoundTrip is one call of 64 bytes at a time, answered by a fast
// dispatcher; raw is a bare TCP connection doing the same.
func BenchmarkRoundTrip(b *testing.B) {
	b.Run("raw", func(b *testing.B) {
		c, s := tcpPair(b)
		go io.Copy(s, s) // ends with the connection
		p := make([]byte, 64)
		b.ReportAllocs()
		for b.Loop() {
			if _, err := c.Write(p); err != nil {
				b.Fatal(err)
			}
			if _, err := io.ReadFull(c, p); err != nil {
				b.Fatal(err)
			}
		}
	})
	benchCarriers(b, func(b *testing.B, scheme string) {
		p := newPair(b, scheme, Config{}, Config{}, &handler{fast: func(m *Message) bool { return echo(b.Context(), m) }}, nil)
		front := make([]byte, 64)
		ctx := b.Context()
		b.ReportAllocs()
		for b.Loop() {
			m := NewMessage(1)
			m.Front = append(m.Front, front...)
			r, err := p.c.Call(ctx, m)
			if err != nil {
				b.Fatal(err)
			}
			r.Release()
		}
	})
}

// BenchmarkStream is one-way messages of 1 MiB.
func BenchmarkStream(b *testing.B) {
	const size = 1 << 20
	b.Run("raw", func(b *testing.B) {
		c, s := tcpPair(b)
		done := make(chan struct{})
		go func() { // ends with the connection
			defer close(done)
			p := make([]byte, size)
			for {
				if _, err := io.ReadFull(s, p); err != nil {
					return
				}
			}
		}()
		p := make([]byte, size)
		b.SetBytes(size)
		for b.Loop() {
			if _, err := c.Write(p); err != nil {
				b.Fatal(err)
			}
		}
		c.Close()
		<-done
	})
	for _, crc := range []bool{false, true} {
		name := "nocrc"
		if crc {
			name = "crc"
		}
		b.Run(name, func(b *testing.B) {
			benchCarriers(b, func(b *testing.B, scheme string) {
				got := make(chan struct{}, 1<<20)
				sh := &handler{fast: func(m *Message) bool { m.Release(); got <- struct{}{}; return true }}
				p := newPair(b, scheme, Config{NoDataCRC: !crc}, Config{NoDataCRC: !crc}, sh, nil)
				l, err := p.client.cfg.Arena.GetList(b.Context(), size, buffer.Anonymous)
				require.NoError(b, err)
				defer l.Release()
				b.SetBytes(size)
				b.ReportAllocs()
				n := 0
				for b.Loop() {
					m := NewMessage(1)
					m.Data = l.Share()
					if err := p.c.Send(b.Context(), m); err != nil {
						b.Fatal(err)
					}
					n++
				}
				for range n {
					<-got
				}
			})
		})
	}
}

func tcpPair(b *testing.B) (client, server net.Conn) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(b, err)
	defer ln.Close()
	client, err = net.Dial("tcp", ln.Addr().String())
	require.NoError(b, err)
	server, err = ln.Accept()
	require.NoError(b, err)
	b.Cleanup(func() { client.Close(); server.Close() })
	return client, server
}
