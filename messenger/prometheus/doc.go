// Package prometheus gives Prometheus the counters of a messenger, and of the
// memory, the endpoints and the devices below it, as one Collector:
//
//	registry.MustRegister(prometheus.NewCollector(m))
//
// Only who imports this package has Prometheus' client library in the program.
// METRICS.md lists the metrics. All have the label messenger (the entity's name);
// those of endpoints and devices have transport (the scheme of its addresses), too.
// Two messengers of one name in a process can not be in one registry: Register
// refuses the second, unless each is registered with a label of its own
// (prometheus.WrapRegistererWith).
//
// Nothing is counted for the collector's sake: a scrape takes the snapshots that
// Stats of each package gives. It costs about as much as they do (buffer.Arena.Stats
// walks the buffers in use) and may run at any time, also after Shutdown. The
// histograms of the messenger are empty unless messenger.Config.Latencies is set;
// those of the other packages are of what waits, and always there.
package prometheus
