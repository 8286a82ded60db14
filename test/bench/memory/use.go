//go:build linux

package main

import (
	"context"
	"fmt"
	"net"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/argonaut-rdma/argonaut/buffer"
	"github.com/argonaut-rdma/argonaut/verbs"
)

func alignedTo(mem []byte, align uintptr) uintptr {
	return -uintptr(unsafe.Pointer(unsafe.SliceData(mem))) & (align - 1)
}

// percentile of sorted durations.
func percentile(ds []time.Duration, p float64) time.Duration {
	return ds[min(len(ds)-1, int(p*float64(len(ds))))]
}

// churn gets and releases buffers on a goroutine until stop is closed.
func churn(a *buffer.Arena, stop <-chan struct{}, wg *sync.WaitGroup) {
	wg.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			if b, ok := a.TryGet(4<<10<<(i%5), buffer.Anonymous); ok {
				b.Bytes()[0] = 1
				b.Release()
			}
		}
	})
}

// messages measures a WRITE with its memory got in three ways, beside a
// goroutine that uses the same arena.
func messages() (*table, error) {
	t := &table{
		title: "Memory per message: registered each time, from a pool, from a super-region",
		note: "Microseconds to get memory, WRITE it to a peer over TCP on loopback, poll the completion and give the memory back, while another goroutine " +
			"gets and releases buffers. Pinned with mlock. The three alternate.",
		head: []string{"message", "memory", "p50", "p99", "p99.9"},
		plot: &plot{title: "Get memory, WRITE, give it back: p50", x: "message", y: "us"},
	}
	pair, err := newPair()
	if err != nil {
		return nil, err
	}
	defer pair.close()
	ctx := context.Background()
	pool, err := buffer.New(buffer.Config{Budget: 64 << 20, Prefault: true})
	if err != nil {
		return nil, err
	}
	cfg := buffer.SuperRegions(1 << 30)
	cfg.Budget = 64 << 20 // of one region of that size
	super, err := buffer.New(cfg)
	if err != nil {
		return nil, err
	}
	for _, a := range []*buffer.Arena{pool, super} {
		if err := a.Attach(ctx, pair.pd); err != nil {
			return nil, err
		}
	}
	fresh, unmap, err := mapped(1<<20, false)
	if err != nil {
		return nil, err
	}
	defer unmap()
	clear(fresh)
	ways := []string{"registered each time", "pool", "super-region"}
	for size := 4 << 10; size <= 1<<20; size *= 4 {
		once := func(way string) error {
			if way == ways[0] {
				mr, err := pair.pd.RegMR(fresh[:size], verbs.AccessLocalWrite)
				if err != nil {
					return err
				}
				if err := pair.write(verbs.SGE{MR: mr, Length: uint32(size)}); err != nil {
					return err
				}
				return mr.Deregister()
			}
			a := pool
			if way == ways[2] {
				a = super
			}
			b, err := a.Get(ctx, size, buffer.Anonymous)
			if err != nil {
				return err
			}
			defer b.Release()
			return pair.write(b.SGE(pair.pd))
		}
		stop := make(chan struct{})
		var wg sync.WaitGroup
		churn(pool, stop, &wg)
		took := map[string][]time.Duration{}
		for range 6 * *runs { // in turns
			for _, way := range ways {
				for range 100 {
					begin := time.Now()
					if err := once(way); err != nil {
						return nil, err
					}
					took[way] = append(took[way], time.Since(begin))
				}
			}
		}
		close(stop)
		wg.Wait()
		for _, way := range ways {
			ds := took[way]
			slices.Sort(ds)
			p50 := percentile(ds, 0.5)
			t.row(bytesName(int64(size)), way, us(p50), us(percentile(ds, 0.99)), us(percentile(ds, 0.999)))
			t.plot.add(way, float64(size), micros(p50))
		}
	}
	for _, a := range []*buffer.Arena{pool, super} {
		if err := a.Close(ctx); err != nil {
			return nil, err
		}
	}
	return t, nil
}

