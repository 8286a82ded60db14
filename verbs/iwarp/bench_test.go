package iwarp

import (
	"context"
	"fmt"
	"io"
	"net"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/argonaut-rdma/argonaut/verbs/driver"
)

// The benchmarks measure the provider against a raw TCP connection that does the same, both over loopback.

func tcpPair(b *testing.B) (x, y net.Conn) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(b, err)
	defer l.Close()
	x, err = net.Dial("tcp", l.Addr().String())
	require.NoError(b, err)
	y, err = l.Accept()
	require.NoError(b, err)
	b.Cleanup(func() { x.Close(); y.Close() })
	return x, y
}

func BenchmarkStream(b *testing.B) {
	for _, size := range []int{4 << 10, 64 << 10, 1 << 20} {
		b.Run(fmt.Sprintf("raw/%dK", size>>10), func(b *testing.B) { streamRaw(b, size) })
		b.Run(fmt.Sprintf("send/%dK", size>>10), func(b *testing.B) { streamSend(b, Config{}, size) })
		b.Run(fmt.Sprintf("strict/%dK", size>>10), func(b *testing.B) { streamSend(b, Config{Strict: true, CRC: CRCOff}, size) })
		b.Run(fmt.Sprintf("crc/%dK", size>>10), func(b *testing.B) { streamSend(b, Config{CRC: CRCOn}, size) })
		b.Run(fmt.Sprintf("read/%dK", size>>10), func(b *testing.B) { streamRead(b, size) })
	}
}

// streamDepth is how many messages are under way.
func streamDepth(size int) int { return max(4, min(32, 4<<20/size)) }

func streamRaw(b *testing.B, size int) {
	x, y := tcpPair(b)
	src, dst := make([]byte, size), make([]byte, size*streamDepth(size)) // as many buffers as the other has
	b.SetBytes(int64(size))
	b.ReportAllocs()
	done := make(chan error, 1)
	go func() {
		for i := range b.N {
			off := i % streamDepth(size) * size
			if _, err := io.ReadFull(y, dst[off:off+size]); err != nil {
				done <- err
				return
			}
		}
		done <- nil
	}()
	cpu(b)
	for range b.N {
		if _, err := x.Write(src); err != nil {
			b.Fatal(err)
		}
	}
	require.NoError(b, <-done)
}

// cpu reports the processor time per operation of both ends, which says more than the clock on a busy machine.
func cpu(b *testing.B) {
	begin := processTime()
	b.ResetTimer()
	b.Cleanup(func() { b.ReportMetric(float64(processTime()-begin)/float64(b.N), "cpu-ns/op") })
}

// reap polls c, spinning a little and then asleep, and returns how many completions it got.
func (e *end) reap(c driver.CQ, wcs []driver.WC, ctx context.Context) int {
	for spin := 0; ; spin++ {
		n, _ := c.Poll(wcs)
		for i := range n {
			if wcs[i].Status != driver.StatusSuccess {
				panic(wcs[i].Status.String())
			}
		}
		switch {
		case n > 0:
			return n
		case spin < 4:
			runtime.Gosched()
		case spin == 4:
			_ = c.ReqNotify(false)
		default:
			if _, err := e.ch.Wait(ctx); err != nil {
				panic(err)
			}
			spin = 3
		}
	}
}

