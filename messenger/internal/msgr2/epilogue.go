package msgr2

// EpilogueLen is the length of the epilogue in crc mode.
const EpilogueLen = 13

// The late status: a nibble code, so that one flipped bit is not mistaken for
// the other status.
const (
	lateAborted  = 0x1
	lateComplete = 0xe
	lateMask     = 0xf
)

// Epilogue closes a frame of more than one segment.
//
//	u8 late status | le32 crc32c of segments 1, 2, 3 (0 for one that the frame has not)
type Epilogue struct {
	Aborted bool
	CRC     [MaxSegments - 1]uint32
}

// Append appends the encoded epilogue.
func (e *Epilogue) Append(dst []byte) []byte {
	status := byte(lateComplete)
	if e.Aborted {
		status = lateAborted
	}
	dst = append(dst, status)
	for _, c := range e.CRC {
		dst = le.AppendUint32(dst, c)
	}
	return dst
}

// Decode decodes the first EpilogueLen bytes of b. It does not compare the
// checksums: CheckSegment does, for those that the caller wants checked.
func (e *Epilogue) Decode(b []byte) error {
	if len(b) < EpilogueLen {
		return decodeErr("epilogue", ErrTruncated, "%d bytes", len(b))
	}
	switch b[0] & lateMask {
	case lateComplete:
		e.Aborted = false
	case lateAborted:
		e.Aborted = true
	default:
		return decodeErr("epilogue", ErrMalformed, "late status %#02x", b[0])
	}
	for i := range e.CRC {
		e.CRC[i] = le.Uint32(b[1+4*i:])
	}
	return nil
}

// Check compares the checksum of segment i, 1 to 3, computed from CRCSeed
// over its bytes, with the received one.
func (e *Epilogue) Check(i int, computed uint32) error {
	if want := e.CRC[i-1]; computed != want {
		return decodeErr(segNames[i], ErrChecksum, "computed %#08x, received %#08x", computed, want)
	}
	return nil
}

var segNames = [MaxSegments]string{"segment 0", "front segment", "middle segment", "data segment"}

// CheckSegZero splits segment 0 from its checksum, as they lie on the wire,
// and checks it. b has p.SegZeroLen() bytes.
func (p *Preamble) CheckSegZero(b []byte) ([]byte, error) {
	n := int(p.Segs[0].Len)
	if n == 0 {
		return nil, nil
	}
	if len(b) < n+4 {
		return nil, decodeErr(segNames[0], ErrTruncated, "%d bytes of %d", len(b), n+4)
	}
	if got, want := CRC(CRCSeed, b[:n]), le.Uint32(b[n:]); got != want {
		return nil, decodeErr(segNames[0], ErrChecksum, "computed %#08x, received %#08x", got, want)
	}
	return b[:n:n], nil
}
