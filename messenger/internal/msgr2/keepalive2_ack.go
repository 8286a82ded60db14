package msgr2

// Keepalive2Ack answers Keepalive2; Sent is the asker's own time stamp.
type Keepalive2Ack struct{ Sent Timestamp }

// Tag implements Frame.
func (*Keepalive2Ack) Tag() Tag { return TagKeepalive2Ack }

// Append implements Frame.
func (f *Keepalive2Ack) Append(dst []byte) []byte { return f.Sent.appendTo(dst) }

// Decode implements Frame.
func (f *Keepalive2Ack) Decode(p []byte) error {
	r := reader{p: p}
	f.Sent.read(&r)
	return r.fail("KEEPALIVE2_ACK")
}
