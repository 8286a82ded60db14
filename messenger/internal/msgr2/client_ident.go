package msgr2

// IdentLossy, in the flags of an ident, says that its sender treats the
// session as lossy.
const IdentLossy = 1 << 0

// ClientIdent asks for a new session (client to server).
//
//	AddrVec of the client | Addr it means to reach | le64 number of the entity | le64 global seq |
//	le64 supported | le64 required | le64 flags | le64 client cookie
type ClientIdent struct {
	Addrs               AddrVec
	Target              Addr
	GID                 int64
	GlobalSeq           uint64
	Supported, Required uint64
	Flags               uint64
	Cookie              uint64
}

// Tag implements Frame.
func (*ClientIdent) Tag() Tag { return TagClientIdent }

// Append implements Frame.
func (f *ClientIdent) Append(dst []byte) []byte {
	dst = f.Target.Append(f.Addrs.Append(dst))
	dst = le.AppendUint64(dst, uint64(f.GID))
	for _, v := range [...]uint64{f.GlobalSeq, f.Supported, f.Required, f.Flags, f.Cookie} {
		dst = le.AppendUint64(dst, v)
	}
	return dst
}

// Decode implements Frame.
func (f *ClientIdent) Decode(p []byte) error {
	r := reader{p: p}
	f.Addrs = readAddrVec(&r)
	f.Target.read(&r)
	f.GID, f.GlobalSeq = int64(r.u64()), r.u64()
	f.Supported, f.Required = r.u64(), r.u64()
	f.Flags, f.Cookie = r.u64(), r.u64()
	return r.fail("CLIENT_IDENT")
}
