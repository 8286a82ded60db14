package msgr2

// Wait tells the client that it lost a connection race: the server is already
// connecting the other way. It has no payload.
type Wait struct{}

// Tag implements Frame.
func (*Wait) Tag() Tag { return TagWait }

// Append implements Frame.
func (*Wait) Append(dst []byte) []byte { return dst }

// Decode implements Frame.
func (*Wait) Decode([]byte) error { return nil }
