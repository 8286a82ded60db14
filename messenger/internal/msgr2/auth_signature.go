package msgr2

// SignatureLen is the length of an HMAC-SHA-256.
const SignatureLen = 32

// AuthSignature is the first frame of each side after AUTH_DONE: an
// HMAC-SHA-256, under the session key, of everything the sender of the frame
// received before it. It protects the negotiation from being downgraded. All
// zero when the method has no session key (none).
type AuthSignature struct{ Sum [SignatureLen]byte }

// Tag implements Frame.
func (*AuthSignature) Tag() Tag { return TagAuthSignature }

// Append implements Frame.
func (f *AuthSignature) Append(dst []byte) []byte { return append(dst, f.Sum[:]...) }

// Decode implements Frame.
func (f *AuthSignature) Decode(p []byte) error {
	r := reader{p: p}
	copy(f.Sum[:], r.take(SignatureLen))
	return r.fail("AUTH_SIGNATURE")
}
