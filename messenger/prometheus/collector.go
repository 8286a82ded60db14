package prometheus

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/argonaut-rdma/argonaut/messenger"
)

// metric is one metric over the snapshot S of a package.
type metric[S any] struct {
	name, help string
	value      func(s *S) float64
	gauge      bool
	kind       string // the value of the label kind, "" for none
}

func counter[S any](name, help string, value func(s *S) float64) metric[S] {
	return metric[S]{name: name, help: help, value: value}
}

func gauge[S any](name, help string, value func(s *S) float64) metric[S] {
	return metric[S]{name: name, help: help, value: value, gauge: true}
}

// of gives a metric the label kind: several of the same name are told apart by it.
func (m metric[S]) of(kind string) metric[S] {
	m.kind = kind
	return m
}

// described is a metric with its description.
type described[S any] struct {
	metric[S]
	desc *prometheus.Desc
}

// describe makes the descriptions of a table, for the given labels before kind.
func describe[S any](entity string, table []metric[S], labels ...string) []described[S] {
	var ds []described[S]
	for _, m := range table {
		l := labels
		if m.kind != "" {
			l = append(append([]string(nil), labels...), "kind")
		}
		ds = append(ds, described[S]{m, prometheus.NewDesc(m.name, m.help, l, prometheus.Labels{"messenger": entity})})
	}
	return ds
}

func collect[S any](out chan<- prometheus.Metric, ds []described[S], s *S, labels ...string) {
	for _, d := range ds {
		t, l := prometheus.CounterValue, labels
		if d.gauge {
			t = prometheus.GaugeValue
		}
		if d.kind != "" {
			l = append(append([]string(nil), labels...), d.kind)
		}
		out <- prometheus.MustNewConstMetric(d.desc, t, d.value(s), l...)
	}
}

func describeAll[S any](out chan<- *prometheus.Desc, ds []described[S]) {
	for _, d := range ds {
		out <- d.desc
	}
}

// histograms of messenger.Latencies.
var histogramTable = []struct {
	name, help string
	of         func(l *messenger.Latencies) *messenger.Histogram
}{
	{"argonaut_messenger_send_queue_seconds", "From Send until the transport has taken the message.",
		func(l *messenger.Latencies) *messenger.Histogram { return &l.SendQueue }},
	{"argonaut_messenger_send_seconds", "Time spent sending, one observation for each queue sent (Ceph: msgr_running_send_time).",
		func(l *messenger.Latencies) *messenger.Histogram { return &l.Send }},
	{"argonaut_messenger_send_ack_seconds", "From Send until the peer of a lossless session has acknowledged the message.",
		func(l *messenger.Latencies) *messenger.Histogram { return &l.SendAck }},
	{"argonaut_messenger_receive_seconds", "From the first bytes of a message until it had arrived (Ceph: msgr_running_recv_time).",
		func(l *messenger.Latencies) *messenger.Histogram { return &l.Receive }},
	{"argonaut_messenger_fast_dispatch_seconds", "How long FastDispatch ran for one message (Ceph: msgr_running_fast_dispatch_time).",
		func(l *messenger.Latencies) *messenger.Histogram { return &l.FastDispatch }},
	{"argonaut_messenger_dispatch_seconds", "From the arrival of a message until Dispatch had it.",
		func(l *messenger.Latencies) *messenger.Histogram { return &l.Dispatch }},
	{"argonaut_messenger_handle_seconds", "How long Dispatch ran for one message.",
		func(l *messenger.Latencies) *messenger.Histogram { return &l.Handle }},
	{"argonaut_messenger_call_seconds", "From Call until the reply.",
		func(l *messenger.Latencies) *messenger.Histogram { return &l.Call }},
}

// runningTable is what else messenger.Latencies tells.
var runningTable = []metric[messenger.Latencies]{
	counter("argonaut_messenger_running_seconds_total", "The sums of send, receive and fast_dispatch (Ceph: msgr_running_total_time).",
		func(l *messenger.Latencies) float64 { return l.Running().Seconds() }),
}

// Collector is a prometheus.Collector over one messenger.
type Collector struct {
	m          *messenger.Messenger
	messenger  []described[messenger.Stats]
	buffer     []described[bufferStats]
	conn       []described[connStats]
	verbs      []described[verbsStats]
	running    []described[messenger.Latencies]
	histograms []*prometheus.Desc
}

var _ prometheus.Collector = (*Collector)(nil)

// NewCollector returns a collector over m, which it borrows. Of several messengers
// each has its own.
func NewCollector(m *messenger.Messenger) *Collector {
	name := m.Name().String()
	c := &Collector{
		m: m, messenger: describe(name, messengerTable), buffer: describe(name, bufferTable),
		conn: describe(name, connTable, "transport"), verbs: describe(name, verbsTable, "transport"),
		running: describe(name, runningTable),
	}
	for _, h := range histogramTable {
		c.histograms = append(c.histograms, prometheus.NewDesc(h.name, h.help, nil, prometheus.Labels{"messenger": name}))
	}
	return c
}

// Describe implements prometheus.Collector.
func (c *Collector) Describe(out chan<- *prometheus.Desc) {
	describeAll(out, c.messenger)
	describeAll(out, c.buffer)
	describeAll(out, c.conn)
	describeAll(out, c.verbs)
	describeAll(out, c.running)
	for _, d := range c.histograms {
		out <- d
	}
}

// Collect implements prometheus.Collector.
func (c *Collector) Collect(out chan<- prometheus.Metric) {
	ms := c.m.Stats()
	collect(out, c.messenger, &ms)
	bs := c.m.Arena().Stats()
	collect(out, c.buffer, &bs)
	for scheme, ep := range c.m.Endpoints() {
		cs, vs := ep.Stats(), ep.Device().Stats()
		collect(out, c.conn, &cs, scheme)
		collect(out, c.verbs, &vs, scheme)
	}
	l := c.m.Latencies()
	collect(out, c.running, &l)
	for i, h := range histogramTable {
		out <- histogramOf(c.histograms[i], h.of(&l))
	}
}

func histogramOf(d *prometheus.Desc, h *messenger.Histogram) prometheus.Metric {
	buckets := make(map[float64]uint64, len(h.Buckets))
	var n uint64
	for i, k := range h.Buckets[:len(h.Buckets)-1] {
		n += k
		buckets[messenger.HistogramBound(i).Seconds()] = n
	}
	return prometheus.MustNewConstHistogram(d, h.Count, h.Sum.Seconds(), buckets)
}
