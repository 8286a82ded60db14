package msgr2

import (
	"bytes"
	"encoding/binary"
)

// Compare orders addresses as Ceph does, which compares their memory: type and
// nonce byte by byte from the lowest on, then the sockaddr. Of two entities that
// connect to each other at the same time the order decides whose attempt is
// taken, so that both sides must agree.
func (a *Addr) Compare(b *Addr) int {
	x, y := a.memory(), b.memory()
	return bytes.Compare(x[:], y[:])
}

func (a *Addr) memory() (m [8 + sockaddrLen6]byte) {
	p := le.AppendUint32(m[:0], uint32(a.Type))
	p = le.AppendUint32(p, a.Nonce)
	p = le.AppendUint16(p, a.Family)
	p = binary.BigEndian.AppendUint16(p, a.Port)
	if a.Family == familyIPv4 {
		copy(m[len(p):], a.IP[:4])
		return m
	}
	p = binary.BigEndian.AppendUint32(p, a.FlowInfo)
	p = append(p, a.IP[:]...)
	_ = le.AppendUint32(p, a.ScopeID) // into m
	return m
}
