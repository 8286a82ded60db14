package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"regexp"
	"runtime"
	"slices"
	"strings"
)

const (
	kib = 1 << 10
	mib = 1 << 20
)

// options of a run; children get them too.
type options struct {
	device  string
	addr    string
	profile string // directory for CPU profiles; empty: none
	credits int    // of streams; 0: what conn has by default
}

// pairing is one figure of ours and its counterpart.
type pairing struct {
	name   string
	unit   string
	scale  float64 // from what the functions return to unit
	less   bool    // less is better
	bar    map[string]float64
	ours   func(o *options) (float64, error)
	theirs func(o *options) (float64, error)
}

func pairings(short bool) []pairing {
	n := func(n int) int {
		if short {
			return max(n/50, 20)
		}
		return n
	}
	stream := func(name, kind string, size, count int, bar map[string]float64) pairing {
		return pairing{
			name: name, unit: "MB/s", scale: 1e-6, bar: bar,
			ours:   func(o *options) (float64, error) { return stream(o, kind, size, n(count)) },
			theirs: func(o *options) (float64, error) { return perftestBW(o, "ib_send_bw", size, n(count)) },
		}
	}
	ping := func(name string, poll bool, bar map[string]float64) pairing {
		return pairing{
			name: name, unit: "us", scale: 1e6, less: true, bar: bar,
			ours:   func(o *options) (float64, error) { return ping(o, poll, n(2000)) },
			theirs: func(o *options) (float64, error) { return perftestLat(o, poll, n(2000)) },
		}
	}
	return []pairing{
		stream("stream of 64 KiB", eager, 64*kib, 2000, map[string]float64{"rxe": 0.90, "siw": 0.85}),
		stream("stream of 1 MiB, in pieces", eager, mib, 150, nil), // beside the next: the same bytes, the other way
		stream("stream of 1 MiB, fetched", fetched, mib, 150, map[string]float64{"rxe": 0.95, "siw": 0.85}),
		{
			name: "READ of 1 MiB", unit: "MB/s", scale: 1e-6, bar: map[string]float64{"rxe": 0.95, "siw": 0.85},
			ours:   func(o *options) (float64, error) { return read(o, mib, n(150)) },
			theirs: func(o *options) (float64, error) { return perftestBW(o, "ib_read_bw", mib, n(150)) },
		},
		ping("ping of 64 B, polling", true, map[string]float64{"rxe": 1.5}),
		ping("ping of 64 B, with events", false, nil),
	}
}

func main() {
	var o options
	var runs int
	var only, role string
	var short, must bool
	flag.StringVar(&o.device, "device", "", "an RDMA device")
	flag.StringVar(&o.addr, "addr", "", "IP address of its interface")
	flag.StringVar(&o.profile, "profile", "", "directory for CPU profiles of our own runs")
	flag.IntVar(&o.credits, "credits", 0, "receive buffers of our streams (default conn's)")
	flag.StringVar(&only, "only", "", "regular expression of the figures wanted")
	flag.StringVar(&role, "child", "", "be the other end of this kind (for perf itself)")
	flag.IntVar(&runs, "runs", 5, "runs of either, alternating")
	flag.BoolVar(&short, "short", false, "runs of a few messages")
	flag.BoolVar(&must, "must", false, "a bar that is missed is an error")
	flag.Parse()
	if o.device == "" || o.addr == "" || flag.NArg() > 0 || runs < 1 {
		flag.Usage()
		os.Exit(2)
	}
	var err error
	if role != "" {
		err = profiled(&o, role+"-server", func() error { return serve(&o, role) })
	} else {
		var missed []string
		missed, err = compare(&o, runs, only, short)
		if err == nil && must && len(missed) > 0 {
			err = fmt.Errorf("bars missed: %s", strings.Join(missed, ", "))
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "perf:", err)
		os.Exit(1)
	}
}

// compare runs what matches only, which must be something, prints the table, and returns the names of the bars that are
// missed, which are marked.
func compare(o *options, runs int, only string, short bool) (missed []string, err error) {
	match, err := regexp.Compile(only)
	if err != nil {
		return nil, err
	}
	ps := slices.DeleteFunc(pairings(short), func(p pairing) bool { return !match.MatchString(p.name) })
	if len(ps) == 0 {
		return nil, fmt.Errorf("no figure matches %q", only)
	}
	kind := regexp.MustCompile(`^[a-z]+`).FindString(o.device)
	fmt.Printf("%s, %d alternating runs, %d processors, %s\n", o.device, runs, runtime.NumCPU(), runtime.Version())
	rows := []string{"| | ours | perftest | ratio | bar |", "|---|---|---|---|---|"}
	for _, p := range ps {
		ours, theirs, err := p.measure(o, runs)
		if err != nil {
			return nil, err
		}
		row, met := p.row(kind, ours, theirs)
		if !met {
			missed = append(missed, p.name)
		}
		rows = append(rows, row)
		fmt.Println(rows[len(rows)-1])
	}
	for _, r := range rows {
		fmt.Println(r)
	}
	return missed, nil
}

func (p *pairing) measure(o *options, runs int) (ours, theirs []float64, err error) {
	for i := range runs {
		a, err1 := p.ours(o)
		b, err2 := p.theirs(o)
		for tries := 0; errors.Is(err2, errNoFigure) && tries < 5; tries++ {
			b, err2 = p.theirs(o)
		}
		if err := errors.Join(err1, err2); err != nil {
			return nil, nil, fmt.Errorf("%s, run %d: %w", p.name, i, err)
		}
		fmt.Printf("%s: %.1f and %.1f %s\n", p.name, a*p.scale, b*p.scale, p.unit)
		ours, theirs = append(ours, a), append(theirs, b)
	}
	return ours, theirs, nil
}

// row is the line of the table, and whether the bar of this kind of device, if there is one, is met.
func (p *pairing) row(kind string, ours, theirs []float64) (row string, met bool) {
	a, b := median(ours), median(theirs)
	bar, mark := "", ""
	met = true
	if limit, ok := p.bar[kind]; ok {
		sign := ">="
		met = a/b >= limit
		if p.less {
			sign, met = "<=", a/b <= limit
		}
		if !met {
			mark = " (missed)"
		}
		bar = fmt.Sprintf("%s %.2f%s", sign, limit, mark)
	}
	spread := func(v []float64) string {
		return fmt.Sprintf("%.1f %s (%.1f to %.1f)", median(v)*p.scale, p.unit, slices.Min(v)*p.scale, slices.Max(v)*p.scale)
	}
	return fmt.Sprintf("| %s | %s | %s | %.2f | %s |", p.name, spread(ours), spread(theirs), a/b, bar), met
}

func median(v []float64) float64 {
	v = slices.Clone(v)
	slices.Sort(v)
	n := len(v)
	return (v[(n-1)/2] + v[n/2]) / 2
}
