package msgr2

// AuthBadMethod refuses a method and says what would do (server to client).
//
//	le32 method | le32 result, a negative errno | le32 count, allowed methods | le32 count, allowed modes
type AuthBadMethod struct {
	Method  AuthMethod
	Result  int32
	Methods []uint32
	Modes   []uint32
}

// Tag implements Frame.
func (*AuthBadMethod) Tag() Tag { return TagAuthBadMethod }

// Append implements Frame.
func (f *AuthBadMethod) Append(dst []byte) []byte {
	dst = le.AppendUint32(dst, uint32(f.Method))
	dst = le.AppendUint32(dst, uint32(f.Result))
	return appendU32s(appendU32s(dst, f.Methods), f.Modes)
}

// Decode implements Frame.
func (f *AuthBadMethod) Decode(p []byte) error {
	r := reader{p: p}
	f.Method, f.Result = AuthMethod(r.u32()), int32(r.u32())
	f.Methods, f.Modes = r.u32s(), r.u32s()
	return r.fail("AUTH_BAD_METHOD")
}
