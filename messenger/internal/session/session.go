package session

import (
	"fmt"
	"time"
)

// Policy is the part of a messenger's policy that sessions know.
type Policy struct {
	Lossy         bool // over with its transport
	Server        bool // never connects to the peer
	Standby       bool // with nothing to send, waits for the peer
	ResetCheck    bool // a peer that has lost the session is told so, and told of
	RegisterLossy bool // lossy clients are known by their address
}

// State is where a session stands.
type State uint8

// The states of a session.
const (
	Connecting State = iota // an attempt of ours is under way, or due
	Accepting               // a transport of the peer's is being taken in
	Open
	Standby // waits for the peer, or for something to send
	Wait    // lost a race: the peer's transport is to come
	Closed
)

var stateNames = [...]string{"connecting", "accepting", "open", "standby", "wait", "closed"}

func (s State) String() string {
	if int(s) < len(stateNames) {
		return stateNames[s]
	}
	return fmt.Sprintf("state%d", uint8(s))
}

// Session is one end of a session with one peer. Its fields are for reading.
type Session struct {
	Policy Policy
	State  State
	// Dialable: it is known where the peer listens.
	Dialable bool
	// BackoffMin and BackoffMax bound the pause between attempts to connect.
	BackoffMin, BackoffMax time.Duration

	// The two cookies name the session: the first is of whoever opened it, the
	// second of whoever accepted. 0: not yet agreed.
	ClientCookie, ServerCookie uint64
	// PeerGlobalSeq orders the peer's attempts to connect, ConnectSeq those
	// within this session.
	PeerGlobalSeq, ConnectSeq uint64

	OutSeq  uint64 // of the last message sent
	InSeq   uint64 // of the last message received
	AckSent uint64 // the highest InSeq that the peer has been told
	Acked   uint64 // the highest OutSeq that the peer has told us

	Opened  bool // it was open once
	backoff time.Duration
	// openIn and openAcked are InSeq and Acked when it was opened last, fruitless
	// how often in a row neither had moved when the transport failed.
	openIn, openAcked uint64
	fruitless         int
	// asked is the cookie of an ident of ours that has not been answered when
	// the peer's own was taken: the answer may have been lost, and the peer have
	// that session.
	asked uint64
}

// Send numbers a message that goes out now: its seq, and the acknowledgement
// that it carries.
func (s *Session) Send() (seq, ack uint64) {
	s.OutSeq++
	s.AckSent = s.InSeq
	return s.OutSeq, s.InSeq
}

// Resend is Send for a message that has its seq already: what it carries.
func (s *Session) Resend() (ack uint64) {
	s.AckSent = s.InSeq
	return s.InSeq
}

// Receipt is what to do with a received message.
type Receipt uint8

// The receipts.
const (
	Deliver   Receipt = iota
	Skipped           // deliver; messages before it are missing
	Duplicate         // drop: it was received before
)

var receiptNames = [...]string{"deliver", "skipped", "duplicate"}

func (r Receipt) String() string { return receiptNames[r] }

// Receive notes a message. Numbers that were seen are duplicates; gaps are
// accepted, as Ceph accepts them.
func (s *Session) Receive(seq, ack uint64) Receipt {
	s.Acknowledged(ack)
	switch {
	case seq <= s.InSeq:
		return Duplicate
	case seq == s.InSeq+1:
		s.InSeq = seq
		return Deliver
	}
	s.InSeq = seq
	return Skipped
}

// Acknowledged notes that the peer has all up to seq: messages up to Acked need
// not be kept. What was never sent is not believed.
func (s *Session) Acknowledged(seq uint64) {
	if seq > s.Acked && seq <= s.OutSeq {
		s.Acked = seq
	}
}

// AckDue reports whether the peer has not been told all that was received.
// Lossy peers keep nothing, and need not be told.
func (s *Session) AckDue() bool { return !s.Policy.Lossy && s.AckSent != s.InSeq }

// Ack returns what to tell the peer in a frame of its own, 0 for nothing: a
// message may have told it meanwhile.
func (s *Session) Ack() uint64 {
	if !s.AckDue() {
		return 0
	}
	s.AckSent = s.InSeq
	return s.InSeq
}

// Reset forgets the session, whose peer has lost it: what is kept or queued is
// to be dropped, and the user told.
func (s *Session) Reset() {
	s.ClientCookie, s.ServerCookie, s.ConnectSeq, s.asked = 0, 0, 0, 0
	s.OutSeq, s.InSeq, s.AckSent, s.Acked = 0, 0, 0, 0
}

// restart begins to number what is received anew, for a peer that does, and
// what is sent, if nothing of it is kept.
func (s *Session) restart() {
	s.InSeq, s.AckSent = 0, 0
	if s.Acked == s.OutSeq {
		s.OutSeq, s.Acked = 0, 0
	}
}

// Close ends the session.
func (s *Session) Close() { s.State = Closed }

// open notes that a transport is the session's.
func (s *Session) open() {
	s.State, s.Opened, s.backoff = Open, true, 0
	s.openIn, s.openAcked = s.InSeq, s.Acked
}