// growth measures Get and Release while the arena grows and shrinks, and while
// it does not. Most of the longest stalls are the machine's: runs alternate.
func growth() (*table, error) {
	t := &table{
		title: "Growth and shrink under load",
		note: "Microseconds for Get, a write to the first byte and Release of 64 KiB, one goroutine, while another takes 192 buffers of 1 MiB, one each 2 ms or " +
			"so, and gives them back, again and again. Growing: from 64 MiB by regions of 16 MiB at a low-water mark of 32 MiB, each touched and pinned, and " +
			"shrinking again. Fixed: 256 MiB from the start. Runs alternate.",
		plot: &plot{title: "Get, write, Release while an arena grows: medians of the runs", x: "", y: "us", names: []string{"p50", "p99", "p99.9", "longest"}},
		head: []string{"arena", "run", "p50", "p99", "p99.9", "longest", "regions added", "given up", "slowest addition, us"},
	}
	points := []float64{0.5, 0.99, 0.999, 1}
	took := map[string][][]time.Duration{} // by arena and point, of each run
	for r := range *runs {
		for _, growing := range []bool{false, true} {
			pd, done, err := pinning()
			if err != nil {
				return nil, err
			}
			cfg := buffer.Config{Budget: 256 << 20, RegionSize: 16 << 20, Prefault: true, NoHugePages: true}
			name := "fixed"
			if growing {
				cfg.Initial, cfg.LowWater, cfg.ShrinkAfter, name = 64<<20, 32<<20, 20*time.Millisecond, "growing"
			}
			a, err := buffer.New(cfg)
			if err != nil {
				return nil, err
			}
			ctx := context.Background()
			if err := a.Attach(ctx, pd); err != nil {
				return nil, err
			}
			var stop atomic.Bool
			var wg sync.WaitGroup
			wg.Go(func() {
				for !stop.Load() {
					var bs []buffer.RDMABuffer
					for len(bs) < 192 && !stop.Load() {
						if b, err := a.Get(ctx, 1<<20, buffer.Anonymous); err == nil {
							bs = append(bs, b)
						}
						time.Sleep(time.Millisecond)
					}
					for _, b := range bs {
						b.Release()
					}
					time.Sleep(100 * time.Millisecond) // so that regions are idle
				}
			})
			var ds []time.Duration
			for begin := time.Now(); time.Since(begin) < 2*time.Second; {
				at := time.Now()
				b, err := a.Get(ctx, 64<<10, buffer.Anonymous)
				if err != nil {
					return nil, err
				}
				b.Bytes()[0] = 1
				b.Release()
				ds = append(ds, time.Since(at))
			}
			stop.Store(true)
			wg.Wait()
			st := a.Stats()
			slices.Sort(ds)
			if took[name] == nil {
				took[name] = make([][]time.Duration, len(points))
			}
			for i, p := range points {
				took[name][i] = append(took[name][i], percentile(ds, p))
			}
			t.row(name, r+1, us2(percentile(ds, 0.5)), us2(percentile(ds, 0.99)), us2(percentile(ds, 0.999)), us(ds[len(ds)-1]), st.Grown, st.Shrunk, us(st.SlowestGrow))
			if err := a.Close(ctx); err != nil {
				return nil, err
			}
			if err := done(); err != nil {
				return nil, err
			}
		}
	}
	row := []any{"growing less fixed", "median of runs"}
	for i := range points {
		more := make([]time.Duration, *runs)
		for r := range more {
			more[r] = took["growing"][i][r] - took["fixed"][i][r]
		}
		m, _ := median(more)
		row = append(row, us2(m))
		for _, name := range []string{"fixed", "growing"} {
			m, _ := median(slices.Clone(took[name][i]))
			t.plot.add(name, float64(i), micros(m))
		}
	}
	t.row(append(row, "", "", "")...)
	return t, nil
}

