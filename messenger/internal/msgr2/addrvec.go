package msgr2

// AddrVec is Ceph's entity_addrvec_t: the addresses of one incarnation.
//
//	u8 marker 2 | le32 count | count x Addr
//
// A peer may also send a single address (marker 1) or a legacy one (marker 0).
type AddrVec []Addr

// Append appends the encoded list.
func (v AddrVec) Append(dst []byte) []byte {
	dst = append(dst, 2)
	dst = le.AppendUint32(dst, uint32(len(v)))
	for i := range v {
		dst = v[i].Append(dst)
	}
	return dst
}

func readAddrVec(r *reader) AddrVec {
	if r.err != nil {
		return nil
	}
	if len(r.p) == 0 {
		r.err = ErrTruncated
		return nil
	}
	if r.p[0] < 2 {
		var a Addr
		a.read(r)
		return AddrVec{a}
	}
	if r.u8() != 2 {
		r.err = ErrMalformed
		return nil
	}
	n := r.u32()
	if r.err != nil || n == 0 {
		return nil
	}
	if n > MaxAddrs {
		r.err = ErrTooLarge
		return nil
	}
	v := make(AddrVec, n)
	for i := range v {
		v[i].read(r)
	}
	if r.err != nil {
		return nil
	}
	return v
}

// Decode decodes a list at the start of p.
func (v *AddrVec) Decode(p []byte) error {
	r := reader{p: p}
	*v = readAddrVec(&r)
	return r.fail("entity_addrvec_t")
}
