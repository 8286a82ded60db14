package msgr2

import "encoding/binary"

var le = binary.LittleEndian

// reader consumes little endian fields. The first failure sticks: fields read
// after it are zero, and fail reports it once at the end.
type reader struct {
	p   []byte
	err error
}

func (r *reader) take(n int) []byte {
	if r.err != nil {
		return nil
	}
	if n < 0 || n > len(r.p) {
		r.err = ErrTruncated
		return nil
	}
	b := r.p[:n:n]
	r.p = r.p[n:]
	return b
}

func (r *reader) u8() uint8 {
	if b := r.take(1); b != nil {
		return b[0]
	}
	return 0
}

func (r *reader) u32() uint32 {
	if b := r.take(4); b != nil {
		return le.Uint32(b)
	}
	return 0
}

func (r *reader) u64() uint64 {
	if b := r.take(8); b != nil {
		return le.Uint64(b)
	}
	return 0
}

// blob reads a 32-bit length and that many bytes, which alias the input.
func (r *reader) blob() []byte {
	n := r.u32()
	if r.err == nil && uint64(n) > uint64(len(r.p)) {
		r.err = ErrTruncated
		return nil
	}
	return r.take(int(n))
}

// u32s reads a counted list of at most MaxMethods words.
func (r *reader) u32s() []uint32 {
	n := r.u32()
	if r.err != nil || n == 0 {
		return nil
	}
	if n > MaxMethods {
		r.err = ErrTooLarge
		return nil
	}
	if uint64(n)*4 > uint64(len(r.p)) {
		r.err = ErrTruncated
		return nil
	}
	v := make([]uint32, n)
	for i := range v {
		v[i] = r.u32()
	}
	return v
}

// fail turns the first failure into a DecodeError about part.
func (r *reader) fail(part string) error {
	if r.err == nil {
		return nil
	}
	return &DecodeError{Part: part, Err: r.err}
}

func appendBlob(dst, b []byte) []byte {
	dst = le.AppendUint32(dst, uint32(len(b)))
	return append(dst, b...)
}

func appendU32s(dst []byte, v []uint32) []byte {
	dst = le.AppendUint32(dst, uint32(len(v)))
	for _, x := range v {
		dst = le.AppendUint32(dst, x)
	}
	return dst
}
