package messenger

// session is the numbering of messages of one session, both ways. It is pure:
// its caller serialises and sends.
type session struct {
	lossy   bool
	outSeq  uint64 // of the last message sent
	inSeq   uint64 // of the last message received
	ackSent uint64 // the highest inSeq that the peer has been told
	acked   uint64 // the highest outSeq that the peer has told us
}

// send numbers a message that goes out now: its seq, and the acknowledgement
// that it carries.
func (s *session) send() (seq, ack uint64) {
	s.outSeq++
	s.ackSent = s.inSeq
	return s.outSeq, s.inSeq
}

// verdict is what to do with a received message.
type verdict uint8

const (
	deliver verdict = iota
	duplicate
)

// receive notes a message. Numbers that were seen are duplicates; gaps are
// accepted, as Ceph accepts them. needAck: the peer keeps what it has sent until
// it is acknowledged, and nothing has told it yet.
func (s *session) receive(seq, ack uint64) (v verdict, needAck bool) {
	s.acknowledged(ack)
	if seq <= s.inSeq {
		return duplicate, false
	}
	s.inSeq = seq
	return deliver, !s.lossy
}

// acknowledged notes that the peer has all up to seq.
func (s *session) acknowledged(seq uint64) {
	if seq > s.acked && seq <= s.outSeq {
		s.acked = seq
	}
}

// ack returns what to tell the peer in a frame of its own, 0 for nothing: a
// message may have told it meanwhile.
func (s *session) ack() uint64 {
	if s.ackSent == s.inSeq {
		return 0
	}
	s.ackSent = s.inSeq
	return s.inSeq
}
