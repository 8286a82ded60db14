package conn

// ConnStats are the counters of one connection since it was made.
type ConnStats struct {
	MessagesSent, MessagesReceived uint64
	BytesSent, BytesReceived       uint64 // heads and payloads
	PacketsSent, PacketsReceived   uint64 // SENDs
	Coalesced                      uint64 // messages that travelled in a SEND with an earlier one
	CopiedIn, CopiedOut            uint64 // bytes of payload below the copy-break
	RendezvousSent                 uint64 // payloads that the peer fetched
	RendezvousReceived             uint64 // payloads that we fetched
	CreditUpdates                  uint64 // SENDs that carried nothing but credits and notices
	SendWaits                      uint64 // Sends that had to wait
	Parks                          uint64 // times that incoming messages were parked
	OneSidedReads, OneSidedWrites  uint64 // operations of Read and Write
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

	Conns         int    // live
	Pollers       int    // goroutines
	Lanes         int    // completion queues
	RecvPosted    int    // receive buffers posted
	Dialed        uint64 // connections made
	Accepted      uint64
	Refused       uint64 // requests that we refused
	Faults        [3]uint64
	Sleeps        uint64 // times that a poller went to sleep
	MemoryWaits   uint64 // times that a receive had to wait for arena memory
	LateReceives  uint64 // completions of connections that were gone
	OrphansReaped uint64 // requests given back by destroyed queue pairs
}
