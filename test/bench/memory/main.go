//go:build linux

// Command memory shows what registered memory costs: registration by size and
// pages, deregistration of many regions, memory per message by three ways,
// growth under load. It uses the user-space adapter with real page pinning
// (mlock) and writes a Markdown table for each, and an SVG plot beside it.
//
//	go run ./memory -out ../../docs/bench
package main

import (
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"
)

var (
	out   = flag.String("out", "", "folder for memory.md and the plots, where with -only the one table is replaced; none: the tables go to standard output")
	only  = flag.String("only", "", "one table: registration, deregistration, message, growth, cost, ratios")
	large = flag.Int64("max", 1<<30, "largest region of the registration table, in bytes")
	runs  = flag.Int("runs", 5, "runs of each measurement; the table has the median and the least")
)

// table is one result.
type table struct {
	name, title string
	note        string
	head        []string
	rows        [][]string
	plot        *plot // nil: none
}

func (t *table) row(cells ...any) {
	r := make([]string, len(cells))
	for i, c := range cells {
		r[i] = fmt.Sprint(c)
	}
	t.rows = append(t.rows, r)
}

// text is the table as a section of memory.md.
func (t *table) text(plots bool) string {
	var w strings.Builder
	fmt.Fprintf(&w, "## %s\n\nBy `go run ./memory %s`; %s.\n\n", t.title, strings.Join(os.Args[1:], " "), when())
	if t.note != "" {
		fmt.Fprintf(&w, "%s\n\n", t.note)
	}
	fmt.Fprintf(&w, "| %s |\n|%s\n", strings.Join(t.head, " | "), strings.Repeat("---|", len(t.head)))
	for _, r := range t.rows {
		fmt.Fprintf(&w, "| %s |\n", strings.Join(r, " | "))
	}
	if plots && t.plot != nil {
		fmt.Fprintf(&w, "\n![%s](memory-%s.svg)\n", t.title, t.name)
	}
	return w.String()
}

// merge puts sections into the text of memory.md, in place of those of the same
// titles, or at its end.
func merge(old string, tables []*table) string {
	sections := strings.Split(old, "\n## ")
	sections[0] = fmt.Sprintf("# What registered memory costs\n\nIn `test/bench`, on %s. Tables are made at different times: each says when, and how\nbusy the machine was.\n", machine())
next:
	for _, t := range tables {
		text := strings.TrimPrefix(t.text(true), "## ")
		for i, s := range sections {
			if i > 0 && strings.HasPrefix(s, t.title+"\n") {
				sections[i] = text
				continue next
			}
		}
		sections = append(sections, text)
	}
	return strings.Join(sections, "\n## ")
}

func main() {
	flag.Parse()
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "memory:", err)
		os.Exit(1)
	}
}

func run() error {
	all := []struct {
		name string
		f    func() (*table, error)
	}{
		{"registration", registration}, {"deregistration", deregistration}, {"message", messages}, {"growth", growth}, {"cost", cost}, {"ratios", ratios},
	}
	var tables []*table
	for _, b := range all {
		if *only != b.name && (*only != "" || b.name == "ratios") {
			continue
		}
		begin := time.Now()
		t, err := b.f()
		if err != nil {
			return fmt.Errorf("%s: %w", b.name, err)
		}
		t.name = b.name
		fmt.Fprintf(os.Stderr, "%s: %v\n", b.name, time.Since(begin).Round(time.Millisecond))
		tables = append(tables, t)
	}
	if len(tables) == 0 {
		return fmt.Errorf("no table %q", *only)
	}
	if *out == "" {
		for _, t := range tables {
			fmt.Println(t.text(false))
		}
		return nil
	}
	if err := os.MkdirAll(*out, 0o755); err != nil {
		return err
	}
	name := filepath.Join(*out, "memory.md")
	old, err := os.ReadFile(name)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.WriteFile(name, []byte(merge(string(old), tables)), 0o644); err != nil {
		return err
	}
	for _, t := range tables {
		if t.plot != nil {
			if err := os.WriteFile(filepath.Join(*out, "memory-"+t.name+".svg"), t.plot.svg(), 0o644); err != nil {
				return err
			}
		}
	}
	return nil
}

// machine describes where it ran.
func machine() string {
	cpu := "unknown processor"
	if b, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		for line := range strings.Lines(string(b)) {
			if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
				cpu = strings.TrimSpace(value)
				break
			}
		}
	}
	kernel := ""
	if b, err := os.ReadFile("/proc/sys/kernel/osrelease"); err == nil {
		kernel = ", Linux " + strings.TrimSpace(string(b))
	}
	return fmt.Sprintf("%d cores of %s%s, %s/%s, %s", runtime.NumCPU(), cpu, kernel, runtime.GOOS, runtime.GOARCH, runtime.Version())
}

// when says when a table was made, and how busy the machine was.
func when() string {
	s := time.Now().UTC().Format("2006-01-02")
	if b, err := os.ReadFile("/proc/loadavg"); err == nil {
		s += ", load average at the end " + strings.Join(strings.Fields(string(b))[:1], " ")
	}
	return s
}
