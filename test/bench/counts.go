package main

import (
	"context"
	"fmt"
	"testing"

	"github.com/argonaut-rdma/argonaut/buffer"
)

const getAndRelease = "buffer: Get and Release of 4 KiB"

// arena prints the figure that is compared with nothing, the cost of an arena's
// Get and Release, and reports whether it meets its bar.
func arena() (met bool, err error) {
	a, err := buffer.New(buffer.Config{Budget: 64 * mib, Prefault: true})
	if err != nil {
		return false, err
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
	bar := "<= 50 ns"
	if met = r.NsPerOp() <= 50 && r.AllocsPerOp() == 0; !met {
		bar += " (missed)"
	}
	fmt.Printf("| %s | %d ns | | | %s | %d |\n", getAndRelease, r.NsPerOp(), bar, r.AllocsPerOp())
	return met, a.Close(ctx)
}