// cost compares a Get and Release with a registration, and looks at what
// Deregister's look at the queues costs.
func cost() (*table, error) {
	t := &table{
		title: "What a buffer costs",
		note: "Nanoseconds, least and median of 400 runs, so that other programs on the machine count less. With the portable " +
			"fallback of the caches, and in turns: `go test ./buffer -run '^$' -bench Cost -benchtime 1x -v`.",
		head: []string{"what", "least", "median"},
	}
	ctx := context.Background()
	many := func(name string, n int, f func(n int)) time.Duration {
		var ds []time.Duration
		for range 400 {
			begin := time.Now()
			f(n)
			ds = append(ds, time.Since(begin)/time.Duration(n))
		}
		m, l := median(ds)
		t.row(name, l.Nanoseconds(), m.Nanoseconds())
		return l
	}
	var word atomic.Uint64
	many("two compare-and-swaps, as many as a Get and Release have", 5000, func(n int) {
		for range n {
			w := word.Load()
			word.CompareAndSwap(w, w+1)
			word.CompareAndSwap(w+1, w)
		}
	})
	var get time.Duration
	for _, live := range []int{1, 100_000} {
		a, err := buffer.New(buffer.Config{Budget: 1 << 30})
		if err != nil {
			return nil, err
		}
		var held []buffer.RDMABuffer
		for range live {
			b, ok := a.TryGet(4<<10, buffer.Anonymous)
			if !ok {
				return nil, fmt.Errorf("no memory for %d buffers", live)
			}
			held = append(held, b)
		}
		pairs := func(n int) {
			for range n {
				if b, err := a.Get(ctx, 64<<10, buffer.Anonymous); err == nil {
					b.Release()
				}
			}
		}
		name := fmt.Sprintf("Get and Release of 64 KiB, %d live", live)
		l := many(name, 5000, pairs)
		if live == 1 {
			get = l
			t.row("allocations per Get and Release", testing.AllocsPerRun(1000, func() { pairs(1) }), "")
		}
		many(name+", 8 goroutines", 40_000, func(n int) {
			var wg sync.WaitGroup
			for range 8 {
				wg.Go(func() { pairs(n / 8) })
			}
			wg.Wait()
		})
		for _, b := range held {
			b.Release()
		}
		if err := a.Close(ctx); err != nil {
			return nil, err
		}
	}
	pd, done, err := pinning()
	if err != nil {
		return nil, err
	}
	defer done()
	mem, unmap, err := mapped(64<<10, false)
	if err != nil {
		return nil, err
	}
	defer unmap()
	clear(mem)
	var failed error
	reg := many("register and deregister 64 KiB, pinned", 20, func(n int) {
		for range n {
			mr, err := pd.RegMR(mem, verbs.AccessLocalWrite)
			if err == nil {
				err = mr.Deregister()
			}
			if err != nil {
				failed = err
			}
		}
	})
	if failed != nil {
		return nil, failed
	}
	t.row("that is how many times a Get and Release", fmt.Sprintf("%.0f", float64(reg)/float64(get)), "")
	for _, depth := range []int{16, 1024, 16384} {
		cq, err := pd.Device().CreateCQ(verbs.CQConfig{Depth: 2*depth + 16})
		if err != nil {
			return nil, err
		}
		qp, err := pd.CreateQP(verbs.QPConfig{SendCQ: cq, MaxSendWR: 16, MaxRecvWR: depth})
		if err != nil {
			return nil, err
		}
		mr, err := pd.RegMR(mem, verbs.AccessLocalWrite)
		if err != nil {
			return nil, err
		}
		for range depth {
			if _, err := qp.PostRecv([]verbs.RecvWR{{SGEs: []verbs.SGE{{MR: mr, Length: 64}}}}); err != nil {
				return nil, err
			}
		}
		many(fmt.Sprintf("in-use check of a region that %d receives name", depth), 5000, func(n int) {
			for range n {
				_ = mr.InFlight()
			}
		})
		if _, err := qp.Close(); err != nil {
			return nil, err
		}
		if err := cq.Close(); err != nil {
			return nil, err
		}
		if err := mr.Deregister(); err != nil {
			return nil, err
		}
	}
	return t, nil
}

