package iwarp

import (
	"encoding/binary"

	"github.com/argonaut-rdma/argonaut/verbs/driver"
	"github.com/argonaut-rdma/argonaut/verbs/iwarp/internal/wire"
)

// violation is what is wrong with a peer's access to memory. DDP names it for tagged segments, RDMAP for READs and
// atomics.
type violation uint8

const (
	accessOK violation = iota
	accessNoSTag
	accessBounds
	accessRights
	accessStream
	accessWrap
)

func (v violation) tagged() wire.TermCode {
	switch v {
	case accessNoSTag:
		return wire.TermDDPInvalidSTag
	case accessBounds:
		return wire.TermDDPBounds
	case accessRights: // DDP has no code for it
		return wire.TermRDMAPAccess
	case accessStream:
		return wire.TermDDPStream
	}
	return wire.TermDDPWrap
}

func (v violation) rdmap() wire.TermCode {
	switch v {
	case accessNoSTag:
		return wire.TermRDMAPInvalidSTag
	case accessBounds:
		return wire.TermRDMAPBounds
	case accessRights:
		return wire.TermRDMAPAccess
	case accessStream:
		return wire.TermRDMAPStream
	}
	return wire.TermRDMAPWrap
}

// remoteAccess checks the peer's access to n bytes at to, n above 0, and returns where they are. The region is not acquired.
func (q *queuePair) remoteAccess(stag uint32, to, n uint64, need driver.Access) (reg *region, off uint64, v violation) {
	reg = q.dev.stags.lookup(stag)
	switch {
	case reg == nil || reg.closed():
		return nil, 0, accessNoSTag
	case reg.pd != q.pd || reg.qp != nil && reg.qp != q:
		return nil, 0, accessStream
	case reg.access&need == 0:
		return nil, 0, accessRights
	case to+n-1 < to:
		return nil, 0, accessWrap
	}
	off, ok := reg.offset(to, n)
	if !ok {
		return nil, 0, accessBounds
	}
	return reg, off, accessOK
}

// putNative writes an atomic's result as the host reads it.
func putNative(p []byte, v uint64) { binary.NativeEndian.PutUint64(p, v) }
