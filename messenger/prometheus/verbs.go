package prometheus

import "github.com/argonaut-rdma/argonaut/verbs"

type verbsStats = verbs.Stats

// verbsTable is verbs.Stats of one device.
var verbsTable = append(byStatus(), []metric[verbsStats]{
	gauge("argonaut_verbs_objects", "Live objects by kind.",
		func(s *verbsStats) float64 { return float64(s.PDs) }).of("pd"),
	gauge("argonaut_verbs_objects", "Live objects by kind.",
		func(s *verbsStats) float64 { return float64(s.MRs) }).of("mr"),
	gauge("argonaut_verbs_objects", "Live objects by kind.",
		func(s *verbsStats) float64 { return float64(s.ScopedMRs) }).of("scoped_mr"),
	gauge("argonaut_verbs_objects", "Live objects by kind.",
		func(s *verbsStats) float64 { return float64(s.MWs) }).of("mw"),
	gauge("argonaut_verbs_objects", "Live objects by kind.",
		func(s *verbsStats) float64 { return float64(s.CompChannels) }).of("comp_channel"),
	gauge("argonaut_verbs_objects", "Live objects by kind.",
		func(s *verbsStats) float64 { return float64(s.CQs) }).of("cq"),
	gauge("argonaut_verbs_objects", "Live objects by kind.",
		func(s *verbsStats) float64 { return float64(s.SRQs) }).of("srq"),
	gauge("argonaut_verbs_objects", "Live objects by kind.",
		func(s *verbsStats) float64 { return float64(s.QPs) }).of("qp"),
	gauge("argonaut_verbs_objects", "Live objects by kind.",
		func(s *verbsStats) float64 { return float64(s.Listeners) }).of("listener"),
	gauge("argonaut_verbs_objects", "Live objects by kind.",
		func(s *verbsStats) float64 { return float64(s.ConnRequests) }).of("conn_request"),
	counter("argonaut_verbs_sends_posted_total", "Requests accepted by the device.",
		func(s *verbsStats) float64 { return float64(s.SendsPosted) }),
	counter("argonaut_verbs_receives_posted_total", "Receives accepted by the device.",
		func(s *verbsStats) float64 { return float64(s.RecvsPosted) }),
	counter("argonaut_verbs_posts_refused_total", "Posts that returned an error.",
		func(s *verbsStats) float64 { return float64(s.PostsRefused) }),
	counter("argonaut_verbs_completions_total", "Completions handed to callers.",
		func(s *verbsStats) float64 { return float64(s.Completions) }),
	counter("argonaut_verbs_completions_swallowed_total", "Completions that only the core had asked for.",
		func(s *verbsStats) float64 { return float64(s.Swallowed) }),
	counter("argonaut_verbs_completions_late_total", "Completions of destroyed queue pairs, dropped.",
		func(s *verbsStats) float64 { return float64(s.LateCompletions) }),
	counter("argonaut_verbs_completions_stale_total", "Completions of requests that are not outstanding, dropped.",
		func(s *verbsStats) float64 { return float64(s.StaleCompletions) }),
	counter("argonaut_verbs_orphans_total", "Requests given back by Close.",
		func(s *verbsStats) float64 { return float64(s.Orphans) }),
	counter("argonaut_verbs_cq_overruns_total", "Overruns of completion queues.",
		func(s *verbsStats) float64 { return float64(s.CQOverruns) }),
	counter("argonaut_verbs_events_total", "Asynchronous events.",
		func(s *verbsStats) float64 { return float64(s.Events) }),
	counter("argonaut_verbs_events_coalesced_total", "Asynchronous events coalesced.",
		func(s *verbsStats) float64 { return float64(s.EventsCoalesced) }),
	counter("argonaut_verbs_events_dropped_total", "Asynchronous events of objects that were gone.",
		func(s *verbsStats) float64 { return float64(s.EventsDropped) }),
	gauge("argonaut_verbs_registered_bytes", "Memory registered.",
		func(s *verbsStats) float64 { return float64(s.BytesRegistered) }),
	gauge("argonaut_verbs_stuck_calls", "Closes that gave up on a destructor that still runs.",
		func(s *verbsStats) float64 { return float64(s.StuckCalls) }),
}...)

// byStatus is Stats.ByStatus; the kind is the name of ibv_wc_status.
func byStatus() (table []metric[verbsStats]) {
	for i := range len(verbsStats{}.ByStatus) {
		table = append(table, counter("argonaut_verbs_completions_by_status_total",
			"Completions handed to callers, by status (compare Ceph's tx_total_wc_errors, tx_retry_errors, tx_wr_flush_errors).",
			func(s *verbsStats) float64 { return float64(s.ByStatus[i]) }).of(verbs.WCStatus(i).String()))
	}
	return table
}
