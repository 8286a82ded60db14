package buffer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"sync"

	"github.com/argonaut-rdma/argonaut/verbs"
)

// List is a sequence of buffers that is one run of bytes: the payload of a
// message. It owns one reference to each of its buffers. The zero value is an
// empty list. A List is not safe for concurrent use; Share makes another one
// over the same bytes for another goroutine.
//
// A list has a cursor for Read, WriteTo and ReadFrom, at its start at first.
// They move bytes at the cursor and advance it; they neither add nor drop
// buffers.
//
// Lists that this package made are reused after Release: keep no pointer to
// one. With the build tag invariants they are not, and use panics.
type List struct {
	segs []RDMABuffer
	n    int64 // bytes

	seg int   // the cursor: segment,
	off int   // offset in it,
	pos int64 // offset in the list

	scratch []claimed // for Arena.GetList
	pooled  bool      // made by newList
	dead    bool      // released
}

var listPool = sync.Pool{New: func() any { return new(List) }}

func newList() *List {
	if invariants {
		return &List{pooled: true}
	}
	l := listPool.Get().(*List)
	l.pooled, l.dead = true, false
	return l
}

// NewList returns a list of the buffers given. It takes their references.
func NewList(bufs ...RDMABuffer) *List {
	l := newList()
	for _, b := range bufs {
		l.Append(b)
	}
	return l
}

func (l *List) alive() {
	if l.dead {
		panic("buffer: use of a List after its Release")
	}
}

// Append adds b at the end. It takes b's reference. An empty b is released.
func (l *List) Append(b RDMABuffer) {
	l.alive()
	if b.size() == 0 {
		b.Release()
		return
	}
	b.live()
	l.segs = append(l.segs, b)
	l.n += int64(b.size())
}

// AppendList moves the buffers of o, another list, to the end of l and releases
// o.
func (l *List) AppendList(o *List) {
	l.alive()
	o.alive()
	if o == l {
		panic("buffer: AppendList of a list to itself")
	}
	l.segs = append(l.segs, o.segs...)
	l.n += o.n
	o.reset()
}

// AppendCopy adds a copy of p at the end, in buffers of a that it gets for
// owner o as GetList does. The bytes copied are counted in Stats. On error the
// list is unchanged.
func (l *List) AppendCopy(ctx context.Context, a *Arena, o Owner, p []byte) error {
	l.alive()
	if len(p) == 0 {
		return nil
	}
	c, err := a.GetList(ctx, int64(len(p)), o)
	if err != nil {
		return err
	}
	c.CopyFrom(p)
	a.copied.Add(uint64(len(p)))
	l.AppendList(c)
	return nil
}

// find returns the segment that has byte n, and where. For n == Len it is one
// beyond the last.
func (l *List) find(n int64) (seg, off int) {
	if n < 0 || n > l.n {
		panic(fmt.Sprintf("buffer: offset %d in a list of %d bytes", n, l.n))
	}
	for i, b := range l.segs {
		if n < int64(b.size()) {
			return i, int(n)
		}
		n -= int64(b.size())
	}
	return len(l.segs), 0
}

// Split cuts the list at n, 0 <= n <= Len: l keeps the bytes before, the list
// returned has those from n on. A buffer that is cut is referenced by both.
// l's cursor goes to its start.
func (l *List) Split(n int64) *List {
	l.alive()
	seg, off := l.find(n)
	r := newList()
	if off > 0 {
		b := l.segs[seg]
		r.segs = append(r.segs, b.Retain().Slice(off, b.Len()))
		l.segs[seg] = b.Slice(0, off)
		seg++
	}
	r.segs = append(r.segs, l.segs[seg:]...)
	r.n = l.n - n
	clear(l.segs[seg:])
	l.segs = l.segs[:seg]
	l.n = n
	l.rewind()
	return r
}

// Truncate drops what is behind the first n bytes, 0 <= n <= Len. The cursor
// goes to the start.
func (l *List) Truncate(n int64) {
	l.alive()
	seg, off := l.find(n)
	if off > 0 {
		l.segs[seg] = l.segs[seg].Slice(0, off)
		seg++
	}
	for _, b := range l.segs[seg:] {
		b.Release()
	}
	clear(l.segs[seg:])
	l.segs = l.segs[:seg]
	l.n = n
	l.rewind()
}

// Share returns another list over the same bytes, with references of its own.
func (l *List) Share() *List {
	l.alive()
	r := newList()
	for _, b := range l.segs {
		r.segs = append(r.segs, b.Retain())
	}
	r.n = l.n
	return r
}

// Release gives back every reference. The list is empty then, and one that this
// package made must not be used again.
func (l *List) Release() {
	if l.dead {
		panic("buffer: a List was released twice")
	}
	for _, b := range l.segs {
		b.Release()
	}
	l.reset()
}

// reset empties the list, whose references have gone somewhere.
func (l *List) reset() {
	clear(l.segs)
	l.segs, l.n = l.segs[:0], 0
	l.rewind()
	if l.pooled {
		l.dead = true
		if !invariants {
			listPool.Put(l)
		}
	}
}

// Len is the number of bytes.
func (l *List) Len() int64 { return l.n }

// Segments is the number of buffers.
func (l *List) Segments() int { return len(l.segs) }

