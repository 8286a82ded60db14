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

	// extensionMax is the largest extension that is sent, bytes.
	extensionMax = 10
)

// appendExtension appends the extension, which may be empty, as of now.
func (p *purpose) appendExtension(dst []byte, now time.Time) []byte {
	if !p.deadline.IsZero() {
		dst = append(dst, extDeadline, 8)
		dst = binary.LittleEndian.AppendUint64(dst, uint64(max(0, p.deadline.Sub(now))))
	}
	return dst
}

// maxWait bounds the deadline that a peer may set, so that it can be computed
// with.
const maxWait = 365 * 24 * time.Hour

func (m *Message) decodeExtension(p []byte) error {
	for len(p) > 0 {
		if len(p) < 2 || len(p) < 2+int(p[1]) {
			return fmt.Errorf("%w: cut extension", ErrProtocol)
		}
		kind, value := p[0], p[2:2+int(p[1])]
		p = p[2+len(value):]
		if kind == extDeadline {
			if len(value) != 8 {
				return fmt.Errorf("%w: deadline of %d bytes", ErrProtocol, len(value))
			}
			wait := min(binary.LittleEndian.Uint64(value), uint64(maxWait))
			m.deadline = time.Now().Add(time.Duration(wait))
		}
	}
	return nil
}
