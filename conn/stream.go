package conn

import (
	"net"
	"time"

	"github.com/argonaut-rdma/argonaut/buffer"
)

// Stream is a net.Conn as a raw pipe: what is written is what travels, without
// framing. One reader and one writer may use it at a time. It allocates
// nothing per call.
type Stream struct{ c net.Conn }

// NewStream makes a Stream of c, which it takes: Close closes it.
func NewStream(c net.Conn, a *buffer.Arena) *Stream { return &Stream{c: c} }

// ReadFull reads len(p) bytes. It blocks until then, or until the deadline or
// Close. io.EOF: the peer closed before the first byte; io.ErrUnexpectedEOF:
// after it.
func (s *Stream) ReadFull(p []byte) error { return ErrNotSupported }

// ReadList fills the buffers of l, which it borrows, with l.Len() bytes, as
// ReadFull.
func (s *Stream) ReadList(l *buffer.List) error { return ErrNotSupported }

// Write writes head and then l, gathered into one system call where the
// transport can, without copying. It borrows both; l may be nil. After an error
// the stream is of no use but to be closed: part may have been sent.
func (s *Stream) Write(head []byte, l *buffer.List) error { return ErrNotSupported }

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
// ErrClosed. A further Close returns nil.
func (s *Stream) Close() error { return s.c.Close() }