// At returns buffer i, 0 <= i < Segments. Its reference stays the list's.
func (l *List) At(i int) RDMABuffer { return l.segs[i] }

// Buffers ranges over the buffers, whose references stay the list's.
func (l *List) Buffers() iter.Seq[RDMABuffer] {
	return func(yield func(RDMABuffer) bool) {
		for _, b := range l.segs {
			if !yield(b) {
				return
			}
		}
	}
}

// RetainPosted takes a reference to every buffer on behalf of a work request.
func (l *List) RetainPosted() {
	l.alive()
	for _, b := range l.segs {
		b.RetainPosted()
	}
}

// ReleasePosted gives the references of RetainPosted back. The list must have
// the same buffers as then.
func (l *List) ReleasePosted() {
	l.alive()
	for _, b := range l.segs {
		b.ReleasePosted()
	}
}

// SGEs appends the list's pieces, as registered on pd, to dst.
func (l *List) SGEs(dst []verbs.SGE, pd *verbs.PD) []verbs.SGE {
	l.alive()
	for _, b := range l.segs {
		dst = append(dst, b.SGE(pd))
	}
	return dst
}

// IOVec appends the memory of the buffers to dst, for a gathered write. It is
// valid as long as the list has its references.
func (l *List) IOVec(dst [][]byte) [][]byte {
	l.alive()
	for _, b := range l.segs {
		dst = append(dst, b.Bytes())
	}
	return dst
}

// CopyTo copies the list's first bytes into p and returns how many it copied,
// the smaller of Len and len(p). It leaves the cursor alone.
func (l *List) CopyTo(p []byte) int {
	l.alive()
	n := 0
	for _, b := range l.segs {
		if n == len(p) {
			break
		}
		n += copy(p[n:], b.Bytes())
	}
	return n
}

// CopyFrom copies p to the list's first bytes and returns how many it copied,
// the smaller of Len and len(p). It leaves the cursor alone.
func (l *List) CopyFrom(p []byte) int {
	l.alive()
	n := 0
	for _, b := range l.segs {
		if n == len(p) {
			break
		}
		n += copy(b.Bytes(), p[n:])
	}
	return n
}

func (l *List) rewind() { l.seg, l.off, l.pos = 0, 0, 0 }

// rest is the memory from the cursor to the end of its segment; nil at the end
// of the list.
func (l *List) rest() []byte {
	for l.seg < len(l.segs) {
		if b := l.segs[l.seg]; l.off < b.Len() {
			return b.Bytes()[l.off:]
		}
		l.seg++
		l.off = 0
	}
	return nil
}

func (l *List) advance(n int) {
	l.off += n
	l.pos += int64(n)
}

// Seek moves the cursor; see io.Seeker. It may not leave the list: ErrInvalid.
func (l *List) Seek(offset int64, whence int) (int64, error) {
	l.alive()
	switch whence {
	case io.SeekStart:
	case io.SeekCurrent:
		offset += l.pos
	case io.SeekEnd:
		offset += l.n
	default:
		return l.pos, fmt.Errorf("%w: whence %d", ErrInvalid, whence)
	}
	if offset < 0 || offset > l.n {
		return l.pos, fmt.Errorf("%w: seek to %d in a list of %d bytes", ErrInvalid, offset, l.n)
	}
	l.seg, l.off = l.find(offset)
	l.pos = offset
	return offset, nil
}

// Read copies from the cursor on; see io.Reader.
func (l *List) Read(p []byte) (int, error) {
	l.alive()
	n := 0
	for n < len(p) {
		m := l.rest()
		if m == nil {
			break
		}
		c := copy(p[n:], m)
		l.advance(c)
		n += c
	}
	if n == 0 && len(p) > 0 {
		return 0, io.EOF
	}
	return n, nil
}

// ReadFrom reads from r into the list's memory, from the cursor on, without a
// copy. It ends when the list is full, with a nil error, or when r does: with a
// nil error at its end, see io.ReaderFrom. A reader that returns neither data
// nor an error 100 times ends it with io.ErrNoProgress.
func (l *List) ReadFrom(r io.Reader) (int64, error) {
	l.alive()
	var total int64
	empty := 0
	for {
		m := l.rest()
		if m == nil {
			return total, nil
		}
		n, err := r.Read(m)
		if n < 0 || n > len(m) {
			return total, errors.New("buffer: the reader returned an impossible count")
		}
		l.advance(n)
		total += int64(n)
		if err == io.EOF {
			return total, nil
		}
		if err != nil {
			return total, err
		}
		if n > 0 {
			empty = 0
		} else if empty++; empty == 100 {
			return total, io.ErrNoProgress
		}
	}
}

// WriteTo writes from the cursor to the end of the list to w, without a copy;
// see io.WriterTo.
func (l *List) WriteTo(w io.Writer) (int64, error) {
	l.alive()
	var total int64
	for {
		m := l.rest()
		if m == nil {
			return total, nil
		}
		n, err := w.Write(m)
		if n < 0 || n > len(m) {
			return total, errors.New("buffer: the writer returned an impossible count")
		}
		l.advance(n)
		total += int64(n)
		if err != nil {
			return total, err
		}
		if n < len(m) {
			return total, io.ErrShortWrite
		}
	}
}
