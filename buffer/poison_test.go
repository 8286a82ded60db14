package buffer

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestPoison(t *testing.T) {
	if !invariants {
		t.Skip("needs the build tag invariants")
	}
	a := newArena(t, Config{Budget: 2 * Page, Classes: []int{2 * Page}, Reserve: -1})
	o := a.Owner("culprit", 0)
	b := mustGet(t, a, 5000, o)
	require.EqualValues(t, poisonByte, b.Bytes()[0], "the contents are undefined")
	kept := b.Bytes()
	copy(kept, "hello")
	b.Release()
	require.EqualValues(t, poisonByte, kept[0])
	kept[4999] = 1
	func() {
		defer func() {
			r := fmt.Sprint(recover())
			require.Contains(t, r, "written to at offset 4999 (0x01) while it was free")
			require.Contains(t, r, `it was of owner "culprit" before`)
		}()
		a.TryGet(1, Anonymous)
	}()
	// The Get that panicked has the slot still.
	hs := a.Oldest(2)
	require.Len(t, hs, 1)
	require.Equal(t, "anonymous", hs[0].Owner)
	kept[4999] = poisonByte
	RDMABuffer{a: a, gen: gen(a.slots[0].state.Load())}.Release()
}

func TestPoisonPattern(t *testing.T) {
	mem := make([]byte, 3*Page)
	poison(mem)
	for _, b := range mem {
		require.EqualValues(t, poisonByte, b)
	}
}

// What is written behind the end of a buffer, but within its slot, is found.
func TestCanary(t *testing.T) {
	if !invariants {
		t.Skip("needs the build tag invariants")
	}
	for _, scrub := range []bool{false, true} {
		a := newArena(t, Config{Budget: 4 * Page, Classes: []int{4 * Page}, Reserve: -1, Scrub: scrub})
		b := mustGet(t, a, 5000, a.Owner("culprit", 0))
		view := b.Slice(10, 20)
		slot := a.slotMem(b.num())
		slot[2*Page+7] = 1
		require.PanicsWithValue(t, fmt.Sprintf("buffer: buffer %d of 5000 bytes, of owner \"culprit\", was written to at offset %d (0x01), behind its end: "+
			"a request or a key that reaches further than the buffer", b.num(), 2*Page+7), view.Release)
		slot[2*Page+7] = poisonByte
		b.Release()
		b = mustGet(t, a, 4*Page, Anonymous) // nothing is behind this one
		b.Bytes()[4*Page-1] = 1
		b.Release()
	}
}