// pair is a connection between two devices of this process; its initiator pins.
type pair struct {
	pd   *verbs.PD
	qp   *verbs.QP
	cq   *verbs.CQ
	sink *verbs.MR
	rkey *verbs.MR
	done []func() error
}

func (p *pair) close() {
	for i := len(p.done) - 1; i >= 0; i-- {
		if err := p.done[i](); err != nil {
			fmt.Println("memory: close:", err)
		}
	}
}

func newPair() (*pair, error) {
	p := &pair{}
	ctx := context.Background()
	end := func(pin bool) (*verbs.PD, *verbs.CQ, *verbs.QP, error) {
		dev, err := open(pin)
		if err != nil {
			return nil, nil, nil, err
		}
		p.done = append(p.done, dev.Close)
		pd, err := dev.AllocPD()
		if err != nil {
			return nil, nil, nil, err
		}
		p.done = append(p.done, pd.Close)
		cq, err := dev.CreateCQ(verbs.CQConfig{Depth: 256})
		if err != nil {
			return nil, nil, nil, err
		}
		p.done = append(p.done, cq.Close)
		qp, err := pd.CreateQP(verbs.QPConfig{SendCQ: cq})
		if err != nil {
			return nil, nil, nil, err
		}
		p.done = append(p.done, func() error { _, err := qp.Close(); return err })
		return pd, cq, qp, nil
	}
	peer, _, peerQP, err := end(false)
	peerDone := 4 // behind its device, PD and CQ, and unmap: it goes before those, and after its queue pair
	if err != nil {
		return nil, err
	}
	if p.pd, p.cq, p.qp, err = end(true); err != nil {
		return nil, err
	}
	ln, err := peer.Device().Listen(ctx, net.JoinHostPort(*addr, "0"))
	if err != nil {
		return nil, err
	}
	accepted := make(chan error, 1)
	go func() { // ends when the connection is made
		req, err := ln.Accept(ctx)
		if err == nil {
			err = req.Accept(ctx, peerQP, verbs.ConnParam{})
		}
		accepted <- err
	}()
	if _, err := p.qp.Connect(ctx, ln.Addr(), verbs.ConnParam{}); err != nil {
		return nil, err
	}
	if err := <-accepted; err != nil {
		return nil, err
	}
	if err := ln.Close(); err != nil {
		return nil, err
	}
	mem, unmap, err := mapped(1<<20, false)
	if err != nil {
		return nil, err
	}
	p.done = slices.Insert(p.done, 0, unmap)
	if !peer.Device().Caps().ScopedKeys {
		// Given up behind the queue pairs: see Caps.DeregBarrier.
		p.rkey, err = peer.RegMR(mem, verbs.AccessLocalWrite|verbs.AccessRemoteWrite)
		if err == nil {
			p.done = slices.Insert(p.done, peerDone, p.rkey.Deregister)
		}
		return p, err
	}
	if p.sink, err = peer.RegMR(mem, verbs.AccessLocalWrite); err != nil {
		return nil, err
	}
	p.done = append(p.done, p.sink.Deregister)
	if p.rkey, err = p.sink.Scope(peerQP, 0, 1<<20, verbs.AccessRemoteWrite); err != nil {
		return nil, err
	}
	p.done = append(p.done, p.rkey.Deregister)
	return p, nil
}

// write moves one piece of memory to the peer and waits for the completion.
func (p *pair) write(e verbs.SGE) error {
	_, err := p.qp.PostSend([]verbs.SendWR{{
		Opcode: verbs.OpWrite, Flags: verbs.SendSignaled, SGEs: []verbs.SGE{e}, RemoteAddr: p.rkey.Addr(), RKey: p.rkey.RKey(),
	}})
	if err != nil {
		return err
	}
	var wcs [1]verbs.WC
	for {
		n, err := p.cq.Poll(wcs[:])
		if err != nil {
			return err
		}
		if n == 1 {
			return verbs.WCErr(&wcs[0])
		}
		runtime.Gosched()
	}
}
