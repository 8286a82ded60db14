package main

import (
	"context"
	"fmt"
	"regexp"
	"testing"

	"github.com/argonaut-rdma/argonaut/buffer"
)

// inProcess prints the figure that is compared with nothing: the cost of an
// arena's Get and Release.
func inProcess(match *regexp.Regexp) error {
	const name = "buffer: Get and Release of 4 KiB"
	if !match.MatchString(name) {
		return nil
	}
	a, err := buffer.New(buffer.Config{Budget: 64 * mib, Prefault: true})
	if err != nil {
		return err
	}
	owner := a.Owner("bench", 0)
	ctx := context.Background()
	r := testing.Benchmark(func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			buf, err := a.Get(ctx, 4*kib, owner)
			if err != nil {
				b.Fatal(err)
			}
			buf.Release()
		}
	})
	fmt.Printf("| %s | %d ns | | | <= 50 ns | %d |\n", name, r.NsPerOp(), r.AllocsPerOp())
	return a.Close(ctx)
}
