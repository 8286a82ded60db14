package wire

import "encoding/binary"

// Specification constants (RFC 5041 section 4).
const (
	TaggedLen   = 14 // bytes
	UntaggedLen = 18 // bytes

	ddpTagged  = 0x80
	ddpLast    = 0x40
	ddpVerMask = 0x03
	ddpVersion = 1

	QNSend       = 0 // SEND of all kinds, immediate data
	QNReadReq    = 1 // READ requests, atomic requests
	QNTerminate  = 2
	QNAtomicResp = 3
)

// Header is a DDP segment header with its RDMAP control byte. STag holds the steering tag of a tagged segment, and the
// STag to invalidate of an untagged one; TO is used by tagged segments, QN, MSN and MO by untagged ones.
type Header struct {
	Tagged bool
	Last   bool
	Op     Opcode
	Imm    bool // a SEND's STag field holds immediate data: between two of our own only, a reserved bit elsewhere
	STag   uint32
	TO     uint64
	QN     uint32
	MSN    uint32
	MO     uint32
}

// Len is the length of the encoded header in bytes.
func (h *Header) Len() int {
	if h.Tagged {
		return TaggedLen
	}
	return UntaggedLen
}

// PutHeader fills b, which has room for it, and returns the header's length.
func PutHeader(b []byte, h *Header) int {
	c := byte(ddpVersion)
	if h.Last {
		c |= ddpLast
	}
	b[1] = rdmapVersion | byte(h.Op)
	if h.Imm {
		b[1] |= rdmapImm
	}
	binary.BigEndian.PutUint32(b[2:], h.STag)
	if h.Tagged {
		b[0] = c | ddpTagged
		binary.BigEndian.PutUint64(b[6:], h.TO)
		return TaggedLen
	}
	b[0] = c
	binary.BigEndian.PutUint32(b[6:], h.QN)
	binary.BigEndian.PutUint32(b[10:], h.MSN)
	binary.BigEndian.PutUint32(b[14:], h.MO)
	return UntaggedLen
}

// IsTagged looks at the first byte of a segment: an untagged one has the longer header.
func IsTagged(b byte) bool { return b&ddpTagged != 0 }

// DecodeHeader decodes the header at the front of a DDP segment into h. It checks the versions, and that opcode, buffer
// model and queue number belong together.
func DecodeHeader(b []byte, h *Header) error {
	if len(b) < TaggedLen {
		return decodeErr("DDP segment is short", uint64(len(b)), TermDDPLocalCatastrophic)
	}
	c, r := b[0], b[1]
	*h = Header{Tagged: c&ddpTagged != 0, Last: c&ddpLast != 0, Op: Opcode(r & rdmapOpMask), Imm: r&rdmapImm != 0, STag: binary.BigEndian.Uint32(b[2:])}
	if c&ddpVerMask != ddpVersion {
		if h.Tagged {
			return decodeErr("DDP version", uint64(c&ddpVerMask), TermDDPTaggedVersion)
		}
		return decodeErr("DDP version", uint64(c&ddpVerMask), TermDDPUntaggedVersion)
	}
	if r&rdmapVerMask != rdmapVersion {
		return decodeErr("RDMAP version", uint64(r&rdmapVerMask>>6), TermRDMAPVersion)
	}
	if h.Tagged {
		if h.Op != OpWrite && h.Op != OpReadResp {
			return decodeErr("opcode in a tagged segment", uint64(h.Op), TermRDMAPOpcode)
		}
		h.TO = binary.BigEndian.Uint64(b[6:])
		return nil
	}
	if len(b) < UntaggedLen {
		return decodeErr("untagged DDP segment is short", uint64(len(b)), TermDDPLocalCatastrophic)
	}
	h.QN = binary.BigEndian.Uint32(b[6:])
	h.MSN = binary.BigEndian.Uint32(b[10:])
	h.MO = binary.BigEndian.Uint32(b[14:])
	qn, ok := h.Op.queue()
	if !ok {
		return decodeErr("opcode in an untagged segment", uint64(h.Op), TermRDMAPOpcode)
	}
	if h.QN > QNAtomicResp {
		return decodeErr("DDP queue number", uint64(h.QN), TermDDPInvalidQN)
	}
	if h.QN != qn {
		return decodeErr("opcode does not belong to its queue", uint64(h.Op), TermRDMAPOpcode)
	}
	return nil
}
