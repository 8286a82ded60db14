package msgr2

// AuthDone accepts the client and fixes the connection mode.
//
//	le64 global id | le32 mode | le32 length, payload
type AuthDone struct {
	GlobalID uint64
	Mode     Mode
	Payload  []byte
}

// Tag implements Frame.
func (*AuthDone) Tag() Tag { return TagAuthDone }

// Append implements Frame.
func (f *AuthDone) Append(dst []byte) []byte {
	dst = le.AppendUint64(dst, f.GlobalID)
	dst = le.AppendUint32(dst, uint32(f.Mode))
	return appendBlob(dst, f.Payload)
}

// Decode implements Frame.
func (f *AuthDone) Decode(p []byte) error {
	r := reader{p: p}
	f.GlobalID, f.Mode, f.Payload = r.u64(), Mode(r.u32()), r.blob()
	return r.fail("AUTH_DONE")
}
