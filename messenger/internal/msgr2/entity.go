package msgr2

import "strconv"

// EntityType is the kind of a peer, one bit each.
type EntityType uint8

// Ceph's entity types.
const (
	EntityMon    EntityType = 0x01
	EntityMDS    EntityType = 0x02
	EntityOSD    EntityType = 0x04
	EntityClient EntityType = 0x08
	EntityMgr    EntityType = 0x10
	EntityAuth   EntityType = 0x20
	EntityAny    EntityType = 0xff
)

func (t EntityType) String() string {
	switch t {
	case EntityMon:
		return "mon"
	case EntityMDS:
		return "mds"
	case EntityOSD:
		return "osd"
	case EntityClient:
		return "client"
	case EntityMgr:
		return "mgr"
	case EntityAuth:
		return "auth"
	case EntityAny:
		return "any"
	}
	return "type" + strconv.Itoa(int(t))
}

// EntityName is a type and a number; the number is -1 for one that has none
// yet.
//
//	u8 type | le64 number
type EntityName struct {
	Type EntityType
	Num  int64
}

// EntityNameLen is the encoded length of an EntityName.
const EntityNameLen = 9

// Append appends the encoded name.
func (n EntityName) Append(dst []byte) []byte {
	return le.AppendUint64(append(dst, byte(n.Type)), uint64(n.Num))
}

// Decode decodes the first EntityNameLen bytes of p.
func (n *EntityName) Decode(p []byte) error {
	r := reader{p: p}
	n.Type, n.Num = EntityType(r.u8()), int64(r.u64())
	return r.fail("entity name")
}
