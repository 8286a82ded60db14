package conn

import (
	"context"
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// benchPair is a connection whose receiver only counts.
func benchPair(b *testing.B, cfg Config, onB, onA func(*Conn, Message)) (*pair, *Conn) {
	ca, cb := nodeConfig{Config: cfg, budget: 64 << 20, huge: true}, nodeConfig{Config: cfg, budget: 64 << 20, huge: true}
	ca.defaults, cb.defaults = true, true
	ca.OnMessage, cb.OnMessage = onA, onB
	p := newPair(b, ca, cb)
	return p, p.ab
}

// BenchmarkOneWay streams messages of one size. The baseline is a TCP connection
// that does the same: fixed-size writes, read fully into one buffer.
func BenchmarkOneWay(b *testing.B) {
	for _, size := range []int{4 << 10, 64 << 10, 1 << 20} {
		b.Run(fmt.Sprintf("tcp/%dKiB", size>>10), func(b *testing.B) {
			x, y := tcpPair(b)
			b.SetBytes(int64(size))
			buf := make([]byte, size)
			b.ResetTimer()
			go func() {
				for range b.N {
					if _, err := x.Write(buf); err != nil {
						return
					}
				}
			}()
			in := make([]byte, size)
			start := cpuTime()
			for range b.N {
				_, err := io.ReadFull(y, in)
				require.NoError(b, err)
			}
			cpu(b, start)
		})
		for name, cfg := range map[string]Config{
			"conn": {}, "eager": {EagerMax: 2 << 20}, "rendezvous": {EagerMax: 16 << 10},
		} {
			b.Run(fmt.Sprintf("%s/%dKiB", name, size>>10), func(b *testing.B) {
				done := make(chan struct{})
				left := b.N
				p, c := benchPair(b, cfg, func(_ *Conn, m Message) {
					m.Payload.Release()
					if left--; left == 0 {
						close(done)
					}
				}, nil)
				l, _ := p.a.list(size)
				defer l.Release()
				b.SetBytes(int64(size))
				b.ReportAllocs()
				b.ResetTimer()
				start := cpuTime()
				for range b.N {
					require.NoError(b, c.Send(context.Background(), Message{Head: head64[:], Payload: l.Share()}))
				}
				<-done
				b.StopTimer()
				cpu(b, start)
			})
		}
	}
}

var head64 [64]byte

// BenchmarkRoundTrip is a request and a reply of 64 bytes.
func BenchmarkRoundTrip(b *testing.B) {
	b.Run("tcp", func(b *testing.B) {
		x, y := tcpPair(b)
		go func() {
			buf := make([]byte, 64)
			for {
				if _, err := io.ReadFull(y, buf); err != nil {
					return
				}
				y.Write(buf)
			}
		}()
		buf := make([]byte, 64)
		for b.Loop() {
			x.Write(buf)
			_, err := io.ReadFull(x, buf)
			require.NoError(b, err)
		}
	})
	b.Run("conn", func(b *testing.B) {
		back := make(chan struct{}, 1)
		_, c := benchPair(b, Config{}, func(c *Conn, m Message) {
			if ok, err := c.TrySend(Message{Head: m.Head}); !ok || err != nil {
				b.Error("no room for a reply", err)
			}
		}, func(*Conn, Message) { back <- struct{}{} })
		b.ReportAllocs()
		for b.Loop() {
			require.NoError(b, c.Send(context.Background(), Message{Head: head64[:]}))
			<-back
		}
	})
}

// cpuTime is what the process has used, both ends and the kernel's part. On a
// machine that is shared it scatters less than time.
func cpuTime() time.Duration {
	var r unix.Rusage
	unix.Getrusage(unix.RUSAGE_SELF, &r)
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}

func cpu(b *testing.B, start time.Duration) {
	b.ReportMetric(float64(cpuTime()-start)/float64(b.N), "cpu-ns/op")
}
