package iwarp

import (
	"sync/atomic"
	"time"
)

// counters are the device's own; one cache line is shared by all QPs, so the data path adds to them once per batch.
type counters struct {
	Registrations, RegNanos, CQOverruns         atomic.Int64
	Connects, Accepts, HandshakeFailures        atomic.Int64
	TerminatesSent, TerminatesReceived, Resets  atomic.Int64
	BytesOut, BytesIn, Writes, Reads, FullStops atomic.Int64
}

// Stats are a device's counters since it was opened.
type Stats struct {
	Registrations      int64         // memory regions made
	RegistrationTime   time.Duration // spent on all of them
	Pages              int64         // translations in use
	PinnedBytes        int64
	CQOverruns         int64 // completions lost to full CQs
	Connects, Accepts  int64 // connections established, as initiator and responder
	HandshakeFailures  int64
	TerminatesSent     int64
	TerminatesReceived int64
	Resets             int64 // connections that were cut in mid-segment
	BytesOut, BytesIn  int64 // on established connections, framing included
	Writes, Reads      int64 // system calls, or calls of a connection, that moved them
	FullStops          int64 // times that the network took no more
}

// Stats returns the counters.
func (d *Device) Stats() Stats {
	c := &d.stats
	return Stats{
		Registrations:      c.Registrations.Load(),
		RegistrationTime:   time.Duration(c.RegNanos.Load()),
		Pages:              d.pages.Load(),
		PinnedBytes:        d.pins.bytes(),
		CQOverruns:         c.CQOverruns.Load(),
		Connects:           c.Connects.Load(),
		Accepts:            c.Accepts.Load(),
		HandshakeFailures:  c.HandshakeFailures.Load(),
		TerminatesSent:     c.TerminatesSent.Load(),
		TerminatesReceived: c.TerminatesReceived.Load(),
		Resets:             c.Resets.Load(),
		BytesOut:           c.BytesOut.Load(),
		BytesIn:            c.BytesIn.Load(),
		Writes:             c.Writes.Load(),
		Reads:              c.Reads.Load(),
		FullStops:          c.FullStops.Load(),
	}
}
