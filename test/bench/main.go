// Command bench prints one table: Argonaut against a raw Go TCP connection that
// does the same over loopback. Every figure is a ratio of medians from runs that
// alternate within this process, because the absolute speed of a shared machine
// changes from minute to minute.
//
//	cd test/bench && go run . [-runs 7] [-time 1s] [-only regexp]
package main

import (
	"flag"
	"fmt"
	"math"
	"os"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"time"
)

// row compares one thing with its raw counterpart. Rates are better when high,
// times when low; ratio is always ours over raw.
type row struct {
	name   string
	unit   string
	bar    float64 // what the ratio should reach or, of times, not exceed
	allocs float64 // what the allocations of a message stay below
	ours   func(d time.Duration) (result, error)
	raw    func(d time.Duration) (float64, error)
}

// What counts as no allocations of a message: what the whole process allocates
// meanwhile, timers and the collector's included, is shared by all messages of a
// run. Secure mode has more of it.
const (
	noAllocs       = 0.1
	noAllocsSecure = 0.5
)

const (
	kib = 1 << 10
	mib = 1 << 20
)

func rows() []row {
	var rs []row
	for _, s := range []struct {
		size int
		bar  float64
	}{{mib, 0.85}, {64 * kib, 0.75}} {
		for _, crc := range []bool{false, true} {
			raw := func(d time.Duration) (float64, error) { return tcpStream(s.size, crc, d) }
			with := "no checksum"
			if crc {
				with = "one CRC32C per end"
			}
			rs = append(rs,
				row{fmt.Sprintf("conn: stream of %s, %s", sizeName(s.size), with), "GB/s", s.bar, noAllocs,
					func(d time.Duration) (result, error) { return connStream(s.size, crc, d) }, raw},
				row{fmt.Sprintf("messenger: stream of %s, %s", sizeName(s.size), with), "GB/s", s.bar, noAllocs,
					func(d time.Duration) (result, error) { return messengerStream(s.size, crc, d) }, raw})
		}
	}
	rs = append(rs, secureRows()...)
	return append(rs,
		row{"conn: round trip of 64 B, two processes", "us", 1.60, noAllocs,
			connPing, tcpPing},
		row{"messenger: round trip of 64 B, two processes", "us", 1.60, noAllocs,
			messengerPing, tcpPing},
		row{"messenger: call of 64 B, two processes", "us", 1.60, noAllocs,
			messengerCall, tcpCall})
}

// judge says what the bar is, marked if the ratio or the allocations miss it.
func (r *row) judge(ratio, allocs float64) (bar string, met bool) {
	if r.unit == "us" {
		bar, met = fmt.Sprintf("<= %.2f", r.bar), ratio <= r.bar
	} else {
		bar, met = fmt.Sprintf(">= %.2f", r.bar), ratio >= r.bar
	}
	if met = met && allocs < r.allocs; !met {
		bar += " (missed)"
	}
	return bar, met
}

func main() {
	runs, each := 7, time.Second
	if os.Getenv("ARGONAUT_BENCH_SHORT") != "" {
		runs, each = 3, 200*time.Millisecond
	}
	flag.IntVar(&runs, "runs", runs, "runs of each side of a row")
	flag.DurationVar(&each, "time", each, "duration of one run")
	child := flag.String("serve", "", "be the answering end of round trips, of this kind")
	must := flag.Bool("must", false, "a bar that is missed is an error")
	only := flag.String("only", "", "rows whose name matches this expression")
	flag.Parse()
	if *child != "" {
		if err := serve(*child); err != nil {
			fmt.Fprintln(os.Stderr, "bench:", err)
			os.Exit(1)
		}
		return
	}
	missed, err := run(runs, each, *only)
	if err == nil && *must && len(missed) > 0 {
		err = fmt.Errorf("bars missed: %s", strings.Join(missed, "; "))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// run prints the table of the rows that match only, of which there must be one,
// and returns the names of those that miss their bars.
func run(runs int, each time.Duration, only string) (missed []string, err error) {
	match, err := regexp.Compile(only)
	if err != nil {
		return nil, err
	}
	rs := slices.DeleteFunc(rows(), func(r row) bool { return !match.MatchString(r.name) })
	withArena := match.MatchString(getAndRelease)
	if len(rs) == 0 && !withArena {
		return nil, fmt.Errorf("no row matches %q", only)
	}
	fmt.Printf("%s, %s/%s, %d processors; %d alternating runs of %v, medians (spread)\n\n",
		runtime.Version(), runtime.GOOS, runtime.GOARCH, runtime.GOMAXPROCS(0), runs, each)
	fmt.Println("| | argonaut | raw TCP | ratio | bar | allocations per message |")
	fmt.Println("|---|---|---|---|---|---|")
	for _, r := range rs {
		var ours, raw, allocs []float64
		for range runs {
			runtime.GC()
			o, err := r.ours(each)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", r.name, err)
			}
			runtime.GC()
			v, err := r.raw(each)
			if err != nil {
				return nil, fmt.Errorf("%s, raw: %w", r.name, err)
			}
			ours, raw, allocs = append(ours, o.value), append(raw, v), append(allocs, o.allocs)
		}
		ratio := median(ours) / median(raw)
		bar, met := r.judge(ratio, median(allocs))
		if !met {
			missed = append(missed, r.name)
		}
		fmt.Printf("| %s | %s | %s | %.2f | %s | %.2f |\n", r.name, figure(ours, r.unit), figure(raw, r.unit),
			ratio, bar, median(allocs))
	}
	if !withArena {
		return missed, nil
	}
	met, err := arena()
	if !met {
		missed = append(missed, getAndRelease)
	}
	return missed, err
}

func median(v []float64) float64 {
	s := slices.Sorted(slices.Values(v))
	return (s[(len(s)-1)/2] + s[len(s)/2]) / 2
}

func figure(v []float64, unit string) string {
	scale := map[string]float64{"GB/s": 1e-9, "us": 1e6}[unit]
	m := median(v)
	spread := (slices.Max(v) - slices.Min(v)) / 2 / m * 100
	return fmt.Sprintf("%.2f %s (±%.0f %%)", m*scale, unit, math.Round(spread))
}

func sizeName(n int) string {
	if n < mib {
		return fmt.Sprintf("%d KiB", n/kib)
	}
	return fmt.Sprintf("%d MiB", n/mib)
}
