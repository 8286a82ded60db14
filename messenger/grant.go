package messenger

import (
	"encoding/binary"
	"fmt"
)

// Grant lets the peer of one connection read or write one range of our memory,
// until it is revoked or the transport that it was made on ends: after a
// reconnect the operation starts again with new grants. It travels in messages
// (AppendGrants, DecodeGrants). A grant that the peer made up, or changed,
// reaches no memory that was not granted to this connection.
type Grant struct {
	Addr  uint64 // of the first byte, as the granting side counts
	Len   uint64 // bytes
	RKey  uint32
	Epoch uint32 // of the transport that it holds for
	Write bool   // the peer may write; else it may read
	// Framed: on RDMA, the bytes travel in frames, because the granting side's
	// adapter can not confine a key to them.
	Framed bool
	// Once: one Pull or Push ends it (GrantOnce).
	Once bool
}

const (
	// GrantLen is the encoded length of a Grant.
	GrantLen = 25
	// grantsHead is what an encoded list has before its grants.
	grantsHead = 4
	// Flags of an encoded grant.
	grantWrite, grantFramed, grantOnce = 1, 2, 4
	// MaxGrants is how many grants one list may have.
	MaxGrants = 4096
)

// AppendGrants appends an encoded list of grants:
//
//	le32 count | count x (le64 addr | le64 length | le32 rkey | le32 epoch | u8 flags)
func AppendGrants(dst []byte, gs []Grant) []byte {
	dst = binary.LittleEndian.AppendUint32(dst, uint32(len(gs)))
	for _, g := range gs {
		dst = binary.LittleEndian.AppendUint64(dst, g.Addr)
		dst = binary.LittleEndian.AppendUint64(dst, g.Len)
		dst = binary.LittleEndian.AppendUint32(dst, g.RKey)
		dst = binary.LittleEndian.AppendUint32(dst, g.Epoch)
		w := byte(0)
		if g.Write {
			w |= grantWrite
		}
		if g.Framed {
			w |= grantFramed
		}
		if g.Once {
			w |= grantOnce
		}
		dst = append(dst, w)
	}
	return dst
}

// DecodeGrants decodes a list of at most MaxGrants, appends it to gs, and
// returns what follows it in p. It accepts any input. Errors: ErrInvalid.
func DecodeGrants(gs []Grant, p []byte) (out []Grant, rest []byte, err error) {
	if len(p) < 4 {
		return gs, p, fmt.Errorf("%w: list of grants of %d bytes", ErrInvalid, len(p))
	}
	n := binary.LittleEndian.Uint32(p)
	if n > MaxGrants {
		return gs, p, fmt.Errorf("%w: %d grants, at most %d accepted", ErrInvalid, n, MaxGrants)
	}
	if len(p)-4 < int(n)*GrantLen {
		return gs, p, fmt.Errorf("%w: %d grants in %d bytes", ErrInvalid, n, len(p)-4)
	}
	p = p[4:]
	for range n {
		g := Grant{
			Addr:  binary.LittleEndian.Uint64(p),
			Len:   binary.LittleEndian.Uint64(p[8:]),
			RKey:  binary.LittleEndian.Uint32(p[16:]),
			Epoch: binary.LittleEndian.Uint32(p[20:]),
			Write: p[24]&grantWrite != 0, Framed: p[24]&grantFramed != 0, Once: p[24]&grantOnce != 0,
		}
		if g.Len > 1<<40 || g.Addr+g.Len < g.Addr {
			return gs, p, fmt.Errorf("%w: grant of %d bytes at %#x", ErrInvalid, g.Len, g.Addr)
		}
		gs = append(gs, g)
		p = p[GrantLen:]
	}
	return gs, p, nil
}

// GrantsLen is the number of bytes that gs cover.
func GrantsLen(gs []Grant) uint64 {
	var n uint64
	for i := range gs {
		n += gs[i].Len
	}
	return n
}
