package msgr2

// SessionReconnect asks to resume a session (client to server).
//
//	AddrVec of the client | le64 client cookie | le64 server cookie |
//	le64 global seq | le64 connect seq | le64 last message seq received
type SessionReconnect struct {
	Addrs        AddrVec
	ClientCookie uint64
	ServerCookie uint64
	GlobalSeq    uint64
	ConnectSeq   uint64
	MsgSeq       uint64
}

// Tag implements Frame.
func (*SessionReconnect) Tag() Tag { return TagSessionReconnect }

// Append implements Frame.
func (f *SessionReconnect) Append(dst []byte) []byte {
	dst = f.Addrs.Append(dst)
	for _, v := range [...]uint64{f.ClientCookie, f.ServerCookie, f.GlobalSeq, f.ConnectSeq, f.MsgSeq} {
		dst = le.AppendUint64(dst, v)
	}
	return dst
}

// Decode implements Frame.
func (f *SessionReconnect) Decode(p []byte) error {
	r := reader{p: p}
	f.Addrs = readAddrVec(&r)
	f.ClientCookie, f.ServerCookie = r.u64(), r.u64()
	f.GlobalSeq, f.ConnectSeq, f.MsgSeq = r.u64(), r.u64(), r.u64()
	return r.fail("SESSION_RECONNECT")
}
