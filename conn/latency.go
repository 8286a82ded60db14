package conn

import "github.com/argonaut-rdma/argonaut/verbs/histogram"

// Latencies is how long things took since an endpoint was made, over all its
// connections. What neither waits nor goes by rendezvous costs nothing.
type Latencies struct {
	// SendWait is how long Sends that had to wait have waited for the peer's
	// credits, for send slots or for a place for a rendezvous, also those that gave
	// up.
	SendWait histogram.Histogram
	// Rendezvous is from when a payload was announced until the peer had fetched
	// it, Fetch from when one was announced to us, and admitted, until we had.
	Rendezvous, Fetch histogram.Histogram
}

// latencies is Latencies while it counts.
type latencies struct{ sendWait, rendezvous, fetch histogram.Counter }

// Latencies returns the histograms.
func (e *Endpoint) Latencies() Latencies {
	return Latencies{SendWait: e.lat.sendWait.Snapshot(), Rendezvous: e.lat.rendezvous.Snapshot(), Fetch: e.lat.fetch.Snapshot()}
}
