package msgr2

// ServerIdent opens the session (server to client).
//
//	AddrVec of the server | le64 number of the entity | le64 global seq |
//	le64 supported | le64 required | le64 flags | le64 server cookie
type ServerIdent struct {
	Addrs               AddrVec
	GID                 int64
	GlobalSeq           uint64
	Supported, Required uint64
	Flags               uint64
	Cookie              uint64
}

// Tag implements Frame.
func (*ServerIdent) Tag() Tag { return TagServerIdent }

// Append implements Frame.
func (f *ServerIdent) Append(dst []byte) []byte {
	dst = le.AppendUint64(f.Addrs.Append(dst), uint64(f.GID))
	for _, v := range [...]uint64{f.GlobalSeq, f.Supported, f.Required, f.Flags, f.Cookie} {
		dst = le.AppendUint64(dst, v)
	}
	return dst
}

// Decode implements Frame.
func (f *ServerIdent) Decode(p []byte) error {
	r := reader{p: p}
	f.Addrs = readAddrVec(&r)
	f.GID, f.GlobalSeq = int64(r.u64()), r.u64()
	f.Supported, f.Required = r.u64(), r.u64()
	f.Flags, f.Cookie = r.u64(), r.u64()
	return r.fail("SERVER_IDENT")
}
