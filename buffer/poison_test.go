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
