package buffer

import (
	"bytes"
	"fmt"
)

const poisonByte = 0xdb

var poisonPage = bytes.Repeat([]byte{poisonByte}, Page)

// poison fills free memory, a multiple of a page.
func poison(mem []byte) {
	for ; len(mem) > 0; mem = mem[Page:] {
		copy(mem, poisonPage)
	}
}

// checkPoison panics if a slot that was free has been written to.
func (a *Arena) checkPoison(s uint32) {
	mem := a.slotMem(s)
	for off := 0; off < len(mem); off += Page {
		if bytes.Equal(mem[off:off+Page], poisonPage) {
			continue
		}
		for mem[off] == poisonByte {
			off++
		}
		m := a.slots[s].meta.Load()
		panic(fmt.Sprintf("buffer: buffer %d was written to at offset %d (0x%02x) while it was free; it was of owner %q before: a slice kept from Bytes, or a device that still had it",
			s, off, mem[off], a.nameOf(ownerOf(m))))
	}
}

func (a *Arena) nameOf(o Owner) string {
	if o == nobody {
		return "nobody"
	}
	return a.owner(o).name
}
