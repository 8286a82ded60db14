package wire

import (
	"encoding/binary"
	"strconv"
)

// Opcode is an RDMAP message type (RFC 5040 section 4.3, RFC 7306 section 7).
type Opcode uint8

const (
	OpWrite      Opcode = 0
	OpReadReq    Opcode = 1
	OpReadResp   Opcode = 2
	OpSend       Opcode = 3
	OpSendInv    Opcode = 4
	OpSendSE     Opcode = 5
	OpSendSEInv  Opcode = 6
	OpTerminate  Opcode = 7
	OpImm        Opcode = 8
	OpImmSE      Opcode = 9
	OpAtomicReq  Opcode = 10
	OpAtomicResp Opcode = 11
)

const (
	rdmapVersion = 1 << 6
	rdmapVerMask = 0xc0
	rdmapOpMask  = 0x0f
	rdmapImm     = 0x10 // ours: see Header.Imm

	ReadReqLen = 28 // bytes behind the untagged header
)

var opcodeNames = [...]string{"RDMA Write", "RDMA Read Request", "RDMA Read Response", "Send", "Send with Invalidate",
	"Send with SE", "Send with SE and Invalidate", "Terminate", "Immediate Data", "Immediate Data with SE",
	"Atomic Request", "Atomic Response"}

func (o Opcode) String() string {
	if int(o) < len(opcodeNames) {
		return opcodeNames[o]
	}
	return strconv.Itoa(int(o))
}

// IsSend says whether the message consumes a receive and carries the user's bytes.
func (o Opcode) IsSend() bool { return o >= OpSend && o <= OpSendSEInv }

// IsImm says whether the message is immediate data.
func (o Opcode) IsImm() bool { return o == OpImm || o == OpImmSE }

// Solicited says whether the message asks for a solicited event.
func (o Opcode) Solicited() bool { return o == OpSendSE || o == OpSendSEInv || o == OpImmSE }

// Invalidates says whether the header's STag is to be invalidated.
func (o Opcode) Invalidates() bool { return o == OpSendInv || o == OpSendSEInv }

func (o Opcode) queue() (qn uint32, ok bool) {
	switch o {
	case OpSend, OpSendInv, OpSendSE, OpSendSEInv, OpImm, OpImmSE:
		return QNSend, true
	case OpReadReq, OpAtomicReq:
		return QNReadReq, true
	case OpTerminate:
		return QNTerminate, true
	case OpAtomicResp:
		return QNAtomicResp, true
	}
	return 0, false
}

// ReadReq is the body of an RDMA Read Request (RFC 5040 section 4.4).
type ReadReq struct {
	SinkSTag uint32
	SinkTO   uint64
	Length   uint32
	SrcSTag  uint32
	SrcTO    uint64
}

// PutReadReq fills b[:ReadReqLen].
func PutReadReq(b []byte, r *ReadReq) {
	binary.BigEndian.PutUint32(b, r.SinkSTag)
	binary.BigEndian.PutUint64(b[4:], r.SinkTO)
	binary.BigEndian.PutUint32(b[12:], r.Length)
	binary.BigEndian.PutUint32(b[16:], r.SrcSTag)
	binary.BigEndian.PutUint64(b[20:], r.SrcTO)
}

// DecodeReadReq decodes a whole body.
func DecodeReadReq(b []byte) (ReadReq, error) {
	if len(b) != ReadReqLen {
		return ReadReq{}, decodeErr("RDMA Read Request length", uint64(len(b)), bodyLengthTerm(len(b), ReadReqLen))
	}
	return ReadReq{
		SinkSTag: binary.BigEndian.Uint32(b),
		SinkTO:   binary.BigEndian.Uint64(b[4:]),
		Length:   binary.BigEndian.Uint32(b[12:]),
		SrcSTag:  binary.BigEndian.Uint32(b[16:]),
		SrcTO:    binary.BigEndian.Uint64(b[20:]),
	}, nil
}

// bodyLengthTerm: a body too long for its queue's buffer is DDP's error; a short one the stream's.
func bodyLengthTerm(got, want int) TermCode {
	if got > want {
		return TermDDPTooLong
	}
	return TermRDMAPStreamCatastrophic
}
