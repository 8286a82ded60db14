package verbstest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync/atomic"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/argonaut-rdma/argonaut/verbs"
	"github.com/argonaut-rdma/argonaut/verbs/driver"
)

var stressTests = []subtest{
	{"ManyQPsOneCQ", manyQPsOneCQ},
	{"ConcurrentPostAndPoll", concurrentPostAndPoll},
	{"RegisterCycles", registerCycles},
	{"ConnectCycles", connectCycles},
	{"NoAllocations", noAllocations},
}

// manyQPsOneCQ has one CQ and one poller for all queues of many QPs: the
// messages of each come in order, and none of another's is among them.
func manyQPsOneCQ(e *env) {
	const qps, depth = 16, 8
	rounds := e.short(100)
	shared := e.queue(e.acceptor(), qps*2*depth)
	pd := e.allocPD(e.acceptor())
	var pairs []pair
	byQPN := map[uint32]int{}
	for i := range qps {
		b := &end{env: e, name: "b", dev: e.acceptor(), caps: e.acceptor().Caps(), pd: pd, sq: shared, rq: shared, events: make(chan verbs.Event, 64)}
		b.attach(pairOpts{depth: depth})
		p := pair{e.end("a", e.dialer(), pairOpts{depth: depth}), b}
		p.connect(driver.ConnParam{})
		for k := range depth {
			b.postRecv(verbs.RecvWR{WRID: uint64(k)})
		}
		byQPN[b.qp.QPN()] = i
		pairs = append(pairs, p)
	}
	g, ctx := errgroup.WithContext(e.ctx)
	for _, p := range pairs {
		p.a.postRecv(verbs.RecvWR{})
		g.Go(func() error { // one message each way at a time, echoed by the poller below
			for i := range rounds {
				if _, err := p.a.qp.PostSend([]verbs.SendWR{signaled(uint64(i), driver.OpSend)}); err != nil {
					return err
				}
				if wc, err := p.a.sq.wait(ctx); err != nil || wc.Status != driver.StatusSuccess {
					return fmt.Errorf("send %d: %v %w", i, wc.Status, err)
				}
				if wc, err := p.a.rq.wait(ctx); err != nil || wc.Status != driver.StatusSuccess {
					return fmt.Errorf("echo %d: %v %w", i, wc.Status, err)
				}
				if _, err := p.a.qp.PostRecv([]verbs.RecvWR{{}}); err != nil {
					return err
				}
			}
			return nil
		})
	}
	g.Go(func() error {
		received, echoed := make([]int, qps), make([]int, qps)
		for left := 2 * qps * rounds; left > 0; left-- {
			wc, err := shared.wait(ctx)
			if err != nil {
				return fmt.Errorf("poller with %d to come: %w", left, err)
			}
			i, ok := byQPN[wc.QPN]
			if !ok || wc.Status != driver.StatusSuccess {
				return fmt.Errorf("completion of QP %d: %v", wc.QPN, wc.Status)
			}
			b := pairs[i].b
			if wc.Opcode == driver.OpSend {
				if int(wc.WRID) != echoed[i] {
					return fmt.Errorf("QP %d: echo %d completed, want %d", i, wc.WRID, echoed[i])
				}
				echoed[i]++
				continue
			}
			if int(wc.WRID) != received[i]%depth {
				return fmt.Errorf("QP %d: receive %d completed, want %d", i, wc.WRID, received[i]%depth)
			}
			if _, err := b.qp.PostRecv([]verbs.RecvWR{{WRID: wc.WRID}}); err != nil {
				return err
			}
			if _, err := b.qp.PostSend([]verbs.SendWR{signaled(uint64(received[i]), driver.OpSend)}); err != nil {
				return err
			}
			received[i]++
		}
		return nil
	})
	require.NoError(e, g.Wait())
}

// concurrentPostAndPoll has goroutines post on one QP while others poll its
// CQs: every request completes once.
func concurrentPostAndPoll(e *env) {
	const posters, pollers, depth = 4, 3, 64
	per := e.short(2000)
	p := e.pair(pairOpts{depth: depth})
	src, dst := p.a.mem(posters*64, 0), p.b.mem(posters*64, accWrite)
	for i := range posters {
		fill(src.b[i*64:][:64], uint64(i))
	}
	var once [posters][]atomic.Int32
	for i := range once {
		once[i] = make([]atomic.Int32, per)
	}
	left := atomic.Int64{}
	left.Store(int64(posters * per))
	g, ctx := errgroup.WithContext(e.ctx)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for i := range posters {
		g.Go(func() error {
			for k := 0; k < per; {
				wr := dst.to(signaled(uint64(i)<<32|uint64(k), driver.OpWrite, src.sge(i*64, 64)), i*64)
				n, err := p.a.qp.PostSend([]verbs.SendWR{wr})
				if k += n; err != nil {
					if err := queueFull(ctx, err); err != nil {
						return err
					}
				}
			}
			return nil
		})
	}
	for range pollers {
		g.Go(func() error {
			var wcs [5]verbs.WC
			for left.Load() > 0 {
				n, err := p.a.sq.cq.Poll(wcs[:])
				if err != nil {
					return err
				}
				for _, wc := range wcs[:n] {
					if err := want(wc.Status == driver.StatusSuccess, "%d: %v", wc.WRID, wc.Status); err != nil {
						return err
					}
					if times := once[wc.WRID>>32][uint32(wc.WRID)].Add(1); times != 1 {
						return fmt.Errorf("%d completed %d times", wc.WRID, times)
					}
					left.Add(-1)
				}
				if ctx.Err() != nil {
					return ctx.Err()
				}
				if n == 0 {
					runtime.Gosched()
				}
			}
			return nil
		})
	}
	require.NoError(e, g.Wait())
	require.Zero(e, src.mr.InFlight())
	p.a.fence(p.b)
	for i := range posters {
		require.NoError(e, isPattern(dst.b[i*64:][:64], uint64(i)))
	}
}

