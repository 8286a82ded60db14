package messenger

import (
	"encoding/binary"
	"fmt"
	"time"
)

// The extension travels behind the front segment's own bytes; header.Reserved
// has its length. It is a list of items:
//
//	u8 kind | u8 length | value
//
// Unknown kinds are skipped.
const (
	extDeadline = 1 // le64 nanoseconds that the caller still waits
	extTrace    = 2 // trace id 16, span id 8, flags 1
	extGap      = 3 // le64 how many numbers before the message's are not sent

	// extensionMax is the largest extension that is sent, bytes.
	extensionMax = 10 + 2 + traceLen + 10
	traceLen     = 25
)

// TraceContext says which trace a message belongs to, as W3C's trace context
// does. The zero value is none. It travels with messages to peers of this
// project; the messenger itself does nothing with it.
type TraceContext struct {
	TraceID [16]byte
	SpanID  [8]byte
	Flags   byte // bit 0: sampled
}

// IsZero reports whether there is none.
func (t *TraceContext) IsZero() bool { return t.TraceID == [16]byte{} }

// extended reports whether a message has an extension.
func (p *purpose) extended(t *TraceContext) bool { return !p.deadline.IsZero() || !t.IsZero() }

// appendExtension appends the extension, which may be empty, as of now.
func (p *purpose) appendExtension(dst []byte, t *TraceContext, now time.Time) []byte {
	if !t.IsZero() {
		dst = append(dst, extTrace, traceLen)
		dst = append(dst, t.TraceID[:]...)
		dst = append(dst, t.SpanID[:]...)
		dst = append(dst, t.Flags)
	}
	if !p.deadline.IsZero() {
		dst = append(dst, extDeadline, 8)
		dst = binary.LittleEndian.AppendUint64(dst, uint64(max(0, p.deadline.Sub(now))))
	}
	return dst
}

// appendGap appends that gap numbers before the message's are not sent.
func appendGap(dst []byte, gap uint64) []byte {
	return binary.LittleEndian.AppendUint64(append(dst, extGap, 8), gap)
}

// maxWait bounds the deadline that a peer may set, so that it can be computed
// with.
const maxWait = 365 * 24 * time.Hour

// decodeExtension reads an extension. What concerns the session it returns.
func (m *Message) decodeExtension(p []byte) (gap uint64, err error) {
	for len(p) > 0 {
		if len(p) < 2 || len(p) < 2+int(p[1]) {
			return 0, fmt.Errorf("%w: cut extension", ErrProtocol)
		}
		kind, value := p[0], p[2:2+int(p[1])]
		p = p[2+len(value):]
		switch kind {
		case extDeadline:
			if len(value) != 8 {
				return 0, fmt.Errorf("%w: deadline of %d bytes", ErrProtocol, len(value))
			}
			wait := min(binary.LittleEndian.Uint64(value), uint64(maxWait))
			m.deadline = time.Now().Add(time.Duration(wait))
		case extTrace:
			if len(value) != traceLen {
				return 0, fmt.Errorf("%w: trace context of %d bytes", ErrProtocol, len(value))
			}
			copy(m.Trace.TraceID[:], value)
			copy(m.Trace.SpanID[:], value[16:])
			m.Trace.Flags = value[24]
		case extGap:
			if len(value) != 8 {
				return 0, fmt.Errorf("%w: gap of %d bytes", ErrProtocol, len(value))
			}
			gap = binary.LittleEndian.Uint64(value)
		}
	}
	return gap, nil
}
