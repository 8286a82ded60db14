package msgr2

// AuthReplyMore asks the client for another round.
//
//	le32 length, payload
type AuthReplyMore struct{ Payload []byte }

// Tag implements Frame.
func (*AuthReplyMore) Tag() Tag { return TagAuthReplyMore }

// Append implements Frame.
func (f *AuthReplyMore) Append(dst []byte) []byte { return appendBlob(dst, f.Payload) }

// Decode implements Frame.
func (f *AuthReplyMore) Decode(p []byte) error {
	r := reader{p: p}
	f.Payload = r.blob()
	return r.fail("AUTH_REPLY_MORE")
}
