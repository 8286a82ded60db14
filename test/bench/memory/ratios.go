//go:build linux

package main

import (
	"context"
	"flag"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/argonaut-rdma/argonaut/buffer"
	"github.com/argonaut-rdma/argonaut/verbs"
	"github.com/argonaut-rdma/argonaut/verbs/ibverbs"
	"github.com/argonaut-rdma/argonaut/verbs/iwarp"
)

var (
	device = flag.String("device", "", "for ratios: an RDMA device of the kernel, with -tags ibverbs, instead of the user-space adapter with mlock")
	addr   = flag.String("addr", "127.0.0.1", "for ratios: an IP address of its interface")
)

// open opens the device that -device names.
func open(pin bool) (*verbs.Device, error) {
	if *device == "" {
		return iwarp.Open(iwarp.Config{Pin: pin})
	}
	return ibverbs.Open(ibverbs.Config{Device: *device, Addr: *addr})
}

// ratios sets medians of the same boot against each other, for devices under
// emulation, where nothing else means anything. What is compared alternates.
func ratios() (*table, error) {
	name := *device
	if name == "" {
		name = "the user-space adapter"
	}
	t := &table{
		title: "Ratios on " + name,
		note:  fmt.Sprintf("Ratios of medians of %d alternating runs.", *runs),
		head:  []string{"what", "to", "ratio"},
	}
	dev, err := open(true)
	if err != nil {
		return nil, err
	}
	pd, err := dev.AllocPD()
	if err != nil {
		return nil, err
	}
	for _, part := range []func(*table, *verbs.PD) error{registrationRatios, deregistrationRatios, costRatio} {
		if err := part(t, pd); err != nil {
			return nil, err
		}
	}
	if err := pd.Close(); err != nil {
		return nil, err
	}
	if err := dev.Close(); err != nil {
		return nil, err
	}
	return t, messageRatios(t)
}

// medians runs each of fs in turns and returns their medians.
func medians(n int, fs ...func() (time.Duration, error)) ([]time.Duration, error) {
	took := make([][]time.Duration, len(fs))
	for range n {
		for i, f := range fs {
			d, err := f()
			if err != nil {
				return nil, err
			}
			took[i] = append(took[i], d)
		}
	}
	ms := make([]time.Duration, len(fs))
	for i := range took {
		ms[i], _ = median(took[i])
	}
	return ms, nil
}

func ratio(a, b time.Duration) string { return fmt.Sprintf("%.3g", float64(a)/float64(max(b, 1))) }

// registrationRatios compares sizes, and memory that has been touched with memory
// that has not.
func registrationRatios(t *table, pd *verbs.PD) error {
	sizes := []int64{4 << 10, 64 << 10, 1 << 20, 16 << 20}
	var fs []func() (time.Duration, error)
	var dereg [][]time.Duration
	warm, unmap, err := mapped(64<<10, false)
	if err != nil {
		return err
	}
	clear(warm)
	for i, size := range sizes {
		dereg = append(dereg, nil)
		for _, touched := range []bool{true, false} {
			fs = append(fs, func() (time.Duration, error) {
				mem, unmap, err := mapped(size, false)
				if err != nil {
					return 0, err
				}
				if touched {
					if err := unix.Madvise(mem, unix.MADV_POPULATE_WRITE); err != nil {
						return 0, err
					}
				}
				mr, err := pd.RegMR(warm, verbs.AccessLocalWrite) // whatever was before
				if err != nil {
					return 0, err
				}
				if err := mr.Deregister(); err != nil {
					return 0, err
				}
				begin := time.Now()
				if mr, err = pd.RegMR(mem, verbs.AccessLocalWrite); err != nil {
					return 0, err
				}
				took := time.Since(begin)
				begin = time.Now()
				if err := mr.Deregister(); err != nil {
					return 0, err
				}
				dereg[i] = append(dereg[i], time.Since(begin))
				return took, unmap()
			})
		}
	}
	ms, err := medians(*runs, fs...)
	if err != nil {
		return err
	}
	least, _ := median(dereg[0])
	for i, size := range sizes {
		d, _ := median(dereg[i])
		if i > 0 {
			t.row("register "+bytesName(size)+", touched", "register 4 KiB, touched", ratio(ms[2*i], ms[0]))
			t.row("deregister "+bytesName(size), "deregister 4 KiB", ratio(d, least))
		}
		t.row("register "+bytesName(size)+", cold", "the same, touched", ratio(ms[2*i+1], ms[2*i]))
	}
	return unmap()
}

