package verbstest

import (
	"bytes"
	"fmt"

	"github.com/stretchr/testify/require"

	"github.com/argonaut-rdma/argonaut/verbs"
)

// guardByte fills what no transfer may touch.
const guardByte = 0xa5

// strip is a message laid out in memory: pieces of uneven length with gaps
// between them, and guard bytes in the gaps and around.
type strip struct {
	mem   *memory
	n     int
	spans [][2]int
}

// layout is how a message lies in memory.
type layout struct {
	pieces int // SGEs; 0: none at all, for empty messages only
	start  int // offset of the first
	gap    int // bytes between two
}

const margin = 64

// room is how much memory a message of n bytes in layout l needs.
func (l layout) room(n int) int { return l.start + n + l.pieces*l.gap + margin }

// strip lays n bytes out in new memory of x.
func (x *end) strip(n int, l layout, acc verbs.Access) strip {
	x.Helper()
	m := x.mem(l.room(n), acc)
	guardFill(m.b)
	s := strip{mem: m, n: n}
	off, left := l.start, n
	for i := range l.pieces {
		k := left
		if rest := l.pieces - 1 - i; rest > 0 {
			// Uneven, some of them empty, nothing of a power of two.
			k = left * (1 + i%3) / (rest + 3)
		}
		s.spans = append(s.spans, [2]int{off, off + k})
		off, left = off+k+l.gap, left-k
	}
	require.True(x, left == 0 || l.pieces == 0 && n == 0)
	return s
}

func guardFill(b []byte) {
	for len(b) > 0 {
		b = b[copy(b, guardBlock[:]):]
	}
}

var guardBlock = func() (b [4096]byte) {
	for i := range b {
		b[i] = guardByte
	}
	return b
}()

func (s strip) sges() []verbs.SGE {
	var sges []verbs.SGE
	for _, p := range s.spans {
		sges = append(sges, s.mem.sge(p[0], p[1]-p[0]))
	}
	return sges
}

// fill writes the pattern of seed into the pieces.
func (s strip) fill(seed uint64) {
	b := make([]byte, s.n)
	fill(b, seed)
	for _, p := range s.spans {
		b = b[copy(s.mem.b[p[0]:p[1]], b):]
	}
}

// holds checks that the first n bytes of the pieces are the pattern of seed and
// that all other memory is untouched.
func (s strip) holds(n int, seed uint64) error {
	expect := make([]byte, n)
	fill(expect, seed)
	end := 0
	for i, p := range s.spans {
		if err := untouched(s.mem.b[end:p[0]]); err != nil {
			return fmt.Errorf("before piece %d: %w", i, err)
		}
		k := min(p[1]-p[0], len(expect))
		if err := sameBytes(s.mem.b[p[0]:p[0]+k], expect[:k]); err != nil {
			return fmt.Errorf("piece %d of %d bytes: %w", i, p[1]-p[0], err)
		}
		expect = expect[k:]
		if err := untouched(s.mem.b[p[0]+k : p[1]]); err != nil {
			return fmt.Errorf("end of piece %d: %w", i, err)
		}
		end = p[1]
	}
	if err := untouched(s.mem.b[end:]); err != nil {
		return fmt.Errorf("behind the last piece: %w", err)
	}
	return nil
}

func untouched(b []byte) error {
	for off := 0; off < len(b); off += len(guardBlock) {
		part := b[off:min(off+len(guardBlock), len(b))]
		if !bytes.Equal(part, guardBlock[:len(part)]) {
			return fmt.Errorf("guard bytes changed near %d of %d", off, len(b))
		}
	}
	return nil
}
