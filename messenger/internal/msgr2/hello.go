package msgr2

import "fmt"

// Hello is the first frame of both sides: who I am, and how I see you.
//
//	u8 entity type | Addr of the peer as seen by the sender | le32 MaxFront | le64 MaxData
//
// The last two are this project's, and are there only if MaxData is not 0.
type Hello struct {
	Entity   EntityType
	PeerAddr Addr
	// MaxFront and MaxData are the largest front, or middle, and the largest data
	// that the sender takes, bytes.
	MaxFront uint32
	MaxData  uint64
}

// String leaves out what is not there.
func (f Hello) String() string {
	if f.MaxData == 0 {
		return fmt.Sprintf("{Entity:%v PeerAddr:%v}", f.Entity, f.PeerAddr)
	}
	return fmt.Sprintf("{Entity:%v PeerAddr:%v MaxFront:%d MaxData:%d}", f.Entity, f.PeerAddr, f.MaxFront, f.MaxData)
}

// Tag implements Frame.
func (*Hello) Tag() Tag { return TagHello }

// Append implements Frame.
func (f *Hello) Append(dst []byte) []byte {
	dst = f.PeerAddr.Append(append(dst, byte(f.Entity)))
	if f.MaxData == 0 {
		return dst
	}
	return le.AppendUint64(le.AppendUint32(dst, f.MaxFront), f.MaxData)
}

// Decode implements Frame.
func (f *Hello) Decode(p []byte) error {
	r := reader{p: p}
	f.Entity = EntityType(r.u8())
	f.PeerAddr.read(&r)
	f.MaxFront, f.MaxData = 0, 0
	if r.err == nil && len(r.p) >= 12 {
		if front, data := r.u32(), r.u64(); data != 0 {
			f.MaxFront, f.MaxData = front, data
		}
	}
	return r.fail("HELLO")
}
