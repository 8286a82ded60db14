package wire

import (
	"encoding/binary"
	"hash/crc32"
)

// Specification constants (RFC 5044 section 4).
const (
	CRCLen   = 4     // bytes; always present, zero when checksums are not used
	MaxULPDU = 64768 // bytes: the largest a sender of two-byte lengths may use with markers accounted for
)

// Implementation constants.
const (
	// MaxJumboULPDU bounds the four-byte length, so that a peer's word never makes us expect more, in bytes.
	MaxJumboULPDU = 16<<20 + TaggedLen
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Framing is the width of the length field in front of each ULPDU.
type Framing int

const (
	Standard Framing = 2 // RFC 5044
	Jumbo    Framing = 4 // between two of our own
)

// Pad is the number of zero bytes that bring length field and ULPDU to a multiple of four.
func (f Framing) Pad(ulpdu int) int { return -(int(f) + ulpdu) & 3 }

// Len is the length of a whole FPDU in bytes.
func (f Framing) Len(ulpdu int) int { return int(f) + ulpdu + f.Pad(ulpdu) + CRCLen }

// PutLength writes the length field.
func (f Framing) PutLength(b []byte, ulpdu int) {
	if f == Standard {
		binary.BigEndian.PutUint16(b, uint16(ulpdu))
	} else {
		binary.BigEndian.PutUint32(b, uint32(ulpdu))
	}
}

// DecodeLength reads the length field, and refuses what can not be a DDP segment.
func (f Framing) DecodeLength(b []byte) (int, error) {
	if len(b) < int(f) {
		return 0, decodeErr("FPDU length field is short", uint64(len(b)), TermMPAFPDUStart)
	}
	var n int
	if f == Standard {
		n = int(binary.BigEndian.Uint16(b))
	} else {
		n = int(min(binary.BigEndian.Uint32(b), MaxJumboULPDU+1))
	}
	if n < TaggedLen || f == Jumbo && n > MaxJumboULPDU {
		return 0, decodeErr("ULPDU length", uint64(n), TermMPAFPDUStart)
	}
	return n, nil
}

// CRC extends a checksum (0 at first) over p: length field, ULPDU and pad, in that order.
func CRC(crc uint32, p []byte) uint32 { return crc32.Update(crc, castagnoli, p) }

// PutCRC writes a checksum in its wire order.
func PutCRC(b []byte, crc uint32) { binary.LittleEndian.PutUint32(b, crc) }

// DecodeCRC reads a checksum.
func DecodeCRC(b []byte) uint32 { return binary.LittleEndian.Uint32(b) }

// CheckCRC compares a received checksum with the computed one.
func CheckCRC(b []byte, crc uint32) error {
	if got := DecodeCRC(b); got != crc {
		return decodeErr("bad CRC", uint64(got), TermMPABadCRC)
	}
	return nil
}
