package buffer

import (
	"context"
	"io"
	"iter"

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
type List struct {
	segs []RDMABuffer
	n    int64
}

// NewList returns a list of the buffers given. It takes their references.
func NewList(bufs ...RDMABuffer) *List { return &List{} }

// Append adds b at the end. It takes b's reference. An empty b is released.
func (l *List) Append(b RDMABuffer) {}

// AppendList moves the buffers of o to the end of l and releases o.
func (l *List) AppendList(o *List) {}

// AppendCopy adds a copy of p at the end, in buffers of a that it gets for
// owner o as GetList does. The bytes copied are counted in Stats. On error the
// list is unchanged.
func (l *List) AppendCopy(ctx context.Context, a *Arena, o Owner, p []byte) error {
	return ErrNotSupported
}

// Split cuts the list at n, 0 <= n <= Len: l keeps the bytes before, the list
// returned has those from n on. A buffer that is cut is referenced by both.
func (l *List) Split(n int64) *List { return nil }

// Truncate drops what is behind the first n bytes, n <= Len.
func (l *List) Truncate(n int64) {}

// Share returns another list over the same bytes, with references of its own.
func (l *List) Share() *List { return nil }

// Release gives back every reference. The list is empty then, and one that this
// package made must not be used again.
func (l *List) Release() {}

// Len is the number of bytes.
func (l *List) Len() int64 { return l.n }

// Segments is the number of buffers.
func (l *List) Segments() int { return len(l.segs) }

// At returns buffer i, 0 <= i < Segments. Its reference stays the list's.
func (l *List) At(i int) RDMABuffer { return l.segs[i] }

// Buffers ranges over the buffers, whose references stay the list's.
func (l *List) Buffers() iter.Seq[RDMABuffer] { return func(func(RDMABuffer) bool) {} }

// RetainPosted takes a reference to every buffer on behalf of a work request.
func (l *List) RetainPosted() {}

// ReleasePosted gives the references of RetainPosted back. The list must have
// the same buffers.
func (l *List) ReleasePosted() {}

// SGEs appends the list's pieces, as registered on pd, to dst.
func (l *List) SGEs(dst []verbs.SGE, pd *verbs.PD) []verbs.SGE { return dst }

// IOVec appends the memory of the buffers to dst, for a gathered write. It is
// valid as long as the list has its references.
func (l *List) IOVec(dst [][]byte) [][]byte { return dst }

// CopyTo copies the list's first bytes into p and returns how many it copied,
// the smaller of Len and len(p). It leaves the cursor alone.
func (l *List) CopyTo(p []byte) int { return 0 }

// CopyFrom copies p to the list's first bytes and returns how many it copied,
// the smaller of Len and len(p). It leaves the cursor alone.
func (l *List) CopyFrom(p []byte) int { return 0 }

// Seek moves the cursor; see io.Seeker. It may not leave the list.
func (l *List) Seek(offset int64, whence int) (int64, error) { return 0, nil }

// Read copies from the cursor on; see io.Reader.
func (l *List) Read(p []byte) (int, error) { return 0, io.EOF }

// ReadFrom reads from r into the list's memory, from the cursor on, without a
// copy. It ends when the list is full, with a nil error, or when r does: with a
// nil error at its end, see io.ReaderFrom. A reader that returns neither data
// nor an error 100 times ends it with io.ErrNoProgress.
func (l *List) ReadFrom(r io.Reader) (int64, error) { return 0, ErrNotSupported }

// WriteTo writes from the cursor to the end of the list to w, without a copy;
// see io.WriterTo.
func (l *List) WriteTo(w io.Writer) (int64, error) { return 0, ErrNotSupported }
