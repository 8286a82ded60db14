package prometheus

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/argonaut-rdma/argonaut/buffer"
	"github.com/argonaut-rdma/argonaut/conn"
	"github.com/argonaut-rdma/argonaut/messenger"
	"github.com/argonaut-rdma/argonaut/verbs"
	"github.com/argonaut-rdma/argonaut/verbs/histogram"
)

// latency is one histogram of the Latencies L of a package.
type latency[L any] struct {
	name, help string
	of         func(l *L) *histogram.Histogram
}

// messengerLatencies is the histograms of messenger.Latencies.
var messengerLatencies = []latency[messenger.Latencies]{
	{"argonaut_messenger_send_queue_seconds", "From Send until the transport has taken the message (Ceph: msgr_send_messages_queue_lat).",
		func(l *messenger.Latencies) *histogram.Histogram { return &l.SendQueue }},
	{"argonaut_messenger_send_seconds", "Time spent sending, one observation for each queue sent (Ceph: msgr_running_send_time).",
		func(l *messenger.Latencies) *histogram.Histogram { return &l.Send }},
	{"argonaut_messenger_send_ack_seconds", "From Send until the peer of a lossless session has acknowledged the message (compare Ceph: msgr_handle_ack_lat).",
		func(l *messenger.Latencies) *histogram.Histogram { return &l.SendAck }},
	{"argonaut_messenger_receive_seconds", "From the first bytes of a message until it had arrived (Ceph: msgr_running_recv_time).",
		func(l *messenger.Latencies) *histogram.Histogram { return &l.Receive }},
	{"argonaut_messenger_fast_dispatch_seconds", "How long FastDispatch ran for one message (Ceph: msgr_running_fast_dispatch_time).",
		func(l *messenger.Latencies) *histogram.Histogram { return &l.FastDispatch }},
	{"argonaut_messenger_dispatch_seconds", "From the arrival of a message until Dispatch had it.",
		func(l *messenger.Latencies) *histogram.Histogram { return &l.Dispatch }},
	{"argonaut_messenger_handle_seconds", "How long Dispatch ran for one message.",
		func(l *messenger.Latencies) *histogram.Histogram { return &l.Handle }},
	{"argonaut_messenger_call_seconds", "From Call until the reply.",
		func(l *messenger.Latencies) *histogram.Histogram { return &l.Call }},
}

// bufferLatencies is the histograms of buffer.Latencies.
var bufferLatencies = []latency[buffer.Latencies]{
	{"argonaut_buffer_get_wait_seconds", "How long Gets that had to wait have waited for memory or quota.",
		func(l *buffer.Latencies) *histogram.Histogram { return &l.GetWait }},
}

// connLatencies is the histograms of conn.Latencies.
var connLatencies = []latency[conn.Latencies]{
	{"argonaut_conn_send_wait_seconds", "How long Sends that had to wait have waited for credits, slots, or a place for a rendezvous.",
		func(l *conn.Latencies) *histogram.Histogram { return &l.SendWait }},
	{"argonaut_conn_rendezvous_seconds", "From the announcement of a payload until the peer had fetched it.",
		func(l *conn.Latencies) *histogram.Histogram { return &l.Rendezvous }},
	{"argonaut_conn_fetch_seconds", "From the announcement of a peer's payload until we had fetched it.",
		func(l *conn.Latencies) *histogram.Histogram { return &l.Fetch }},
}

// verbsLatencies is the histograms of verbs.Latencies.
var verbsLatencies = []latency[verbs.Latencies]{
	{"argonaut_verbs_register_seconds", "Time in the driver of a registration of memory.",
		func(l *verbs.Latencies) *histogram.Histogram { return &l.Register }},
}

// runningTable is what else messenger.Latencies tells.
var runningTable = []metric[messenger.Latencies]{
	counter("argonaut_messenger_running_seconds_total", "The sums of send, receive and fast_dispatch (Ceph: msgr_running_total_time).",
		func(l *messenger.Latencies) float64 { return l.Running().Seconds() }),
}

type describedHistogram[L any] struct {
	latency[L]
	desc *prometheus.Desc
}

func describeHistograms[L any](entity string, table []latency[L], labels ...string) (ds []describedHistogram[L]) {
	for _, h := range table {
		ds = append(ds, describedHistogram[L]{h, prometheus.NewDesc(h.name, h.help, labels, prometheus.Labels{"messenger": entity})})
	}
	return ds
}

func describeAllHistograms[L any](out chan<- *prometheus.Desc, ds []describedHistogram[L]) {
	for _, d := range ds {
		out <- d.desc
	}
}

func collectHistograms[L any](out chan<- prometheus.Metric, ds []describedHistogram[L], l *L, labels ...string) {
	for _, d := range ds {
		h := d.of(l)
		buckets := make(map[float64]uint64, len(h.Buckets))
		var n uint64
		for i, k := range h.Buckets[:len(h.Buckets)-1] {
			n += k
			buckets[histogram.Bound(i).Seconds()] = n
		}
		out <- prometheus.MustNewConstHistogram(d.desc, h.Count, h.Sum.Seconds(), buckets, labels...)
	}
}
