package verbs

import (
	"fmt"
	"time"
)

// Kind is the type of a verbs object.
type Kind uint8

// The kinds of objects that Resources lists.
const (
	KindPD Kind = iota
	KindMR
	KindScopedMR // a key of MR.Scope
	KindMW
	KindCompChannel
	KindCQ
	KindSRQ
	KindQP
	KindListener
	KindConnRequest
)

var kindNames = [...]string{"PD", "MR", "scoped MR", "MW", "comp channel", "CQ", "SRQ", "QP", "listener", "connection request"}

func (k Kind) String() string {
	if int(k) < len(kindNames) {
		return kindNames[k]
	}
	return fmt.Sprint(uint8(k))
}

// Resource describes a live object.
type Resource struct {
	Kind         Kind
	ID           uint64 // unique in the device, in order of creation
	LKey, RKey   uint32 // MR, MW
	Addr, Length uint64 // MR
	QPN          uint32 // QP; for a window or scoped key the QP it is bound to
	Posted       int    // QP, SRQ, MR: requests posted or not yet polled
	Age          time.Duration
	Stack        string // where it was made, when tracing was on
}

func (r Resource) String() string {
	s := fmt.Sprintf("%v #%d", r.Kind, r.ID)
	switch r.Kind {
	case KindMR, KindScopedMR:
		s += fmt.Sprintf(" (lkey 0x%x, rkey 0x%x, addr 0x%x, %d bytes)", r.LKey, r.RKey, r.Addr, r.Length)
	case KindMW:
		s += fmt.Sprintf(" (rkey 0x%x)", r.RKey)
	case KindQP:
		s += fmt.Sprintf(" (QPN %d)", r.QPN)
	}
	return s
}
