package wire

import "encoding/binary"

// Specification constants (RFC 5044 section 7.1, RFC 6581 section 5).
const (
	MPAHeaderLen   = 20  // bytes: key, flags, revision, private data length
	MaxPrivateData = 512 // bytes, the enhanced prefix included
	EnhancedLen    = 4   // bytes of IRD and ORD at the head of the private data
	MaxDepth       = 1<<14 - 1

	mpaKeyLen = 16
	mpaReqKey = "MPA ID Req Frame"
	mpaRepKey = "MPA ID Rep Frame"

	mpaMarkers  = 0x8000
	mpaCRC      = 0x4000
	mpaReject   = 0x2000
	mpaEnhanced = 0x1000
	mpaRevMask  = 0x00ff

	enhP2P      = 0x8000 // IRD word, A
	enhRTRSend  = 0x4000 // IRD word, B
	enhRTRWrite = 0x8000 // ORD word, C
	enhRTRRead  = 0x4000 // ORD word, D
)

// MPAFrame is the fixed part of an MPA request or reply.
type MPAFrame struct {
	Reply          bool
	Markers        bool // M: the sender wants markers in what it receives
	CRC            bool // C: checksums are wanted; used when either side wants them
	Reject         bool // R: reply only
	Enhanced       bool // S: the private data begins with an Enhanced prefix
	Rev            uint8
	PrivateDataLen int // bytes that follow, the prefix included
}

// AppendMPA appends the fixed part; the private data is the caller's to append.
func AppendMPA(b []byte, f MPAFrame) []byte {
	key := mpaReqKey
	if f.Reply {
		key = mpaRepKey
	}
	w := uint16(f.Rev)
	w |= bit(f.Markers, mpaMarkers) | bit(f.CRC, mpaCRC) | bit(f.Reject, mpaReject) | bit(f.Enhanced, mpaEnhanced)
	b = append(b, key...)
	b = binary.BigEndian.AppendUint16(b, w)
	return binary.BigEndian.AppendUint16(b, uint16(f.PrivateDataLen))
}

// DecodeMPA decodes the fixed part of a reply or of a request. Revisions other than 1 and 2 are refused, as is more
// private data than the standard allows, before a byte of it is read.
func DecodeMPA(b []byte, reply bool) (MPAFrame, error) {
	if len(b) < MPAHeaderLen {
		return MPAFrame{}, decodeErr("MPA frame is short", uint64(len(b)), TermMPAInvalidRequest)
	}
	key := mpaReqKey
	if reply {
		key = mpaRepKey
	}
	if string(b[:mpaKeyLen]) != key {
		return MPAFrame{}, decodeErr("not an MPA frame, first bytes", binary.BigEndian.Uint64(b), TermMPAInvalidRequest)
	}
	w := binary.BigEndian.Uint16(b[mpaKeyLen:])
	f := MPAFrame{
		Reply:          reply,
		Markers:        w&mpaMarkers != 0,
		CRC:            w&mpaCRC != 0,
		Reject:         w&mpaReject != 0,
		Enhanced:       w&mpaEnhanced != 0,
		Rev:            uint8(w & mpaRevMask),
		PrivateDataLen: int(binary.BigEndian.Uint16(b[mpaKeyLen+2:])),
	}
	if f.Rev != 1 && f.Rev != 2 {
		return MPAFrame{}, decodeErr("MPA revision", uint64(f.Rev), TermMPAInvalidRequest)
	}
	if f.Rev == 1 {
		f.Enhanced = false // a reserved bit there
	}
	if f.PrivateDataLen > MaxPrivateData {
		return MPAFrame{}, decodeErr("MPA private data length", uint64(f.PrivateDataLen), TermMPAInvalidRequest)
	}
	if f.Enhanced && f.PrivateDataLen < EnhancedLen {
		return MPAFrame{}, decodeErr("MPA private data too short for IRD and ORD", uint64(f.PrivateDataLen), TermMPAInvalidRequest)
	}
	return f, nil
}

// Enhanced is the prefix of RFC 6581: read depths and the ready-to-receive message of a peer-to-peer connection.
type Enhanced struct {
	IRD, ORD   uint16 // at most MaxDepth
	PeerToPeer bool   // A
	RTRSend    bool   // B: a zero-length SEND
	RTRWrite   bool   // C: a zero-length WRITE
	RTRRead    bool   // D: a zero-length READ
}

// AppendEnhanced appends the prefix.
func AppendEnhanced(b []byte, e Enhanced) []byte {
	b = binary.BigEndian.AppendUint16(b, e.IRD&MaxDepth|bit(e.PeerToPeer, enhP2P)|bit(e.RTRSend, enhRTRSend))
	return binary.BigEndian.AppendUint16(b, e.ORD&MaxDepth|bit(e.RTRWrite, enhRTRWrite)|bit(e.RTRRead, enhRTRRead))
}

// DecodeEnhanced decodes the prefix.
func DecodeEnhanced(b []byte) (Enhanced, error) {
	if len(b) < EnhancedLen {
		return Enhanced{}, decodeErr("MPA private data too short for IRD and ORD", uint64(len(b)), TermMPAInvalidRequest)
	}
	i, o := binary.BigEndian.Uint16(b), binary.BigEndian.Uint16(b[2:])
	return Enhanced{
		IRD: i & MaxDepth, ORD: o & MaxDepth,
		PeerToPeer: i&enhP2P != 0, RTRSend: i&enhRTRSend != 0,
		RTRWrite: o&enhRTRWrite != 0, RTRRead: o&enhRTRRead != 0,
	}, nil
}

func bit(on bool, v uint16) uint16 {
	if on {
		return v
	}
	return 0
}
