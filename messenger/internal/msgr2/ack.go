package msgr2

// Ack acknowledges receipt of all messages up to a seq. It is sent only when no
// message carries the acknowledgement.
//
//	le64 message seq
type Ack struct{ Seq uint64 }

// Tag implements Frame.
func (*Ack) Tag() Tag { return TagAck }

// Append implements Frame.
func (f *Ack) Append(dst []byte) []byte { return le.AppendUint64(dst, f.Seq) }

// Decode implements Frame.
func (f *Ack) Decode(p []byte) error {
	r := reader{p: p}
	f.Seq = r.u64()
	return r.fail("ACK")
}
