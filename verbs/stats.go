package verbs

// Stats are a device's counters since it was opened, and gauges of live objects.
type Stats struct {
	PDs, MRs, ScopedMRs, MWs, CompChannels, CQs, SRQs, QPs, Listeners int // live

	SendsPosted, RecvsPosted uint64 // requests accepted by the device
	PostsRefused             uint64 // PostSend and PostRecv calls that returned an error
	Completions              uint64 // handed to callers
	Swallowed                uint64 // completions that only the core had asked for
	LateCompletions          uint64 // of destroyed QPs, dropped
	StaleCompletions         uint64 // of requests that are not outstanding, dropped
	Orphans                  uint64 // requests given back by Close
	CQOverruns               uint64
	Events                   uint64 // asynchronous events read from the driver
	EventsCoalesced          uint64
	EventsDropped            uint64 // of objects already gone
	BytesRegistered          uint64 // live
	StuckCalls               int    // destructors running beyond their deadline
}
