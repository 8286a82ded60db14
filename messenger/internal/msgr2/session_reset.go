package msgr2

// SessionReset refuses a reconnect: the server has no such session. Full also
// tells the client to drop its side of it.
//
//	u8 full
type SessionReset struct{ Full bool }

// Tag implements Frame.
func (*SessionReset) Tag() Tag { return TagSessionReset }

// Append implements Frame.
func (f *SessionReset) Append(dst []byte) []byte {
	if f.Full {
		return append(dst, 1)
	}
	return append(dst, 0)
}

// Decode implements Frame.
func (f *SessionReset) Decode(p []byte) error {
	r := reader{p: p}
	f.Full = r.u8() != 0
	return r.fail("SESSION_RESET")
}
