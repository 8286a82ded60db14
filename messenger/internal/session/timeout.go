package session

import "time"

// Times is when something last happened on a transport.
type Times struct {
	Made     time.Time // the transport
	Received time.Time // anything came
	Used     time.Time // anything but keepalives came or went
	Asked    time.Time // we sent a keepalive
	Ready    bool      // the handshake has ended
	Holding  bool      // it is we who do not read
}

// Limits bound them; 0 for no bound.
type Limits struct {
	Ready     time.Duration // for the handshake
	Idle      time.Duration // without use
	Keepalive time.Duration // between keepalives of ours
	Silence   time.Duration // without a sign of life
}

// Due is what is due on a transport.
type Due uint8

// What may be due.
const (
	Nothing Due = iota
	Ask         // send a keepalive
	TooSlow     // the handshake takes too long
	Idle        // nothing but keepalives for too long
	Silent      // no sign of life for too long
)

var dueNames = [...]string{"nothing", "keepalive", "handshake timeout", "idle timeout", "silence timeout"}

func (d Due) String() string { return dueNames[d] }

// At returns what is due at now.
func (l Limits) At(now time.Time, t Times) Due {
	over := func(since time.Time, d time.Duration) bool { return d > 0 && now.Sub(since) > d }
	ask := l.Keepalive > 0 && now.Sub(t.Asked) >= l.Keepalive
	switch {
	case !t.Ready && over(t.Made, l.Ready):
		return TooSlow
	case !t.Ready:
		return Nothing
	case t.Holding && ask:
		return Ask
	case t.Holding:
		return Nothing
	case over(t.Used, l.Idle):
		return Idle
	case l.Keepalive > 0 && over(t.Received, l.Silence):
		return Silent
	case ask && now.Sub(t.Received) >= l.Keepalive:
		return Ask
	}
	return Nothing
}