func streamSend(b *testing.B, cfg Config, size int) {
	depth := streamDepth(size)
	x, y := pair(b, endConfig{cfg: cfg, depth: depth, cqDepth: 4 * depth})
	_, sm := x.mem(size, 0)
	_, dm := y.mem(size*depth, driver.AccessLocalWrite)
	recvs := make([]driver.RecvWR, 1)
	post := func(i int) {
		recvs[0].WRID = uint64(i)
		recvs[0].SGEs = append(recvs[0].SGEs[:0], sgeOf(dm, i*size, size))
		if _, err := y.qp.PostRecv(recvs); err != nil {
			panic(err)
		}
	}
	for i := range depth {
		post(i)
	}
	// Credits, as a layer above would have them: a channel stands for the messages back.
	credits := make(chan struct{}, depth)
	for range depth {
		credits <- struct{}{}
	}
	b.SetBytes(int64(size))
	b.ReportAllocs()
	done := make(chan struct{})
	go func() {
		defer close(done)
		wcs := make([]driver.WC, 16)
		for got := 0; got < b.N; {
			n := y.reap(y.rcq, wcs, context.Background())
			for i := range n {
				post(int(wcs[i].WRID))
				credits <- struct{}{}
			}
			got += n
		}
	}()
	wrs := []driver.SendWR{{Opcode: driver.OpSend, Flags: driver.SendSignaled, SGEs: []driver.SGE{sgeOf(sm, 0, size)}}}
	wcs := make([]driver.WC, 16)
	inflight := 0
	cpu(b)
	for range b.N {
		<-credits
		for inflight == depth {
			inflight -= x.reap(x.scq, wcs, context.Background())
		}
		if _, err := x.qp.PostSend(wrs); err != nil {
			b.Fatal(err)
		}
		inflight++
		n, _ := x.scq.Poll(wcs)
		inflight -= n
	}
	for inflight > 0 {
		inflight -= x.reap(x.scq, wcs, context.Background())
	}
	<-done
	b.StopTimer()
	b.ReportMetric(float64(x.dev.Stats().Writes)/float64(b.N), "writes/op")
	b.ReportMetric(float64(x.dev.Stats().FullStops)/float64(b.N), "full/op")
	b.ReportMetric(float64(y.dev.Stats().Reads)/float64(b.N), "reads/op")
}

func streamRead(b *testing.B, size int) {
	const depth = 8
	x, y := pair(b, endConfig{depth: depth})
	_, sm := x.mem(size*depth, driver.AccessLocalWrite)
	_, dm := y.mem(size, driver.AccessRemoteRead)
	b.SetBytes(int64(size))
	b.ReportAllocs()
	wrs := []driver.SendWR{{Opcode: driver.OpRead, Flags: driver.SendSignaled, SGEs: []driver.SGE{sgeOf(sm, 0, size)},
		RemoteAddr: dm.Addr(), RKey: dm.RKey()}}
	wcs := make([]driver.WC, 16)
	inflight := 0
	cpu(b)
	for i := range b.N {
		for inflight == depth {
			inflight -= x.reap(x.scq, wcs, context.Background())
		}
		wrs[0].SGEs[0] = sgeOf(sm, i%depth*size, size)
		if _, err := x.qp.PostSend(wrs); err != nil {
			b.Fatal(err)
		}
		inflight++
	}
	for inflight > 0 {
		inflight -= x.reap(x.scq, wcs, context.Background())
	}
}

func BenchmarkPingPong(b *testing.B) {
	b.Run("raw", func(b *testing.B) {
		x, y := tcpPair(b)
		go func() { // ends when x is closed
			buf := make([]byte, 64)
			for {
				if _, err := io.ReadFull(y, buf); err != nil {
					return
				}
				if _, err := y.Write(buf); err != nil {
					return
				}
			}
		}()
		buf := make([]byte, 64)
		b.ReportAllocs()
		cpu(b)
		for range b.N {
			if _, err := x.Write(buf); err != nil {
				b.Fatal(err)
			}
			if _, err := io.ReadFull(x, buf); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("send", func(b *testing.B) {
		x, y := pair(b, endConfig{})
		pongs := make(chan struct{})
		side := func(e *end, n int, first bool) {
			_, m := e.mem(64, driver.AccessLocalWrite)
			recv := []driver.RecvWR{{SGEs: []driver.SGE{sgeOf(m, 0, 64)}}}
			send := []driver.SendWR{{Opcode: driver.OpSend, SGEs: []driver.SGE{sgeOf(m, 0, 64)}}}
			wcs := make([]driver.WC, 4)
			for range 8 {
				_, _ = e.qp.PostRecv(recv)
			}
			pongs <- struct{}{}
			for i := range n {
				if first || i > 0 {
					if _, err := e.qp.PostSend(send); err != nil {
						panic(err)
					}
				}
				e.reap(e.rcq, wcs, context.Background())
				if _, err := e.qp.PostRecv(recv); err != nil {
					panic(err)
				}
			}
			if !first {
				_, _ = e.qp.PostSend(send)
			}
			pongs <- struct{}{}
		}
		b.ReportAllocs()
		go side(y, b.N, false)
		<-pongs
		cpu(b)
		go side(x, b.N, true)
		<-pongs
		<-pongs
		<-pongs
		b.StopTimer()
	})
}
