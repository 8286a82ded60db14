package msgr2

// AuthRequestMore answers AuthReplyMore.
//
//	le32 length, payload
type AuthRequestMore struct{ Payload []byte }

// Tag implements Frame.
func (*AuthRequestMore) Tag() Tag { return TagAuthRequestMore }

// Append implements Frame.
func (f *AuthRequestMore) Append(dst []byte) []byte { return appendBlob(dst, f.Payload) }

// Decode implements Frame.
func (f *AuthRequestMore) Decode(p []byte) error {
	r := reader{p: p}
	f.Payload = r.blob()
	return r.fail("AUTH_REQUEST_MORE")
}
