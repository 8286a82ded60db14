//go:build linux

package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/argonaut-rdma/argonaut/buffer"
	"github.com/argonaut-rdma/argonaut/verbs"
	"github.com/argonaut-rdma/argonaut/verbs/iwarp"
)

// pinning opens a device that pins, and a PD of it.
func pinning() (*verbs.PD, func() error, error) {
	dev, err := iwarp.Open(iwarp.Config{Pin: true})
	if err != nil {
		return nil, nil, err
	}
	pd, err := dev.AllocPD()
	if err != nil {
		return nil, nil, err
	}
	return pd, func() error {
		if err := pd.Close(); err != nil {
			return err
		}
		return dev.Close()
	}, nil
}

// mapped is anonymous memory, of transparent huge pages if huge.
func mapped(n int64, huge bool) ([]byte, func() error, error) {
	const align = 2 << 20
	all, err := unix.Mmap(-1, 0, int(n)+align, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return nil, nil, err
	}
	mem := all[alignedTo(all, align):][:n]
	advice := unix.MADV_NOHUGEPAGE
	if huge {
		advice = unix.MADV_HUGEPAGE
	}
	if err := unix.Madvise(mem, advice); err != nil {
		return nil, nil, err
	}
	return mem, func() error { return unix.Munmap(all) }, nil
}

// median returns the median and the least.
func median(ds []time.Duration) (med, least time.Duration) {
	slices.Sort(ds)
	return ds[len(ds)/2], ds[0]
}

func us(d time.Duration) string { return fmt.Sprintf("%.1f", float64(d)/1e3) }

// us2 is us of what is short.
func us2(d time.Duration) string { return fmt.Sprintf("%.2f", float64(d)/1e3) }

func micros(d time.Duration) float64 { return float64(d) / 1e3 }

// registration measures by size, pages and whether they were touched.
func registration() (*table, error) {
	t := &table{
		title: "Registration and deregistration by size",
		note:  "Pinned with mlock. Cold: the pages are faulted in by the registration. Microseconds, median (least).",
		head:  []string{"size", "pages", "memory", "register", "deregister"},
		plot:  &plot{title: "Registration by size", x: "region", y: "us"},
	}
	pd, done, err := pinning()
	if err != nil {
		return nil, err
	}
	defer done()
	for size := int64(4 << 10); size <= *large; size *= 8 {
		for _, huge := range []bool{false, true} {
			if huge && size < 2<<20 {
				continue
			}
			for _, touched := range []bool{false, true} {
				var reg, dereg []time.Duration
				for range *runs {
					mem, unmap, err := mapped(size, huge)
					if err != nil {
						return nil, err
					}
					if touched {
						if err := unix.Madvise(mem, unix.MADV_POPULATE_WRITE); err != nil {
							return nil, err
						}
					}
					begin := time.Now()
					mr, err := pd.RegMR(mem, verbs.AccessLocalWrite)
					if err != nil {
						return nil, fmt.Errorf("%s: %w", bytesName(size), err)
					}
					reg = append(reg, time.Since(begin))
					begin = time.Now()
					if err := mr.Deregister(); err != nil {
						return nil, err
					}
					dereg = append(dereg, time.Since(begin))
					if err := unmap(); err != nil {
						return nil, err
					}
				}
				pages, memory := "4 KiB", "cold"
				if huge {
					pages = "huge"
				}
				if touched {
					memory = "touched"
				}
				rm, rl := median(reg)
				dm, dl := median(dereg)
				t.row(bytesName(size), pages, memory, us(rm)+" ("+us(rl)+")", us(dm)+" ("+us(dl)+")")
				t.plot.add(pages+", "+memory, float64(size), micros(rm))
				t.plot.add("deregister "+pages+", "+memory, float64(size), micros(dm))
			}
		}
	}
	return t, nil
}

