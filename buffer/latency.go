package buffer

import "github.com/argonaut-rdma/argonaut/verbs/histogram"

// Latencies is how long things took since New. What does not wait costs nothing.
type Latencies struct {
	// GetWait is how long Gets, and GetLists, that had to wait have waited for
	// memory or quota, also those that gave up.
	GetWait histogram.Histogram
}

// Latencies returns the histograms.
func (a *Arena) Latencies() Latencies { return Latencies{GetWait: a.getWait.Snapshot()} }
