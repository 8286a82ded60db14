package messenger

import (
	"math/bits"
	"sync"
)

// scratch is memory for sealing and opening, off the arena, in powers of two, so
// that an idle connection holds none. It is not cleared: what is in it is
// overwritten before it is read.
var scratch [33]sync.Pool

// getScratch returns an empty slice of capacity n or more; putScratch takes it
// back.
func getScratch(n int) *[]byte {
	class := bits.Len(uint(max(n, 1) - 1))
	if class >= len(scratch) {
		b := make([]byte, 0, n)
		return &b
	}
	if b, ok := scratch[class].Get().(*[]byte); ok {
		*b = (*b)[:0]
		return b
	}
	b := make([]byte, 0, 1<<class)
	return &b
}

func putScratch(b *[]byte) {
	class := bits.Len(uint(cap(*b))) - 1
	if class >= 0 && class < len(scratch) {
		scratch[class].Put(b)
	}
}
