package wire

import (
	"encoding/binary"
	"strconv"
)

// AtomicOp is the operation of an Atomic Request (RFC 7306 section 5.2).
type AtomicOp uint8

const (
	AtomicFetchAdd AtomicOp = 0
	AtomicCmpSwap  AtomicOp = 2
)

func (o AtomicOp) String() string {
	switch o {
	case AtomicFetchAdd:
		return "FetchAdd"
	case AtomicCmpSwap:
		return "CmpSwap"
	}
	return strconv.Itoa(int(o))
}

const (
	ImmLen        = 8  // bytes of immediate data
	AtomicReqLen  = 52 // bytes behind the untagged header
	AtomicRespLen = 12

	atomicOpMask = 0x0f
)

// AtomicReq is the body of an Atomic Request.
type AtomicReq struct {
	Op          AtomicOp
	ID          uint32 // echoed by the response
	STag        uint32
	TO          uint64
	AddSwap     uint64
	AddSwapMask uint64
	Compare     uint64
	CompareMask uint64
}

// PutAtomicReq fills b[:AtomicReqLen].
func PutAtomicReq(b []byte, r *AtomicReq) {
	binary.BigEndian.PutUint32(b, uint32(r.Op))
	binary.BigEndian.PutUint32(b[4:], r.ID)
	binary.BigEndian.PutUint32(b[8:], r.STag)
	binary.BigEndian.PutUint64(b[12:], r.TO)
	binary.BigEndian.PutUint64(b[20:], r.AddSwap)
	binary.BigEndian.PutUint64(b[28:], r.AddSwapMask)
	binary.BigEndian.PutUint64(b[36:], r.Compare)
	binary.BigEndian.PutUint64(b[44:], r.CompareMask)
}

// DecodeAtomicReq decodes a whole body.
func DecodeAtomicReq(b []byte) (AtomicReq, error) {
	if len(b) != AtomicReqLen {
		return AtomicReq{}, decodeErr("Atomic Request length", uint64(len(b)), bodyLengthTerm(len(b), AtomicReqLen))
	}
	r := AtomicReq{
		Op:          AtomicOp(binary.BigEndian.Uint32(b) & atomicOpMask),
		ID:          binary.BigEndian.Uint32(b[4:]),
		STag:        binary.BigEndian.Uint32(b[8:]),
		TO:          binary.BigEndian.Uint64(b[12:]),
		AddSwap:     binary.BigEndian.Uint64(b[20:]),
		AddSwapMask: binary.BigEndian.Uint64(b[28:]),
		Compare:     binary.BigEndian.Uint64(b[36:]),
		CompareMask: binary.BigEndian.Uint64(b[44:]),
	}
	if r.Op != AtomicFetchAdd && r.Op != AtomicCmpSwap {
		return AtomicReq{}, decodeErr("atomic operation", uint64(r.Op), TermRDMAPOpcode)
	}
	return r, nil
}

// AtomicResp is the body of an Atomic Response: the value before the operation.
type AtomicResp struct {
	ID    uint32
	Value uint64
}

// PutAtomicResp fills b[:AtomicRespLen].
func PutAtomicResp(b []byte, r AtomicResp) {
	binary.BigEndian.PutUint32(b, r.ID)
	binary.BigEndian.PutUint64(b[4:], r.Value)
}

// DecodeAtomicResp decodes a whole body.
func DecodeAtomicResp(b []byte) (AtomicResp, error) {
	if len(b) != AtomicRespLen {
		return AtomicResp{}, decodeErr("Atomic Response length", uint64(len(b)), bodyLengthTerm(len(b), AtomicRespLen))
	}
	return AtomicResp{ID: binary.BigEndian.Uint32(b), Value: binary.BigEndian.Uint64(b[4:])}, nil
}

// PutImm fills b[:ImmLen]: verbs' 32 bits of immediate data travel in the first half, the rest is zero.
func PutImm(b []byte, imm uint32) { binary.BigEndian.PutUint64(b, uint64(imm)<<32) }

// DecodeImm decodes a whole body.
func DecodeImm(b []byte) (uint32, error) {
	if len(b) != ImmLen {
		return 0, decodeErr("immediate data length", uint64(len(b)), bodyLengthTerm(len(b), ImmLen))
	}
	return binary.BigEndian.Uint32(b), nil
}
