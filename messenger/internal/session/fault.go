package session

import (
	"fmt"
	"time"
)

// Action is what a fault leads to.
type Action uint8

// The actions.
const (
	// GoReset: the session is over, and the user is told (HandleReset).
	GoReset Action = iota
	// GoAway: a session that never was open is over; nobody is told.
	GoAway
	// GoStandby: wait for the peer, or for something to send.
	GoStandby
	// GoConnect: connect, at the time given.
	GoConnect
)

var actionNames = [...]string{"reset", "go away", "standby", "connect"}

func (a Action) String() string { return actionNames[a] }

// Next is an action and when it is due.
type Next struct {
	Action Action
	At     time.Time // of GoConnect
}

func (n Next) String() string {
	if n.Action == GoConnect {
		return fmt.Sprintf("connect at %v", n.At.Sub(time.Time{}))
	}
	return n.Action.String()
}

// Fault decides what to do when the transport, or an attempt to connect, has
// failed. queued: something waits to be sent, or has been sent and not been
// acknowledged: the caller has put the latter back in front.
func (s *Session) Fault(now time.Time, queued bool) Next {
	was := s.State
	attempting := was == Connecting || was == Wait
	switch {
	case was == Closed:
		return Next{Action: GoAway}
	case was == Accepting && !s.Opened && !queued && s.Policy.Lossy:
		// (A lossless one stays: the peer may have got our answer.)
		s.State = Closed
		return Next{Action: GoAway}
	case s.Policy.Lossy && !attempting:
		s.State = Closed
		return Next{Action: GoReset}
	case s.Policy.Server, !s.Dialable, s.Policy.Standby && !queued && was != Wait:
		s.State = Standby
		return Next{Action: GoStandby}
	}
	s.State = Connecting
	if !attempting {
		s.ConnectSeq++
		return Next{Action: GoConnect, At: now.Add(s.pause())}
	}
	switch {
	case was == Wait:
		s.backoff = s.BackoffMax
	case s.backoff == 0:
		s.backoff = s.BackoffMin
	default:
		s.backoff = min(2*s.backoff, s.BackoffMax)
	}
	return Next{Action: GoConnect, At: now.Add(s.backoff)}
}

// pause is how long to wait before the first attempt after an open transport has
// failed: not at all, unless the two before it have failed without a message
// getting through either. What kills each transport, such as a message that the
// peer can not take, then costs little.
func (s *Session) pause() time.Duration {
	s.backoff = 0
	if s.InSeq != s.openIn || s.Acked != s.openAcked {
		s.fruitless = 0
		return 0
	}
	if s.fruitless++; s.fruitless > 2 {
		s.backoff = min(s.BackoffMin<<min(s.fruitless-3, 20), s.BackoffMax)
	}
	return s.backoff
}

// Wake is called when there is something to send, or the peer shall be heard
// of. true: connect now.
func (s *Session) Wake() bool {
	if s.State != Standby || s.Policy.Server || !s.Dialable {
		return false
	}
	s.State = Connecting
	s.ConnectSeq++
	s.backoff = 0
	return true
}
