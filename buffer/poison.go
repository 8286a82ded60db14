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

// checkPoison panics if a slot that was free, and former's before, has been
// written to.
func (a *Arena) checkPoison(s uint32, former Owner) {
	mem := a.slotMem(s)
	for off := 0; off < len(mem); off += Page {
		if bytes.Equal(mem[off:off+Page], poisonPage) {
			continue
		}
		for mem[off] == poisonByte {
			off++
		}
		panic(fmt.Sprintf("buffer: buffer %d was written to at offset %d (0x%02x) while it was free; it was of owner %q before: a slice kept from Bytes, or a device that still had it",
			s, off, mem[off], a.nameOf(former)))
	}
}

// setCanary fills what a slot has behind the n bytes of its buffer.
func (a *Arena) setCanary(s uint32, n int) {
	a.lens[s].Store(uint32(n))
	tail := a.slotMem(s)[n:]
	for len(tail) > 0 {
		tail = tail[copy(tail, poisonPage):]
	}
}

// checkCanary panics if that has been written to: by a device whose request or
// key reaches further than the buffer does, or through unsafe.
func (a *Arena) checkCanary(s uint32) {
	n := int(a.lens[s].Load())
	tail := a.slotMem(s)[n:]
	for off := 0; off < len(tail); off += Page {
		part := tail[off:min(off+Page, len(tail))]
		if bytes.Equal(part, poisonPage[:len(part)]) {
			continue
		}
		for part[0] == poisonByte {
			part, off = part[1:], off+1
		}
		panic(fmt.Sprintf("buffer: buffer %d of %d bytes, of owner %q, was written to at offset %d (0x%02x), behind its end: a request or a key that reaches further than the buffer",
			s, n, a.nameOf(ownerOf(a.slots[s].meta.Load())), n+off, part[0]))
	}
}

func (a *Arena) nameOf(o Owner) string {
	if o == nobody {
		return "nobody"
	}
	return a.owner(o).name
}
