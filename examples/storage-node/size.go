package main

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// byteSize is a number of bytes on the command line: 4096, 64KiB, 256MiB, 1.5GiB, 10MB.
type byteSize int64

var sizeUnits = []struct {
	suffix string
	bytes  float64
}{
	{"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}, {"TiB", 1 << 40},
	{"KB", 1e3}, {"MB", 1e6}, {"GB", 1e9}, {"TB", 1e12}, {"B", 1}, {"", 1},
}

// UnmarshalText implements encoding.TextUnmarshaler.
func (s *byteSize) UnmarshalText(text []byte) error {
	for _, u := range sizeUnits {
		number, ok := strings.CutSuffix(string(text), u.suffix)
		if !ok {
			continue
		}
		n, err := strconv.ParseFloat(number, 64)
		if err != nil || math.IsNaN(n) || n < 0 || n*u.bytes >= math.MaxInt64 {
			break
		}
		*s = byteSize(n * u.bytes)
		return nil
	}
	return fmt.Errorf("%q is no size: write for instance 4096, 64KiB, 256MiB or 1.5GiB", text)
}

func (s byteSize) String() string {
	for _, u := range []struct {
		suffix string
		bytes  int64
	}{{"TiB", 1 << 40}, {"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}} {
		switch n := int64(s); {
		case n < u.bytes:
		case n%u.bytes == 0:
			return fmt.Sprintf("%d%s", n/u.bytes, u.suffix)
		default:
			return fmt.Sprintf("%.1f%s", float64(n)/float64(u.bytes), u.suffix)
		}
	}
	return fmt.Sprintf("%dB", int64(s))
}

// byteRange is a range on the command line, as in HTTP: 0-1023 is the first 1024 bytes, 100- all from the 101st on.
type byteRange struct {
	offset int64
	length int64 // -1: to the end
	given  bool
}

// UnmarshalText implements encoding.TextUnmarshaler.
func (r *byteRange) UnmarshalText(text []byte) error {
	bad := fmt.Errorf("%q is no range: write the first and the last byte, as 0-1023, or 1024- for all from there on", text)
	first, last, ok := strings.Cut(string(text), "-")
	if !ok {
		return bad
	}
	from, err := strconv.ParseUint(first, 10, 63)
	if err != nil {
		return bad
	}
	*r = byteRange{offset: int64(from), length: -1, given: true}
	if last == "" {
		return nil
	}
	to, err := strconv.ParseUint(last, 10, 63)
	if err != nil || to < from || to-from == math.MaxInt64 {
		return bad
	}
	r.length = int64(to-from) + 1
	return nil
}
