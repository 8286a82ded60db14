package verbs

import (
	"github.com/argonaut-rdma/argonaut/verbs/driver"
	"github.com/argonaut-rdma/argonaut/verbs/histogram"
)

// Stats are a device's counters since it was opened, and gauges of live objects.
type Stats struct {
	PDs, MRs, ScopedMRs, MWs, CompChannels, CQs, SRQs, QPs, Listeners, ConnRequests int // live

	SendsPosted      uint64 // requests accepted by the device
	RecvsPosted      uint64
	PostsRefused     uint64                     // calls of PostSend, PostRecv and BindMW that returned an error
	Completions      uint64                     // handed to callers
	ByStatus         [driver.StatusCount]uint64 // of them, by WCStatus; a status without a name as StatusGeneralErr
	Swallowed        uint64                     // completions that only the core had asked for
	LateCompletions  uint64                     // of destroyed QPs, or a second time (see Caps.FlushCompletes); dropped
	StaleCompletions uint64                     // of requests that are not outstanding, dropped
	Orphans          uint64                     // requests given back by Close
	CQOverruns       uint64                     // events of it
	Events           uint64                     // asynchronous events read from the driver
	EventsCoalesced  uint64
	EventsDropped    uint64 // of objects already gone
	BytesRegistered  uint64 // live
	StuckCalls       int    // Closes that gave up on a destructor that is still running
}

// Stats returns the device's counters. The counters of live objects are read one
// after the other.
func (d *Device) Stats() Stats {
	d.mu.Lock()
	s := d.total
	n := &d.liveObjects
	s.PDs, s.MRs, s.ScopedMRs, s.MWs = n[KindPD], n[KindMR], n[KindScopedMR], n[KindMW]
	s.CompChannels, s.CQs, s.SRQs, s.QPs = n[KindCompChannel], n[KindCQ], n[KindSRQ], n[KindQP]
	s.Listeners, s.ConnRequests = n[KindListener], n[KindConnRequest]
	s.BytesRegistered = d.registered
	for _, q := range d.byQP {
		q.addStats(&s)
	}
	for _, q := range d.bySRQ {
		q.addStats(&s)
	}
	cqs := make([]*CQ, 0, len(d.byCQ))
	for _, c := range d.byCQ {
		cqs = append(cqs, c)
	}
	d.mu.Unlock()
	for _, c := range cqs { // a CQ's lock comes before the device's
		c.mu.Lock()
		c.addStats(&s)
		c.mu.Unlock()
	}
	s.ByStatus[StatusSuccess] = s.Completions // only the others are counted
	for _, n := range s.ByStatus[StatusSuccess+1:] {
		s.ByStatus[StatusSuccess] -= n
	}
	s.StuckCalls = int(d.stuck.Load())
	q := &d.events
	q.mu.Lock()
	s.Events, s.EventsCoalesced, s.EventsDropped = q.read, q.coalesced, q.dropped
	q.mu.Unlock()
	return s
}

// Latencies is how long things took since a device was opened.
type Latencies struct {
	// Register is the time in the driver of a registration of memory (RegMR), also
	// of one that failed. Scoped keys are not in it.
	Register histogram.Histogram
}

// Latencies returns the histograms.
func (d *Device) Latencies() Latencies { return Latencies{Register: d.registering.Snapshot()} }

func (q *QP) addStats(s *Stats) {
	s.SendsPosted += q.sends.Load()
	s.RecvsPosted += q.recvs.Load()
	s.PostsRefused += q.refused.Load()
}

func (q *SRQ) addStats(s *Stats) {
	s.RecvsPosted += q.recvs.Load()
	s.PostsRefused += q.refused.Load()
}

// addStats is called with mu held.
func (c *CQ) addStats(s *Stats) {
	s.Completions += c.delivered
	for i, n := range c.failed {
		s.ByStatus[i] += n
	}
	s.Swallowed += c.swallowed
	s.LateCompletions += c.late
	s.StaleCompletions += c.stale
}

func (u uses) addTo(n map[*MR]int) {
	for i := range u {
		if u[i].n > 0 {
			n[u[i].mr] += int(u[i].n)
		}
	}
}
