package msgr2

// HeaderLen is the length of a message's segment 0.
const HeaderLen = 41

// Message flags, a heritage of the footer of msgr v1. Ceph's daemons send
// FlagComplete | FlagNoCRC: the checksums are the frame's.
const (
	FlagComplete = 1 << 0
	FlagNoCRC    = 1 << 1
)

// Header is Ceph's ceph_msg_header2, the first segment of a message.
//
//	le64 seq | le64 tid | le16 type | le16 priority | le16 version |
//	le32 data_pre_padding_len | le16 data_off | le64 ack_seq | u8 flags |
//	le16 compat_version | le16 reserved
type Header struct {
	Seq            uint64
	TID            uint64
	Type           uint16
	Priority       uint16
	Version        uint16
	DataPrePadding uint32
	DataOff        uint16
	AckSeq         uint64
	Flags          uint8
	CompatVersion  uint16
	Reserved       uint16
}

// Append appends the encoded header.
func (h *Header) Append(dst []byte) []byte {
	dst = le.AppendUint64(dst, h.Seq)
	dst = le.AppendUint64(dst, h.TID)
	dst = le.AppendUint16(dst, h.Type)
	dst = le.AppendUint16(dst, h.Priority)
	dst = le.AppendUint16(dst, h.Version)
	dst = le.AppendUint32(dst, h.DataPrePadding)
	dst = le.AppendUint16(dst, h.DataOff)
	dst = le.AppendUint64(dst, h.AckSeq)
	dst = append(dst, h.Flags)
	dst = le.AppendUint16(dst, h.CompatVersion)
	return le.AppendUint16(dst, h.Reserved)
}

// Decode decodes the first HeaderLen bytes of p.
func (h *Header) Decode(p []byte) error {
	if len(p) < HeaderLen {
		return decodeErr("message header", ErrTruncated, "%d bytes", len(p))
	}
	h.Seq, h.TID = le.Uint64(p), le.Uint64(p[8:])
	h.Type, h.Priority, h.Version = le.Uint16(p[16:]), le.Uint16(p[18:]), le.Uint16(p[20:])
	h.DataPrePadding, h.DataOff = le.Uint32(p[22:]), le.Uint16(p[26:])
	h.AckSeq, h.Flags = le.Uint64(p[28:]), p[36]
	h.CompatVersion, h.Reserved = le.Uint16(p[37:]), le.Uint16(p[39:])
	return nil
}
