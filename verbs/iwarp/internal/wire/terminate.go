package wire

import (
	"encoding/binary"
	"fmt"
)

// TermCode is layer (4 bits), error type (4 bits) and error code (8 bits) of a Terminate message.
type TermCode uint16

// Codes of RFC 5040 section 4.8, RFC 5041 section 7, RFC 5044 section 8 and RFC 6581 section 9.
const (
	TermRDMAPLocalCatastrophic TermCode = 0x0000

	TermRDMAPInvalidSTag TermCode = 0x0100
	TermRDMAPBounds      TermCode = 0x0101
	TermRDMAPAccess      TermCode = 0x0102
	TermRDMAPStream      TermCode = 0x0103 // STag not associated with the stream
	TermRDMAPWrap        TermCode = 0x0104
	TermRDMAPProtCantInv TermCode = 0x0109
	TermRDMAPProtection  TermCode = 0x01ff

	TermRDMAPVersion            TermCode = 0x0205
	TermRDMAPOpcode             TermCode = 0x0206
	TermRDMAPStreamCatastrophic TermCode = 0x0207
	TermRDMAPCatastrophic       TermCode = 0x0208
	TermRDMAPCantInvalidate     TermCode = 0x0209
	TermRDMAPUnspecified        TermCode = 0x02ff

	TermDDPLocalCatastrophic TermCode = 0x1000

	TermDDPInvalidSTag   TermCode = 0x1100
	TermDDPBounds        TermCode = 0x1101
	TermDDPStream        TermCode = 0x1102 // STag not associated with the stream
	TermDDPWrap          TermCode = 0x1103
	TermDDPTaggedVersion TermCode = 0x1104

	TermDDPInvalidQN       TermCode = 0x1201
	TermDDPNoBuffer        TermCode = 0x1202
	TermDDPMSNRange        TermCode = 0x1203
	TermDDPInvalidMO       TermCode = 0x1204
	TermDDPTooLong         TermCode = 0x1205
	TermDDPUntaggedVersion TermCode = 0x1206

	TermMPAConnLost        TermCode = 0x2001
	TermMPABadCRC          TermCode = 0x2002
	TermMPAFPDUStart       TermCode = 0x2003
	TermMPAInvalidRequest  TermCode = 0x2004
	TermMPALocal           TermCode = 0x2005
	TermMPAInsufficientIRD TermCode = 0x2006
	TermMPANoRTR           TermCode = 0x2007
)

var termNames = map[TermCode]string{
	TermRDMAPLocalCatastrophic: "RDMAP: local catastrophic error",
	TermRDMAPInvalidSTag:       "RDMAP: invalid STag",
	TermRDMAPBounds:            "RDMAP: base or bounds violation",
	TermRDMAPAccess:            "RDMAP: access rights violation",
	TermRDMAPStream:            "RDMAP: STag not associated with the stream",
	TermRDMAPWrap:              "RDMAP: tagged offset wrap",
	TermRDMAPProtCantInv:       "RDMAP: STag can not be invalidated",
	TermRDMAPProtection:        "RDMAP: protection error",
	TermRDMAPVersion:           "RDMAP: invalid version",
	TermRDMAPOpcode:            "RDMAP: unexpected opcode",

	TermRDMAPStreamCatastrophic: "RDMAP: catastrophic error of the stream",
	TermRDMAPCatastrophic:       "RDMAP: catastrophic error of the adapter",
	TermRDMAPCantInvalidate:     "RDMAP: STag can not be invalidated",
	TermRDMAPUnspecified:        "RDMAP: unspecified error",
	TermDDPLocalCatastrophic:    "DDP: local catastrophic error",
	TermDDPInvalidSTag:          "DDP: invalid STag",
	TermDDPBounds:               "DDP: base or bounds violation",
	TermDDPStream:               "DDP: STag not associated with the stream",
	TermDDPWrap:                 "DDP: tagged offset wrap",
	TermDDPTaggedVersion:        "DDP: invalid version",
	TermDDPInvalidQN:            "DDP: invalid queue number",
	TermDDPNoBuffer:             "DDP: no buffer for the message",
	TermDDPMSNRange:             "DDP: message sequence number out of range",
	TermDDPInvalidMO:            "DDP: invalid message offset",
	TermDDPTooLong:              "DDP: message too long for its buffer",
	TermDDPUntaggedVersion:      "DDP: invalid version",
	TermMPAConnLost:             "MPA: TCP connection lost",
	TermMPABadCRC:               "MPA: bad CRC",
	TermMPAFPDUStart:            "MPA: FPDU start mismatch",
	TermMPAInvalidRequest:       "MPA: invalid request or reply frame",
	TermMPALocal:                "MPA: local catastrophic error",
	TermMPAInsufficientIRD:      "MPA: insufficient IRD",
	TermMPANoRTR:                "MPA: no matching RTR option",
}

