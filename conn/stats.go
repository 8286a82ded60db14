package conn

import "sync/atomic"

// ConnStats are the counters of one connection since it was made.
type ConnStats struct {
	MessagesSent, MessagesReceived uint64
	BytesSent, BytesReceived       uint64 // heads and payloads
	PacketsSent, PacketsReceived   uint64 // SENDs
	Coalesced                      uint64 // messages that travelled in a SEND with an earlier one
	CopiedIn, CopiedOut            uint64 // bytes of payload below the copy-break, or received in short parts, and sent
	RendezvousSent                 uint64 // payloads that the peer fetched
	RendezvousReceived             uint64 // payloads that we fetched
	CreditUpdates                  uint64 // SENDs that carried nothing but credits and notices
	SendWaits                      uint64 // Sends that had to wait
	Parks                          uint64 // times that incoming messages were parked
	OneSidedReads, OneSidedWrites  uint64 // operations of Read and Write
}

// connCounters has the fields of ConnStats, in that order.
type connCounters struct {
	messagesSent, messagesReceived,
	bytesSent, bytesReceived,
	packetsSent, packetsReceived,
	coalesced,
	copiedIn, copiedOut,
	rendezvousSent,
	rendezvousReceived,
	creditUpdates,
	sendWaits,
	parks,
	oneSidedReads, oneSidedWrites atomic.Uint64
}

// Stats returns the connection's counters.
func (c *Conn) Stats() ConnStats {
	s := &c.stats
	return ConnStats{
		s.messagesSent.Load(), s.messagesReceived.Load(),
		s.bytesSent.Load(), s.bytesReceived.Load(),
		s.packetsSent.Load(), s.packetsReceived.Load(),
		s.coalesced.Load(),
		s.copiedIn.Load(), s.copiedOut.Load(),
		s.rendezvousSent.Load(),
		s.rendezvousReceived.Load(),
		s.creditUpdates.Load(),
		s.sendWaits.Load(),
		s.parks.Load(),
		s.oneSidedReads.Load(), s.oneSidedWrites.Load(),
	}
}

func (s *ConnStats) add(o ConnStats) {
	s.MessagesSent += o.MessagesSent
	s.MessagesReceived += o.MessagesReceived
	s.BytesSent += o.BytesSent
	s.BytesReceived += o.BytesReceived
	s.PacketsSent += o.PacketsSent
	s.PacketsReceived += o.PacketsReceived
	s.Coalesced += o.Coalesced
	s.CopiedIn += o.CopiedIn
	s.CopiedOut += o.CopiedOut
	s.RendezvousSent += o.RendezvousSent
	s.RendezvousReceived += o.RendezvousReceived
	s.CreditUpdates += o.CreditUpdates
	s.SendWaits += o.SendWaits
	s.Parks += o.Parks
	s.OneSidedReads += o.OneSidedReads
	s.OneSidedWrites += o.OneSidedWrites
}

// Stats are the counters of an endpoint since it was made, and gauges.
type Stats struct {
	ConnStats // over all connections, past ones included

	Conns      int // live
	Pollers    int // goroutines
	Lanes      int // completion queues
	RecvPosted int // receive buffers posted

	Dialed   uint64    // connections made
	Accepted uint64    // connections accepted
	Refused  uint64    // requests that we refused
	Faults   [3]uint64 // connections that ended with a *FaultError, by FaultKind

	Sleeps       uint64 // times that a poller went to sleep
	Upcalls      uint64 // times that the device did a sleeping poller's work
	MemoryWaits  uint64 // times that a receive had to wait for arena memory
	LateReceives uint64 // completions of connections that were gone
	Stale        uint64 // completions of what was not posted: the device errs
	Orphans      uint64 // requests given back by destroyed queues
}

// endpointCounters are the counters of Stats that are no connection's.
type endpointCounters struct {
	dialed, accepted, refused, sleeps, upcalls, memoryWaits, lateReceives, stale, orphans atomic.Uint64
	faults                                                                                [3]atomic.Uint64
}

// Stats returns the endpoint's counters.
func (e *Endpoint) Stats() Stats {
	s := Stats{
		Pollers:      len(e.pollers),
		Dialed:       e.stats.dialed.Load(),
		Accepted:     e.stats.accepted.Load(),
		Refused:      e.stats.refused.Load(),
		Sleeps:       e.stats.sleeps.Load(),
		Upcalls:      e.stats.upcalls.Load(),
		MemoryWaits:  e.stats.memoryWaits.Load(),
		LateReceives: e.stats.lateReceives.Load(),
		Stale:        e.stats.stale.Load(),
		Orphans:      e.stats.orphans.Load(),
	}
	for i := range s.Faults {
		s.Faults[i] = e.stats.faults[i].Load()
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	s.ConnStats = e.past
	s.Conns = len(e.conns)
	for c := range e.conns {
		s.add(c.Stats())
		if c.l.rq == nil {
			s.RecvPosted += c.rq.posted()
		}
	}
	for _, l := range e.lanes {
		s.Lanes++
		if l.rq != nil {
			s.RecvPosted += l.rq.posted()
		}
	}
	return s
}
