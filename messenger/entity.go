package messenger

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/argonaut-rdma/argonaut/messenger/internal/msgr2"
)

// EntityType is the kind of an entity, one bit each (Ceph: CEPH_ENTITY_TYPE_*).
type EntityType uint8

// Ceph's entity types.
const (
	Mon    EntityType = EntityType(msgr2.EntityMon)
	MDS    EntityType = EntityType(msgr2.EntityMDS)
	OSD    EntityType = EntityType(msgr2.EntityOSD)
	Client EntityType = EntityType(msgr2.EntityClient)
	Mgr    EntityType = EntityType(msgr2.EntityMgr)
)

func (t EntityType) String() string { return msgr2.EntityType(t).String() }

// EntityName names a daemon or client: osd.0. Num is -1 for a client that has
// not been given a number.
type EntityName struct {
	Type EntityType
	Num  int64
}

func (n EntityName) String() string {
	if n.Num < 0 {
		return n.Type.String() + ".?"
	}
	return fmt.Sprintf("%v.%d", n.Type, n.Num)
}

// ParseEntityName reads "osd.0"; "client.?" has no number.
func ParseEntityName(s string) (EntityName, error) {
	kind, num, ok := strings.Cut(s, ".")
	for _, t := range []EntityType{Mon, MDS, OSD, Client, Mgr} {
		if !ok || kind != t.String() {
			continue
		}
		if num == "?" {
			return EntityName{t, -1}, nil
		}
		if n, err := strconv.ParseInt(num, 10, 64); err == nil && n >= 0 {
			return EntityName{t, n}, nil
		}
	}
	return EntityName{}, fmt.Errorf("%w: entity name %q is not of the form osd.0", ErrInvalid, s)
}
