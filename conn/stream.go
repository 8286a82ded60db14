package conn

import (
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/argonaut-rdma/argonaut/buffer"
)

// readAhead is how many bytes a Stream reads beyond what a short ReadFull asks
// for, so that the headers of small messages share system calls. What a ReadList
// has to copy from there is at most this.
const readAhead = 4 << 10

// Stream is a net.Conn as a raw pipe: what is written is what travels, without
// framing. One reader and one writer may use it at a time. In steady state it
// allocates nothing.
type Stream struct {
	c net.Conn

	close    sync.Once
	closeErr error

	received atomic.Uint64 // bytes

	// The reader's.
	ahead      [readAhead]byte
	head, tail int // ahead[head:tail] has been read from c and not yet taken

	// The writer's.
	iov  [][]byte
	left net.Buffers // what of iov is still to be written
}

// NewStream makes a Stream of c, which it takes: Close closes it.
func NewStream(c net.Conn) *Stream { return &Stream{c: c} }

// ReadFull reads len(p) bytes. It blocks until then, or until the deadline or
// Close. io.EOF: the peer closed before the first byte; io.ErrUnexpectedEOF:
// after it.
func (s *Stream) ReadFull(p []byte) error {
	n := s.take(p)
	for n < len(p) {
		if len(p)-n >= readAhead {
			m, err := s.fill(p[n:])
			return partial(n+m, err)
		}
		m, err := s.c.Read(s.ahead[:])
		s.received.Add(uint64(m))
		s.head, s.tail = 0, m
		k := s.take(p[n:])
		n += k
		if n < len(p) && err != nil {
			return partial(n, err)
		}
	}
	return nil
}

// ReadFullAhead is ReadFull(p[:n]) for a p that is longer: what comes along in the
// same system call may pass through p[n:], and is the next call's to read. Where
// long reads and short ones alternate, that spares one.
func (s *Stream) ReadFullAhead(p []byte, n int) error {
	at := s.take(p[:n])
	room := min(len(p), n+readAhead)
	for at < n {
		m, err := s.c.Read(p[at:room])
		s.received.Add(uint64(m))
		at += m
		if at < n && err != nil {
			return partial(at, err)
		}
	}
	if at > n { // and so nothing was left ahead
		s.head, s.tail = 0, copy(s.ahead[:], p[n:at])
	}
	return nil
}

// fill is io.ReadFull that counts as it goes.
func (s *Stream) fill(p []byte) (n int, err error) {
	for n < len(p) && err == nil {
		var m int
		m, err = s.c.Read(p[n:])
		n += m
		s.received.Add(uint64(m))
	}
	if n == len(p) {
		return n, nil
	}
	return n, partial(n, err)
}

// Received is how many bytes have come in: whoever watches for silence sees by
// it that a long read goes on. Any goroutine may call it.
func (s *Stream) Received() uint64 { return s.received.Load() }

// take moves bytes read ahead to p.
func (s *Stream) take(p []byte) int {
	n := copy(p, s.ahead[s.head:s.tail])
	s.head += n
	return n
}

// partial is err as the end of a read that got n bytes.
func partial(n int, err error) error {
	if n > 0 && errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// ReadList fills the buffers of l, which it borrows, with l.Len() bytes, as
// ReadFull.
func (s *Stream) ReadList(l *buffer.List) error {
	n := 0
	for i := range l.Segments() {
		p := l.At(i).Bytes()
		m := s.take(p)
		n += m
		if m < len(p) {
			k, err := s.fill(p[m:])
			n += k
			if err != nil {
				return partial(n, err)
			}
		}
	}
	return nil
}

// UnreadableError is Stream.Write's where memory of the payload can not be read any
// more: that of a mapped file, for instance, that has been cut since. The stream
// goes on behind what was written.
type UnreadableError struct {
	Written int64 // bytes, of head and payload together
	Err     error
}

func (e *UnreadableError) Error() string {
	return fmt.Sprintf("payload can not be read, %d bytes of head and payload were written: %v", e.Written, e.Err)
}

func (e *UnreadableError) Unwrap() error { return e.Err }

// Write writes head and then l, gathered into one system call where the
// transport can, without copying. It borrows both; either may be nil. After an
// error other than *UnreadableError the stream is of no use but to be closed: part
// may have been sent.
func (s *Stream) Write(head []byte, l *buffer.List) error {
	s.iov = s.iov[:0]
	if len(head) > 0 {
		s.iov = append(s.iov, head)
	}
	if l != nil {
		s.iov = l.IOVec(s.iov)
	}
	if len(s.iov) == 0 {
		return nil
	}
	s.left = s.iov
	n, err := s.left.WriteTo(s.c)
	clear(s.iov) // keep nothing of the caller's alive
	s.left = nil
	if err != nil && errors.Is(err, syscall.EFAULT) {
		return &UnreadableError{n, err}
	}
	return err
}

// Trim lets go of the memory that large writes have left behind, for a Stream that
// rests. It does not block, and counts as the writer's use.
func (s *Stream) Trim() { s.iov = nil }

// SetDeadline bounds reads and writes, pending ones too, as net.Conn.
func (s *Stream) SetDeadline(t time.Time) error { return s.c.SetDeadline(t) }

// SetReadDeadline bounds reads.
func (s *Stream) SetReadDeadline(t time.Time) error { return s.c.SetReadDeadline(t) }

// SetWriteDeadline bounds writes.
func (s *Stream) SetWriteDeadline(t time.Time) error { return s.c.SetWriteDeadline(t) }

// LocalAddr is our address.
func (s *Stream) LocalAddr() net.Addr { return s.c.LocalAddr() }

// RemoteAddr is the peer's address.
func (s *Stream) RemoteAddr() net.Addr { return s.c.RemoteAddr() }

// Close closes the net.Conn; pending calls end with an error that matches
// ErrClosed. A further Close does nothing and returns the same.
func (s *Stream) Close() error {
	s.close.Do(func() { s.closeErr = s.c.Close() })
	return s.closeErr
}
