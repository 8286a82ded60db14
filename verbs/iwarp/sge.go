package iwarp

// cursor walks the bytes of a scatter/gather list.
type cursor struct {
	sges []sge
	i    int
	off  uint32 // within sges[i]
}

// next returns up to limit bytes that lie in one piece, and moves past them. The bytes may be touched only while reg is
// acquired.
func (c *cursor) next(limit int) (reg *region, p []byte) {
	s := &c.sges[c.i]
	n := min(limit, int(s.n-c.off))
	from := s.off + uint64(c.off)
	p = s.reg.mem[from : from+uint64(n) : from+uint64(n)]
	if c.off += uint32(n); c.off == s.n {
		c.i++
		c.off = 0
	}
	return s.reg, p
}