func (c TermCode) String() string {
	if s := termNames[c]; s != "" {
		return s
	}
	return fmt.Sprintf("terminate %#04x", uint16(c))
}

// Layer is 0 for RDMAP, 1 for DDP, 2 for MPA.
func (c TermCode) Layer() int { return int(c >> 12) }

// Type is the error type within the layer.
func (c TermCode) Type() int { return int(c >> 8 & 0xf) }

const (
	termSegLen = 0x8000 // M
	termDDP    = 0x4000 // D
	termRDMAP  = 0x2000 // R

	termCtrlLen = 4
	// MaxTerminateLen is the longest body of a Terminate, in bytes.
	MaxTerminateLen = termCtrlLen + 2 + UntaggedLen + ReadReqLen
)

// Terminate is the body of a Terminate message (RFC 5040 section 4.8).
type Terminate struct {
	Code     TermCode
	HasDDP   bool // SegLen and DDP are there
	SegLen   uint16
	DDP      Header
	HasRDMAP bool // RDMAP is there: the offending segment was a Read Request
	RDMAP    [ReadReqLen]byte
}

// AppendTerminate appends the body.
func AppendTerminate(b []byte, t *Terminate) []byte {
	w := uint16(0)
	if t.HasDDP {
		w |= termSegLen | termDDP
	}
	if t.HasRDMAP {
		w |= termRDMAP
	}
	b = binary.BigEndian.AppendUint16(b, uint16(t.Code))
	b = binary.BigEndian.AppendUint16(b, w)
	if t.HasDDP {
		b = binary.BigEndian.AppendUint16(b, t.SegLen)
		var h [UntaggedLen]byte
		n := PutHeader(h[:], &t.DDP)
		b = append(b, h[:n]...)
	}
	if t.HasRDMAP {
		b = append(b, t.RDMAP[:]...)
	}
	return b
}

// DecodeTerminate decodes a body. The code is what counts: headers that are cut off or make no sense are left out, for
// the connection is over either way.
func DecodeTerminate(b []byte) (Terminate, error) {
	if len(b) < termCtrlLen {
		return Terminate{}, decodeErr("Terminate length", uint64(len(b)), TermRDMAPStreamCatastrophic)
	}
	if len(b) > MaxTerminateLen {
		return Terminate{}, decodeErr("Terminate length", uint64(len(b)), TermDDPTooLong)
	}
	t := Terminate{Code: TermCode(binary.BigEndian.Uint16(b))}
	w := binary.BigEndian.Uint16(b[2:])
	b = b[termCtrlLen:]
	if w&termSegLen != 0 {
		if len(b) < 2 {
			return t, nil
		}
		t.SegLen = binary.BigEndian.Uint16(b)
		b = b[2:]
	}
	if w&termDDP != 0 {
		var h Header
		if DecodeHeader(b, &h) != nil {
			t.SegLen = 0
			return t, nil
		}
		t.DDP, t.HasDDP = h, true
		b = b[h.Len():]
	} else {
		t.SegLen = 0
	}
	if w&termRDMAP != 0 && len(b) >= ReadReqLen {
		copy(t.RDMAP[:], b)
		t.HasRDMAP = true
	}
	return t, nil
}
