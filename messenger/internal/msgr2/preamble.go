package msgr2

// Specification constants.
const (
	PreambleLen = 32
	CRCLen      = 4 // behind segment 0, in crc mode
	MaxSegments = 4

	// Alignments that Ceph announces; a receiver may ignore them.
	AlignDefault = 8
	AlignPage    = 4096

	// FlagCompressed marks segments as compressed. It is never sent, and
	// refused when received: compression is not negotiated.
	FlagCompressed = 1 << 0
)

// Segments of a message. Every other frame has segment 0 only.
const (
	SegHeader = iota
	SegFront
	SegMiddle
	SegData
)

// Segment is the announced length of a segment, in bytes, and the alignment
// its sender would like its memory to have.
type Segment struct {
	Len   uint32
	Align uint16
}

// Preamble opens every frame.
//
//	u8 tag | u8 segments | 4 x (le32 length, le16 alignment) | u8 flags | u8 reserved | le32 crc32c
type Preamble struct {
	Tag   Tag
	Num   uint8
	Flags uint8
	Segs  [MaxSegments]Segment
}

// ControlPreamble is the preamble of a frame with one segment of n bytes.
func ControlPreamble(t Tag, n int) Preamble {
	return Preamble{Tag: t, Num: 1, Segs: [MaxSegments]Segment{{Len: uint32(n), Align: AlignDefault}}}
}

// MessagePreamble is the preamble of a message. Trailing empty segments are
// not counted.
func MessagePreamble(front, middle, data int) Preamble {
	p := Preamble{Tag: TagMessage, Num: 1}
	p.Segs[SegHeader] = Segment{HeaderLen, AlignDefault}
	p.Segs[SegFront] = Segment{uint32(front), AlignDefault}
	p.Segs[SegMiddle] = Segment{uint32(middle), AlignDefault}
	p.Segs[SegData] = Segment{uint32(data), AlignPage}
	for i := MaxSegments - 1; i > 0; i-- {
		if p.Segs[i].Len > 0 {
			p.Num = uint8(i + 1)
			break
		}
		p.Segs[i] = Segment{}
	}
	return p
}

// Append appends the encoded preamble, its checksum included.
func (p *Preamble) Append(dst []byte) []byte {
	at := len(dst)
	dst = append(dst, byte(p.Tag), p.Num)
	for _, s := range p.Segs {
		dst = le.AppendUint32(dst, s.Len)
		dst = le.AppendUint16(dst, s.Align)
	}
	dst = append(dst, p.Flags, 0)
	return le.AppendUint32(dst, CRC(0, dst[at:]))
}

// Decode decodes and checks the first PreambleLen bytes of a frame: checksum,
// tag, number of segments and each length against lim. Nothing it accepts
// needs more memory than lim allows.
func (p *Preamble) Decode(b []byte, lim Limits) error {
	if len(b) < PreambleLen {
		return decodeErr("preamble", ErrTruncated, "%d bytes", len(b))
	}
	b = b[:PreambleLen]
	if got, want := CRC(0, b[:PreambleLen-4]), le.Uint32(b[PreambleLen-4:]); got != want {
		return decodeErr("preamble", ErrChecksum, "computed %#08x, received %#08x", got, want)
	}
	p.fields(b)
	return p.check(lim)
}

func (p *Preamble) check(lim Limits) error {
	if !p.Tag.Valid() {
		return decodeErr("preamble", ErrMalformed, "unknown %v", p.Tag)
	}
	if p.Flags&FlagCompressed != 0 {
		return decodeErr("preamble", ErrMalformed, "compressed %v, but compression was not offered", p.Tag)
	}
	if p.Num < 1 || p.Num > MaxSegments || (p.Num > 1 && p.Tag != TagMessage) {
		return decodeErr("preamble", ErrMalformed, "%v with %d segments", p.Tag, p.Num)
	}
	for i := int(p.Num); i < MaxSegments; i++ {
		if p.Segs[i].Len != 0 {
			return decodeErr("preamble", ErrMalformed, "%v with %d segments has %d bytes in segment %d",
				p.Tag, p.Num, p.Segs[i].Len, i)
		}
	}
	if p.Num > 1 && p.Segs[p.Num-1].Len == 0 {
		return decodeErr("preamble", ErrMalformed, "%v ends in an empty segment %d", p.Tag, p.Num-1)
	}
	lim = lim.WithDefaults()
	if p.Tag != TagMessage {
		return p.within(0, lim.Control)
	}
	if p.Segs[SegHeader].Len != HeaderLen {
		return decodeErr("preamble", ErrMalformed, "message header of %d bytes, not %d", p.Segs[SegHeader].Len, HeaderLen)
	}
	for i, max := range [...]uint32{SegFront: lim.Front, SegMiddle: lim.Middle, SegData: lim.Data} {
		if i == SegHeader {
			continue
		}
		if err := p.within(i, max); err != nil {
			return err
		}
	}
	return nil
}

func (p *Preamble) within(i int, max uint32) error {
	if p.Segs[i].Len > max {
		return decodeErr("preamble", ErrTooLarge, "%v announces %d bytes in segment %d, at most %d accepted",
			p.Tag, p.Segs[i].Len, i, max)
	}
	return nil
}

// SegZeroLen is the length on the wire of segment 0 and its checksum.
func (p *Preamble) SegZeroLen() int {
	if p.Segs[0].Len == 0 {
		return 0
	}
	return int(p.Segs[0].Len) + 4
}

// EpilogueLen is the length of this frame's epilogue: 0 or EpilogueLen.
func (p *Preamble) EpilogueLen() int {
	if p.Num > 1 {
		return EpilogueLen
	}
	return 0
}

// WireLen is the length of the whole frame.
func (p *Preamble) WireLen() int64 {
	n := int64(PreambleLen + p.SegZeroLen() + p.EpilogueLen())
	for _, s := range p.Segs[1:] {
		n += int64(s.Len)
	}
	return n
}

// PeekPreamble decodes the preamble of a frame of our own, and checks nothing.
func PeekPreamble(b []byte) (p Preamble, err error) {
	if len(b) < PreambleLen {
		return p, decodeErr("preamble", ErrTruncated, "%d bytes", len(b))
	}
	p.fields(b)
	return p, nil
}

func (p *Preamble) fields(b []byte) {
	p.Tag, p.Num, p.Flags = Tag(b[0]), b[1], b[PreambleLen-6]
	for i := range p.Segs {
		s := b[2+6*i:]
		p.Segs[i] = Segment{Len: le.Uint32(s), Align: le.Uint16(s[4:])}
	}
}
