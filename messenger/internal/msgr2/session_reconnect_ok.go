package msgr2

// SessionReconnectOK resumes a session: the client sends again what came after
// this seq.
//
//	le64 last message seq received
type SessionReconnectOK struct{ MsgSeq uint64 }

// Tag implements Frame.
func (*SessionReconnectOK) Tag() Tag { return TagSessionReconnectOK }

// Append implements Frame.
func (f *SessionReconnectOK) Append(dst []byte) []byte { return le.AppendUint64(dst, f.MsgSeq) }

// Decode implements Frame.
func (f *SessionReconnectOK) Decode(p []byte) error {
	r := reader{p: p}
	f.MsgSeq = r.u64()
	return r.fail("SESSION_RECONNECT_OK")
}