// deregistrationRatios compares one after the other with many at a time, and with
// the batches of an arena.
func deregistrationRatios(t *table, pd *verbs.PD) error {
	const n, size = 256, 64 << 10
	mem, unmap, err := mapped(n*size, false)
	if err != nil {
		return err
	}
	if err := unix.Madvise(mem, unix.MADV_POPULATE_WRITE); err != nil {
		return err
	}
	with := func(workers int) func() (time.Duration, error) {
		return func() (time.Duration, error) {
			mrs := make([]*verbs.MR, n)
			for i := range mrs {
				mr, err := pd.RegMR(mem[i*size:][:size], verbs.AccessLocalWrite)
				if err != nil {
					return 0, err
				}
				mrs[i] = mr
			}
			begin := time.Now()
			var g errgroup.Group
			g.SetLimit(workers)
			for _, mr := range mrs {
				if workers > 1 {
					g.Go(mr.Deregister)
				} else if err := mr.Deregister(); err != nil {
					return 0, err
				}
			}
			err := g.Wait()
			return time.Since(begin), err
		}
	}
	batch := func() (time.Duration, error) {
		a, err := buffer.New(buffer.Config{Budget: n * size, RegionSize: size, Classes: []int{4 << 10, size}, NoHugePages: true, Prefault: true})
		if err != nil {
			return 0, err
		}
		if err := a.Attach(context.Background(), pd); err != nil {
			return 0, err
		}
		begin := time.Now()
		if err := a.Detach(context.Background(), pd); err != nil {
			return 0, err
		}
		took := time.Since(begin)
		return took, a.Close(context.Background())
	}
	ms, err := medians(*runs, with(1), with(2), with(8), batch)
	if err != nil {
		return err
	}
	for i, how := range []string{"with 2 workers", "with 8 workers", "by Arena.Detach"} {
		t.row(fmt.Sprintf("deregister %d regions of %s %s", n, bytesName(size), how), "one after the other", ratio(ms[i+1], ms[0]))
	}
	return unmap()
}

// costRatio is how much cheaper a buffer of an arena is than a registration.
func costRatio(t *table, pd *verbs.PD) error {
	const size = 64 << 10
	mem, unmap, err := mapped(size, false)
	if err != nil {
		return err
	}
	clear(mem)
	a, err := buffer.New(buffer.Config{Budget: 16 << 20})
	if err != nil {
		return err
	}
	ms, err := medians(10**runs, func() (time.Duration, error) {
		begin := time.Now()
		for range 20 {
			mr, err := pd.RegMR(mem, verbs.AccessLocalWrite)
			if err != nil {
				return 0, err
			}
			if err := mr.Deregister(); err != nil {
				return 0, err
			}
		}
		return time.Since(begin) / 20, nil
	}, func() (time.Duration, error) {
		begin := time.Now()
		for range 2000 {
			b, err := a.Get(context.Background(), size, buffer.Anonymous)
			if err != nil {
				return 0, err
			}
			b.Release()
		}
		return time.Since(begin) / 2000, nil
	})
	if err != nil {
		return err
	}
	t.row("register and deregister 64 KiB", "Get and Release 64 KiB", ratio(ms[0], ms[1]))
	if err := a.Close(context.Background()); err != nil {
		return err
	}
	return unmap()
}

// messageRatios compares a WRITE whose memory is registered for it with one from
// a pool and from a super-region.
func messageRatios(t *table) error {
	pair, err := newPair()
	if err != nil {
		return err
	}
	defer pair.close()
	ctx := context.Background()
	pool, err := buffer.New(buffer.Config{Budget: 32 << 20})
	if err != nil {
		return err
	}
	cfg := buffer.SuperRegions(1 << 30)
	cfg.Budget = 64 << 20
	super, err := buffer.New(cfg)
	if err != nil {
		return err
	}
	arenas := []*buffer.Arena{pool, super}
	for _, a := range arenas {
		if err := a.Attach(ctx, pair.pd); err != nil {
			return err
		}
	}
	fresh, unmap, err := mapped(1<<20, false)
	if err != nil {
		return err
	}
	clear(fresh)
	for _, size := range []int{4 << 10, 64 << 10, 1 << 20} {
		from := func(a *buffer.Arena) func() (time.Duration, error) {
			return func() (time.Duration, error) {
				begin := time.Now()
				b, err := a.Get(ctx, size, buffer.Anonymous)
				if err != nil {
					return 0, err
				}
				err = pair.write(b.SGE(pair.pd))
				b.Release()
				return time.Since(begin), err
			}
		}
		ms, err := medians(20**runs, func() (time.Duration, error) {
			begin := time.Now()
			mr, err := pair.pd.RegMR(fresh[:size], verbs.AccessLocalWrite)
			if err != nil {
				return 0, err
			}
			if err := pair.write(verbs.SGE{MR: mr, Length: uint32(size)}); err != nil {
				return 0, err
			}
			err = mr.Deregister()
			return time.Since(begin), err
		}, from(pool), from(super))
		if err != nil {
			return err
		}
		t.row("WRITE of "+bytesName(int64(size))+", registered for it", "from a pool", ratio(ms[0], ms[1]))
		t.row("WRITE of "+bytesName(int64(size))+" from a super-region", "from a pool", ratio(ms[2], ms[1]))
	}
	for _, a := range arenas {
		if err := a.Close(ctx); err != nil {
			return err
		}
	}
	return unmap()
}
