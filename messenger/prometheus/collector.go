package prometheus

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/argonaut-rdma/argonaut/buffer"
	"github.com/argonaut-rdma/argonaut/conn"
	"github.com/argonaut-rdma/argonaut/messenger"
	"github.com/argonaut-rdma/argonaut/verbs"
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

// Collector is a prometheus.Collector over one messenger.
type Collector struct {
	m         *messenger.Messenger
	messenger []described[messenger.Stats]
	buffer    []described[bufferStats]
	conn      []described[connStats]
	verbs     []described[verbsStats]
	running   []described[messenger.Latencies]
	latencies struct {
		messenger []describedHistogram[messenger.Latencies]
		buffer    []describedHistogram[buffer.Latencies]
		conn      []describedHistogram[conn.Latencies]
		verbs     []describedHistogram[verbs.Latencies]
	}
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
	c.latencies.messenger = describeHistograms(name, messengerLatencies)
	c.latencies.buffer = describeHistograms(name, bufferLatencies)
	c.latencies.conn = describeHistograms(name, connLatencies, "transport")
	c.latencies.verbs = describeHistograms(name, verbsLatencies, "transport")
	return c
}

// Describe implements prometheus.Collector.
func (c *Collector) Describe(out chan<- *prometheus.Desc) {
	describeAll(out, c.messenger)
	describeAll(out, c.buffer)
	describeAll(out, c.conn)
	describeAll(out, c.verbs)
	describeAll(out, c.running)
	describeAllHistograms(out, c.latencies.messenger)
	describeAllHistograms(out, c.latencies.buffer)
	describeAllHistograms(out, c.latencies.conn)
	describeAllHistograms(out, c.latencies.verbs)
}

// Collect implements prometheus.Collector.
func (c *Collector) Collect(out chan<- prometheus.Metric) {
	ms := c.m.Stats()
	collect(out, c.messenger, &ms)
	bs := c.m.Arena().Stats()
	collect(out, c.buffer, &bs)
	bl := c.m.Arena().Latencies()
	collectHistograms(out, c.latencies.buffer, &bl)
	for scheme, ep := range c.m.Endpoints() {
		cs, vs := ep.Stats(), ep.Device().Stats()
		collect(out, c.conn, &cs, scheme)
		collect(out, c.verbs, &vs, scheme)
		cl, vl := ep.Latencies(), ep.Device().Latencies()
		collectHistograms(out, c.latencies.conn, &cl, scheme)
		collectHistograms(out, c.latencies.verbs, &vl, scheme)
	}
	l := c.m.Latencies()
	collect(out, c.running, &l)
	collectHistograms(out, c.latencies.messenger, &l)
}
