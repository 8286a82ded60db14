package msgr2

// Hello is the first frame of both sides: who I am, and how I see you.
//
//	u8 entity type | Addr of the peer as seen by the sender
type Hello struct {
	Entity   EntityType
	PeerAddr Addr
}

// Tag implements Frame.
func (*Hello) Tag() Tag { return TagHello }

// Append implements Frame.
func (f *Hello) Append(dst []byte) []byte {
	return f.PeerAddr.Append(append(dst, byte(f.Entity)))
}

// Decode implements Frame.
func (f *Hello) Decode(p []byte) error {
	r := reader{p: p}
	f.Entity = EntityType(r.u8())
	f.PeerAddr.read(&r)
	return r.fail("HELLO")
}