func queueFull(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	runtime.Gosched()
	return want(errors.Is(err, verbs.ErrQueueFull), "%v", err)
}

// registerCycles registers and deregisters while messages go by, some of them
// from and to the memory that comes and goes.
func registerCycles(e *env) {
	const n, workers = 9000, 3
	cycles := 10_000 // also with -test.short
	if e.cfg.Quick || raceEnabled {
		cycles /= 10
	}
	p := e.pair(pairOpts{depth: 8})
	src, dst, window := p.a.mem(n, 0), p.b.mem(n, accLocal), p.b.mem(n, accRemote)
	fill(src.b, 1)
	g, ctx := errgroup.WithContext(e.ctx)
	var cycling atomic.Int32
	cycling.Store(workers)
	for w := range workers {
		pd := []*verbs.PD{p.a.pd, p.b.pd, p.b.pd}[w]
		g.Go(func() error {
			defer cycling.Add(-1)
			mem := make([]byte, 3*4096+100)
			last := uint32(0)
			for i := range cycles {
				off := rand.IntN(4096)
				mr, err := pd.RegMR(mem[off:off+1+rand.IntN(8192)], accLocal)
				if err != nil {
					return err
				}
				if mr.LKey() == last {
					return fmt.Errorf("key %#x came back at once", last)
				}
				last = mr.LKey()
				if err := mr.Deregister(); err != nil {
					return fmt.Errorf("cycle %d: %w", i, err)
				}
				if ctx.Err() != nil {
					return ctx.Err()
				}
			}
			return nil
		})
	}
	g.Go(func() error {
		for i := 0; cycling.Load() > 0; i++ {
			// Memory of its own for every message.
			b := make([]byte, n)
			copy(b, src.b)
			mr, err := p.a.pd.RegMR(b, accLocal)
			if err != nil {
				return err
			}
			if _, err := p.b.qp.PostRecv([]verbs.RecvWR{{WRID: 2, SGEs: []verbs.SGE{dst.sge(0, n)}}}); err != nil {
				return err
			}
			_, err = p.a.qp.PostSend([]verbs.SendWR{
				window.to(signaled(1, driver.OpWrite, verbs.SGE{MR: mr, Length: n}), 0),
				signaled(2, driver.OpSend, verbs.SGE{MR: mr, Length: n}),
			})
			if err != nil {
				return err
			}
			for _, x := range []struct {
				q    *queue
				wrid uint64
				op   verbs.Opcode
			}{{p.b.rq, 2, driver.OpRecv}, {p.a.sq, 1, driver.OpWrite}, {p.a.sq, 2, driver.OpSend}} {
				wc, err := x.q.wait(ctx)
				if err != nil {
					return err
				}
				if err := good(wc, x.wrid, x.op); err != nil {
					return err
				}
			}
			if err := mr.Deregister(); err != nil {
				return err
			}
			if err := isPattern(dst.b, 1); err != nil {
				return fmt.Errorf("message %d: %w", i, err)
			}
			if err := isPattern(window.b, 1); err != nil {
				return fmt.Errorf("write %d: %w", i, err)
			}
		}
		return nil
	})
	require.NoError(e, g.Wait())
}

// connectCycles connects, talks and closes in waves, each connection ended in
// another way.
func connectCycles(e *env) {
	for range e.short(10) {
		g, _ := errgroup.WithContext(e.ctx)
		for range 8 {
			p := e.pair(pairOpts{depth: 8})
			m, window := p.a.mem(50_000, 0), p.b.mem(50_000, accWrite)
			how, pause := rand.IntN(5), rand.IntN(2000)
			g.Go(func() error {
				for i := range uint64(6) {
					if _, err := p.a.qp.PostSend([]verbs.SendWR{window.to(signaled(i, driver.OpWrite, m.sge(0, 50_000)), 0)}); err != nil {
						return err
					}
				}
				for range pause {
					runtime.Gosched()
				}
				var err error
				switch how {
				case 0:
					err = p.a.qp.Disconnect()
				case 1:
					err = p.b.qp.Disconnect()
				case 2:
					err = p.a.qp.SetError()
				case 3:
					err = closeQP(p.b.qp)
				}
				if err != nil {
					return fmt.Errorf("way %d: %w", how, err)
				}
				if err := closeQP(p.a.qp); err != nil {
					return err
				}
				select {
				case <-p.b.qp.Disconnected():
				case <-e.ctx.Done():
					return fmt.Errorf("way %d: the other end has not noticed", how)
				}
				return closeQP(p.b.qp)
			})
		}
		require.NoError(e, g.Wait())
	}
}
