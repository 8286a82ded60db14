package messenger

import (
	"encoding/binary"
	"fmt"
	"strconv"
)

// The payload of method none differs in its first byte. Towards a monitor:
//
//	u8 10 | le32 entity type | le32 length, id ("admin", "0") | le64 global id, 0 for none yet
//
// and towards any other daemon:
//
//	u8 1 | le32 entity type | le32 length, id | le64 global id

// maxEntityID bounds the id of a name in an authentication payload.
const maxEntityID = 256

func appendNonePayload(dst []byte, i AuthInfo) []byte {
	if i.Peer == Mon {
		dst = append(dst, authModeMon)
	} else {
		dst = append(dst, authModeAuthorizer)
	}
	id := "admin" // Ceph's name for a client without a number
	if i.Self.Num >= 0 {
		id = strconv.FormatInt(i.Self.Num, 10)
	}
	dst = binary.LittleEndian.AppendUint32(dst, uint32(i.Self.Type))
	dst = binary.LittleEndian.AppendUint32(dst, uint32(len(id)))
	dst = append(dst, id...)
	return binary.LittleEndian.AppendUint64(dst, 0)
}

func parseNonePayload(p []byte) (EntityName, uint64, error) {
	bad := func(what string) (EntityName, uint64, error) {
		return EntityName{}, 0, fmt.Errorf("%w: %s in the payload of method none", ErrAuth, what)
	}
	if len(p) < 1 || (p[0] != authModeMon && p[0] != authModeAuthorizer) {
		return bad("unknown kind")
	}
	p = p[1:]
	if len(p) < 8 {
		return bad("no name")
	}
	kind, n := binary.LittleEndian.Uint32(p), binary.LittleEndian.Uint32(p[4:])
	p = p[8:]
	if kind == 0 || kind > 0xff || n > maxEntityID || len(p) < int(n)+8 {
		return bad("bad name")
	}
	num := int64(-1)
	if v, err := strconv.ParseInt(string(p[:n]), 10, 64); err == nil && v >= 0 {
		num = v
	}
	return EntityName{EntityType(kind), num}, binary.LittleEndian.Uint64(p[n:]), nil
}
