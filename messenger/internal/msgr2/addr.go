package msgr2

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"strconv"
)

// AddrType says which protocol an address speaks.
type AddrType uint32

// Ceph's address types, and behind them this project's own. The latter are
// sent only to a peer that offered FeatureArgonaut.
const (
	AddrNone   AddrType = 0
	AddrLegacy AddrType = 1
	AddrMsgr2  AddrType = 2
	AddrAny    AddrType = 3

	AddrIWARP AddrType = 0x41720001
	AddrRDMA  AddrType = 0x41720002
)

func (t AddrType) String() string {
	switch t {
	case AddrNone:
		return "none"
	case AddrLegacy:
		return "v1"
	case AddrMsgr2:
		return "v2"
	case AddrAny:
		return "any"
	case AddrIWARP:
		return "iwarp"
	case AddrRDMA:
		return "rdma"
	}
	return "type" + strconv.FormatUint(uint64(t), 10)
}

// Address families as Linux numbers them, which is how they travel.
const (
	familyNone = 0
	familyIPv4 = 2
	familyIPv6 = 10

	sockaddrLen4 = 16
	sockaddrLen6 = 28
)

// Addr is Ceph's entity_addr_t: the address of one incarnation of an entity.
//
//	u8 marker 1 | u8 version 1 | u8 compat 1 | le32 length |
//	le32 type | le32 nonce | le32 sockaddr length | sockaddr
//
// The sockaddr is Linux's: family in little endian, port and IP address in
// network order; 16 bytes for IPv4, 28 for IPv6 and for an empty address.
type Addr struct {
	Type     AddrType
	Nonce    uint32
	Family   uint16 // 0, 2 (IPv4) or 10 (IPv6)
	Port     uint16
	IP       [16]byte // an IPv4 address is in the first four
	FlowInfo uint32
	ScopeID  uint32
}

// AddrFrom makes an Addr of ap; an invalid ap gives an address without family.
func AddrFrom(t AddrType, ap netip.AddrPort, nonce uint32) Addr {
	a := Addr{Type: t, Nonce: nonce, Port: ap.Port()}
	switch ip := ap.Addr().Unmap(); {
	case ip.Is4():
		a.Family = familyIPv4
		b := ip.As4()
		copy(a.IP[:], b[:])
	case ip.Is6():
		a.Family = familyIPv6
		a.IP = ip.As16()
	default:
		a.Port = 0
	}
	return a
}

// AddrPort returns the IP address and port, or the zero AddrPort for an
// address without family.
func (a *Addr) AddrPort() netip.AddrPort {
	switch a.Family {
	case familyIPv4:
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte(a.IP[:4])), a.Port)
	case familyIPv6:
		return netip.AddrPortFrom(netip.AddrFrom16(a.IP), a.Port)
	}
	return netip.AddrPort{}
}

// String is Ceph's notation: type:ip:port/nonce.
func (a Addr) String() string {
	if a.Family == familyNone {
		return "-"
	}
	return fmt.Sprintf("%v:%v/%d", a.Type, a.AddrPort(), a.Nonce)
}

// Append appends the encoded address.
func (a *Addr) Append(dst []byte) []byte {
	n := sockaddrLen6
	if a.Family == familyIPv4 {
		n = sockaddrLen4
	}
	dst = append(dst, 1, 1, 1)
	dst = le.AppendUint32(dst, uint32(12+n))
	dst = le.AppendUint32(dst, uint32(a.Type))
	dst = le.AppendUint32(dst, a.Nonce)
	dst = le.AppendUint32(dst, uint32(n))
	dst = le.AppendUint16(dst, a.Family)
	dst = binary.BigEndian.AppendUint16(dst, a.Port)
	if a.Family == familyIPv4 {
		dst = append(dst, a.IP[:4]...)
		return append(dst, 0, 0, 0, 0, 0, 0, 0, 0)
	}
	dst = binary.BigEndian.AppendUint32(dst, a.FlowInfo)
	dst = append(dst, a.IP[:]...)
	return le.AppendUint32(dst, a.ScopeID)
}

// read decodes one address, in the present or in the legacy encoding.
func (a *Addr) read(r *reader) {
	*a = Addr{}
	switch marker := r.u8(); {
	case r.err != nil:
		return
	case marker == 0:
		a.readLegacy(r)
		return
	case marker != 1:
		r.err = ErrMalformed
		return
	}
	version, compat, n := r.u8(), r.u8(), r.u32()
	if r.err == nil && (version < 1 || compat > 1) {
		r.err = ErrMalformed
	}
	if r.err == nil && uint64(n) > uint64(len(r.p)) {
		r.err = ErrTruncated
	}
	// The counted struct may be longer than what is known of it.
	in := reader{p: r.take(int(n)), err: r.err}
	a.Type, a.Nonce = AddrType(in.u32()), in.u32()
	if sa := in.blob(); in.err == nil && len(sa) > 0 {
		in.err = a.setSockaddr(sa)
	}
	r.err = in.err
}

// readLegacy reads what follows marker 0: three bytes of padding, nonce and
// a sockaddr_storage with the family in network order.
func (a *Addr) readLegacy(r *reader) {
	r.take(3)
	a.Type, a.Nonce = AddrLegacy, r.u32()
	sa := r.take(128)
	if r.err != nil {
		return
	}
	var b [sockaddrLen6]byte
	copy(b[:], sa)
	b[0], b[1] = b[1], b[0]
	n := sockaddrLen6
	if le.Uint16(b[:]) == familyIPv4 {
		n = sockaddrLen4
	}
	r.err = a.setSockaddr(b[:n])
}

func (a *Addr) setSockaddr(sa []byte) error {
	if len(sa) < 2 {
		return ErrTruncated
	}
	family := le.Uint16(sa)
	switch family {
	case familyNone:
		if len(sa) > sockaddrLen6 {
			return ErrTooLarge
		}
		return nil
	case familyIPv4:
		if len(sa) != sockaddrLen4 {
			return ErrMalformed
		}
		copy(a.IP[:4], sa[4:])
	case familyIPv6:
		if len(sa) != sockaddrLen6 {
			return ErrMalformed
		}
		a.FlowInfo = binary.BigEndian.Uint32(sa[4:])
		copy(a.IP[:], sa[8:])
		a.ScopeID = le.Uint32(sa[24:])
	default:
		return ErrMalformed
	}
	a.Family, a.Port = family, binary.BigEndian.Uint16(sa[2:])
	return nil
}

// Decode decodes one address at the start of p.
func (a *Addr) Decode(p []byte) error {
	r := reader{p: p}
	a.read(&r)
	return r.fail("entity_addr_t")
}
