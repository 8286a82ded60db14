package msgr2

// SessionRetry refuses a stale connect seq and says which one the server has.
//
//	le64 connect seq
type SessionRetry struct{ ConnectSeq uint64 }

// Tag implements Frame.
func (*SessionRetry) Tag() Tag { return TagSessionRetry }

// Append implements Frame.
func (f *SessionRetry) Append(dst []byte) []byte { return le.AppendUint64(dst, f.ConnectSeq) }

// Decode implements Frame.
func (f *SessionRetry) Decode(p []byte) error {
	r := reader{p: p}
	f.ConnectSeq = r.u64()
	return r.fail("SESSION_RETRY")
}
