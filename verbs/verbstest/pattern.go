package verbstest

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
)

// period is prime, so that no misplacement by a power of two, a page or a
// segment looks right.
const period = 65521

// fill writes the pattern of seed.
func fill(b []byte, seed uint64) {
	var block [period + 7]byte
	r := rand.NewPCG(seed, 0x9e3779b97f4a7c15)
	n := min(len(b), period)
	for i := 0; i < n; i += 8 {
		binary.LittleEndian.PutUint64(block[i:], r.Uint64())
	}
	for i := 0; i < len(b); i += period {
		copy(b[i:], block[:period])
	}
}

// isPattern says where b is not the pattern of seed.
func isPattern(b []byte, seed uint64) error {
	expect := make([]byte, len(b))
	fill(expect, seed)
	return sameBytes(b, expect)
}

func sameBytes(got, expect []byte) error {
	if bytes.Equal(got, expect) {
		return nil
	}
	if len(got) != len(expect) {
		return fmt.Errorf("%d bytes, want %d", len(got), len(expect))
	}
	bad, first := 0, -1
	for i := range got {
		if got[i] != expect[i] {
			if first < 0 {
				first = i
			}
			bad++
		}
	}
	return fmt.Errorf("%d of %d bytes differ, the first at %d: %#02x, want %#02x", bad, len(got), first, got[first], expect[first])
}