// deregistration measures 1,024 regions by how many are in the device at a time.
func deregistration() (*table, error) {
	const n, size = 1024, 256 << 10
	t := &table{
		title: "Deregistration of 1,024 regions",
		note: fmt.Sprintf("Of %s each, pinned with mlock, touched. Milliseconds for all, median (least); the plot has the least. Runs alternate. The arena detaches in "+
			"batches with 8 workers on an ants pool. mlock and munlock take the lock of the process's address space: more workers do not make them "+
			"faster, and what is gained is that a call that is stuck holds up nobody.", bytesName(size)),
		head: []string{"how", "register all", "deregister all", "per region, us"},
		plot: &plot{title: "Deregistration of 1,024 regions", x: "workers", y: "ms"},
	}
	pd, done, err := pinning()
	if err != nil {
		return nil, err
	}
	defer done()
	mem, unmap, err := mapped(n*size, false)
	if err != nil {
		return nil, err
	}
	defer unmap()
	if err := unix.Madvise(mem, unix.MADV_POPULATE_WRITE); err != nil {
		return nil, err
	}
	ms := func(ds []time.Duration) string {
		m, l := median(ds)
		return fmt.Sprintf("%.2f (%.2f)", float64(m)/1e6, float64(l)/1e6)
	}
	whole := make([][]byte, n) // of one mapping
	for i := range whole {
		whole[i] = mem[i*size : (i+1)*size]
	}
	// fresh gives each region a mapping of its own, made anew, as those of an
	// arena are.
	fresh := func() (mems [][]byte, unmap func(), err error) {
		var all []func() error
		unmap = func() {
			for _, u := range all {
				_ = u() // of a benchmark that ends
			}
		}
		for range n {
			m, u, err := mapped(size, false)
			if err == nil {
				all = append(all, u)
				err = unix.Madvise(m, unix.MADV_POPULATE_WRITE)
			}
			if err != nil {
				unmap()
				return nil, nil, err
			}
			mems = append(mems, m)
		}
		return mems, unmap, nil
	}
	type way struct {
		how        string
		workers    int
		own        bool // each region has a mapping of its own
		reg, dereg []time.Duration
	}
	ways := []*way{{how: "one after the other", workers: 1}}
	for _, w := range []int{2, 4, 8, 16, 32} {
		ways = append(ways, &way{how: fmt.Sprintf("%d workers", w), workers: w})
	}
	ways = append(ways, &way{how: "8 workers, memory as an arena's", workers: 8, own: true})
	batch := &way{how: "Arena.Attach and Detach"}
	measure := func(w *way) error {
		mems, unmap := whole, func() {}
		if w.own {
			var err error
			if mems, unmap, err = fresh(); err != nil {
				return err
			}
		}
		defer unmap()
		each := func(f func(i int) error) (time.Duration, error) {
			begin := time.Now()
			var g errgroup.Group
			g.SetLimit(w.workers)
			for i := range n {
				if w.workers == 1 {
					if err := f(i); err != nil {
						return 0, err
					}
					continue
				}
				g.Go(func() error { return f(i) })
			}
			err := g.Wait()
			return time.Since(begin), err
		}
		mrs := make([]*verbs.MR, n)
		d, err := each(func(i int) (err error) {
			mrs[i], err = pd.RegMR(mems[i], verbs.AccessLocalWrite)
			return err
		})
		if err != nil {
			return err
		}
		w.reg = append(w.reg, d)
		if d, err = each(func(i int) error { return mrs[i].Deregister() }); err != nil {
			return err
		}
		w.dereg = append(w.dereg, d)
		return nil
	}
	measureBatch := func() error {
		a, err := buffer.New(buffer.Config{Budget: n * size, RegionSize: size, Classes: []int{4 << 10, size}, NoHugePages: true, Prefault: true})
		if err != nil {
			return err
		}
		ctx := context.Background()
		begin := time.Now()
		if err := a.Attach(ctx, pd); err != nil {
			return err
		}
		batch.reg = append(batch.reg, time.Since(begin))
		begin = time.Now()
		if err := a.Detach(ctx, pd); err != nil {
			return err
		}
		batch.dereg = append(batch.dereg, time.Since(begin))
		return a.Close(ctx)
	}
	for range *runs { // in turns, so that what else the machine does meets all
		for _, w := range ways {
			if err := measure(w); err != nil {
				return nil, err
			}
		}
		if err := measureBatch(); err != nil {
			return nil, err
		}
	}
	for i, w := range append(ways, batch) {
		reg, dereg := ms(w.reg), ms(w.dereg)
		m, l := median(w.dereg)
		t.row(w.how, reg, dereg, fmt.Sprintf("%.1f (%.1f)", micros(m)/n, micros(l)/n))
		if w.own || w == batch {
			continue
		}
		t.plot.names = append(t.plot.names, fmt.Sprint(w.workers))
		t.plot.add("deregister", float64(i), float64(l)/1e6)
		_, l = median(w.reg)
		t.plot.add("register", float64(i), float64(l)/1e6)
	}
	return t, nil
}
