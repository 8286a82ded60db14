package msgr2

// SessionRetryGlobal refuses a stale global seq and says which one the server
// has.
//
//	le64 global seq
type SessionRetryGlobal struct{ GlobalSeq uint64 }

// Tag implements Frame.
func (*SessionRetryGlobal) Tag() Tag { return TagSessionRetryGlobal }

// Append implements Frame.
func (f *SessionRetryGlobal) Append(dst []byte) []byte { return le.AppendUint64(dst, f.GlobalSeq) }

// Decode implements Frame.
func (f *SessionRetryGlobal) Decode(p []byte) error {
	r := reader{p: p}
	f.GlobalSeq = r.u64()
	return r.fail("SESSION_RETRY_GLOBAL")
}
