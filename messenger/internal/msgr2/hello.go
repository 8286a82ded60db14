package msgr2

import "fmt"

// Hello is the first frame of both sides: who I am, and how I see you.
//
//	u8 entity type | Addr of the peer as seen by the sender | le32 MaxFront | le64 MaxData | le64 Instance
//
// The last three are this project's: the limits are there only if MaxData or Instance
// is not 0, Instance only if that is not 0.
type Hello struct {
	Entity   EntityType
	PeerAddr Addr
	// MaxFront and MaxData are the largest front, or middle, and the largest data
	// that the sender takes, bytes.
	MaxFront uint32
	MaxData  uint64
	// Instance is a number of the sender's that no other messenger has, nor the same
	// one after a restart.
	Instance uint64
}

// String leaves out what is not there.
func (f Hello) String() string {
	s := fmt.Sprintf("{Entity:%v PeerAddr:%v", f.Entity, f.PeerAddr)
	if f.MaxData != 0 {
		s += fmt.Sprintf(" MaxFront:%d MaxData:%d", f.MaxFront, f.MaxData)
	}
	if f.Instance != 0 {
		s += fmt.Sprintf(" Instance:%#x", f.Instance)
	}
	return s + "}"
}

// Tag implements Frame.
func (*Hello) Tag() Tag { return TagHello }

// Append implements Frame.
func (f *Hello) Append(dst []byte) []byte {
	dst = f.PeerAddr.Append(append(dst, byte(f.Entity)))
	if f.MaxData == 0 && f.Instance == 0 {
		return dst
	}
	dst = le.AppendUint64(le.AppendUint32(dst, f.MaxFront), f.MaxData)
	if f.Instance == 0 {
		return dst
	}
	return le.AppendUint64(dst, f.Instance)
}

// Decode implements Frame.
func (f *Hello) Decode(p []byte) error {
	r := reader{p: p}
	f.Entity = EntityType(r.u8())
	f.PeerAddr.read(&r)
	f.MaxFront, f.MaxData, f.Instance = 0, 0, 0
	if r.err == nil && len(r.p) >= 12 {
		if front, data := r.u32(), r.u64(); data != 0 {
			f.MaxFront, f.MaxData = front, data
		}
		if len(r.p) >= 8 {
			f.Instance = r.u64()
		}
	}
	return r.fail("HELLO")
}
