package prometheus

import (
	"context"
	"fmt"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	client "github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/argonaut-rdma/argonaut/conn"
	"github.com/argonaut-rdma/argonaut/messenger"
	"github.com/argonaut-rdma/argonaut/messenger/messengertest"
	"github.com/argonaut-rdma/argonaut/verbs/iwarp"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m,
		goleak.IgnoreAnyFunction("github.com/panjf2000/ants/v2.(*poolCommon).purgeStaleWorkers"),
		goleak.IgnoreAnyFunction("github.com/panjf2000/ants/v2.(*poolCommon).ticktock"))
}

// answerer answers calls.
type answerer struct{ messenger.BaseDispatcher }

func (answerer) Dispatch(ctx context.Context, m *messenger.Message) bool {
	defer m.Release()
	r := messenger.NewMessage(m.Type)
	if m.Reply(ctx, r) != nil {
		r.Release()
	}
	return true
}

// scrape returns what a server would get, by name and labels; of a histogram its
// count and, behind _sum, its sum.
func scrape(t require.TestingT, reg *client.Registry) map[string]float64 {
	families, err := reg.Gather()
	require.NoError(t, err)
	got := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, l.GetName()+"="+l.GetValue())
			}
			key := f.GetName() + "{" + strings.Join(labels, ",") + "}"
			switch {
			case m.GetHistogram() != nil:
				got[key] = float64(m.GetHistogram().GetSampleCount())
				got[key+"_sum"] = m.GetHistogram().GetSampleSum()
			case m.GetCounter() != nil:
				got[key] = m.GetCounter().GetValue()
			default:
				got[key] = m.GetGauge().GetValue()
			}
		}
	}
	return got
}

func TestScrape(t *testing.T) {
	cl := messengertest.New(t, messengertest.Config{
		Scheme: messenger.SchemeIWARP,
		Transports: func(t testing.TB, n *messengertest.Node) []messenger.Transport {
			dev, err := iwarp.Open(iwarp.Config{Dial: n.Dial, Listen: n.Listen})
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, dev.Close()) })
			return []messenger.Transport{{Scheme: messenger.SchemeIWARP, Open: func(cfg conn.Config) (*conn.Endpoint, error) {
				return conn.NewEndpoint(dev, n.Arena, cfg)
			}}}
		},
		Configure: func(_ *messengertest.Node, cfg *messenger.Config) { cfg.Latencies = true },
		Setup: func(n *messengertest.Node) {
			n.SetPolicy(messenger.OSD, messenger.LosslessPeer())
			n.AddDispatcher(answerer{})
		},
	})
	reg := client.NewPedanticRegistry()
	for _, n := range cl.Nodes {
		require.NoError(t, reg.Register(NewCollector(n.Messenger)), "two in one registry")
	}
	c, err := cl.Nodes[0].ConnectTo(messenger.OSD, cl.Nodes[1].Addrs())
	require.NoError(t, err)
	const calls = 7
	for range calls {
		r, err := c.Call(t.Context(), messenger.NewMessage(1))
		require.NoError(t, err)
		r.Release()
	}
	// A reply is there before all that counts its call has been counted.
	want := map[string]float64{
		"argonaut_messenger_connections{kind=open,messenger=osd.0}":       1,
		"argonaut_messenger_connections{kind=standby,messenger=osd.0}":    0,
		"argonaut_messenger_messages_sent_total{messenger=osd.0}":         calls,
		"argonaut_messenger_messages_received_total{messenger=osd.1}":     calls,
		"argonaut_messenger_call_seconds{messenger=osd.0}":                calls,
		"argonaut_messenger_send_queue_seconds{messenger=osd.0}":          calls,
		"argonaut_messenger_send_ack_seconds{messenger=osd.0}":            calls,
		"argonaut_messenger_dispatch_seconds{messenger=osd.1}":            calls,
		"argonaut_messenger_handle_seconds{messenger=osd.1}":              calls,
		"argonaut_messenger_receive_seconds{messenger=osd.0}":             calls,
		"argonaut_messenger_receive_seconds{messenger=osd.1}":             calls,
		"argonaut_messenger_fast_dispatch_seconds{messenger=osd.1}":       0,
		"argonaut_messenger_call_seconds{messenger=osd.1}":                0,
		"argonaut_conn_connections{messenger=osd.0,transport=iwarp}":      1,
		"argonaut_verbs_objects{kind=qp,messenger=osd.1,transport=iwarp}": 1,
	}
	require.EventuallyWithT(t, func(t *assert.CollectT) {
		got := scrape(t, reg)
		for key, want := range want {
			require.Contains(t, got, key)
			require.Equal(t, want, got[key], key)
		}
	}, 30*time.Second, 10*time.Millisecond)
	got := scrape(t, reg)
	require.Positive(t, got["argonaut_messenger_call_seconds{messenger=osd.0}_sum"])
	require.InEpsilon(t, got["argonaut_messenger_send_seconds{messenger=osd.0}_sum"]+
		got["argonaut_messenger_receive_seconds{messenger=osd.0}_sum"], got["argonaut_messenger_running_seconds_total{messenger=osd.0}"], 1e-9)
	require.Equal(t, got["argonaut_buffer_total_bytes{messenger=osd.0}"], got["argonaut_buffer_bytes{kind=free,messenger=osd.0}"]+
		got["argonaut_buffer_bytes{kind=held,messenger=osd.0}"]+got["argonaut_buffer_bytes{kind=posted,messenger=osd.0}"])
	require.GreaterOrEqual(t, got["argonaut_conn_messages_sent_total{messenger=osd.0,transport=iwarp}"], float64(calls))
	require.Positive(t, got["argonaut_verbs_completions_total{messenger=osd.0,transport=iwarp}"])
	require.Positive(t, got["argonaut_verbs_completions_by_status_total{kind=SUCCESS,messenger=osd.0,transport=iwarp}"])
	var byStatus float64
	for key, n := range got {
		if strings.HasPrefix(key, "argonaut_verbs_completions_by_status_total{") && strings.Contains(key, "messenger=osd.0") {
			byStatus += n
		}
	}
	require.Equal(t, got["argonaut_verbs_completions_total{messenger=osd.0,transport=iwarp}"], byStatus)
	require.Positive(t, got["argonaut_verbs_register_seconds{messenger=osd.0,transport=iwarp}"], "the arena's regions")
	for _, none := range []string{"buffer_get_wait_seconds{messenger=osd.0}", "conn_fetch_seconds{messenger=osd.0,transport=iwarp}"} {
		require.Contains(t, got, "argonaut_"+none)
		require.Zero(t, got["argonaut_"+none], "nothing has waited")
	}

	require.NoError(t, cl.Nodes[0].Close())
	require.Zero(t, scrape(t, reg)["argonaut_messenger_connections{kind=open,messenger=osd.0}"], "after the end, too")
}

// Two messengers of one name are told apart by a label of the caller's.
func TestTwoOfOneName(t *testing.T) {
	cl := messengertest.New(t, messengertest.Config{Configure: func(_ *messengertest.Node, cfg *messenger.Config) { cfg.Name.Num = 0 }})
	reg := client.NewPedanticRegistry()
	require.NoError(t, reg.Register(NewCollector(cl.Nodes[0].Messenger)))
	require.ErrorAs(t, reg.Register(NewCollector(cl.Nodes[1].Messenger)), new(client.AlreadyRegisteredError))
	second := client.WrapRegistererWith(client.Labels{"instance_of": "second"}, client.NewRegistry())
	require.NoError(t, second.Register(NewCollector(cl.Nodes[1].Messenger)))
}

// number gives every number in v a value of its own, and returns them by field.
func number(v reflect.Value, path string, next *int, fields map[string]float64) {
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			number(v.Field(i), path+"."+v.Type().Field(i).Name, next, fields)
		}
	case reflect.Array:
		for i := range v.Len() {
			number(v.Index(i), fmt.Sprintf("%s[%d]", path, i), next, fields)
		}
	case reflect.Int, reflect.Int64:
		*next++
		v.SetInt(int64(*next))
		fields[path] = float64(*next)
		if v.Type() == reflect.TypeFor[time.Duration]() {
			fields[path] = time.Duration(*next).Seconds()
		}
	case reflect.Uint64:
		*next++
		v.SetUint(uint64(*next))
		fields[path] = float64(*next)
	case reflect.Float64:
		*next++
		v.SetFloat(float64(*next))
		fields[path] = float64(*next)
	}
}

func complete[S any](t *testing.T, table []metric[S]) {
	var s S
	var n int
	fields := map[string]float64{}
	number(reflect.ValueOf(&s).Elem(), reflect.TypeFor[S]().String(), &n, fields)
	values := map[float64]string{}
	for _, m := range table {
		v := m.value(&s)
		require.Empty(t, values[v], "%s is there twice", m.name)
		values[v] = m.name
	}
	for f, v := range fields {
		require.Contains(t, values, v, "%s has no metric", f)
	}
	require.Len(t, values, n)
}

// Whatever Stats of a package counts has a metric, and one only.
func TestEveryCounterHasAMetric(t *testing.T) {
	complete(t, messengerTable)
	complete(t, bufferTable)
	complete(t, connTable)
	complete(t, verbsTable)
	covered(t, messengerLatencies)
	covered(t, bufferLatencies)
	covered(t, connLatencies)
	covered(t, verbsLatencies)
}

// covered makes sure that each histogram of L has a metric.
func covered[L any](t *testing.T, table []latency[L]) {
	var l L
	fields := reflect.ValueOf(&l).Elem()
	seen := map[any]bool{}
	for _, m := range table {
		seen[m.of(&l)] = true
	}
	require.Len(t, table, fields.NumField())
	for i := range fields.NumField() {
		require.True(t, seen[fields.Field(i).Addr().Interface()], "%s has no metric", fields.Type().Field(i).Name)
	}
}

func addMetrics[S any](names map[string]bool, table []metric[S]) {
	for _, m := range table {
		names[m.name] = true
	}
}

func addLatencies[L any](names map[string]bool, table []latency[L]) {
	for _, l := range table {
		names[l.name] = true
	}
}

// METRICS.md lists them all, and no others.
func TestMetricsAreDocumented(t *testing.T) {
	text, err := os.ReadFile("METRICS.md")
	require.NoError(t, err)
	listed := map[string]bool{}
	for _, line := range strings.Split(string(text), "\n") {
		if name, ok := strings.CutPrefix(line, "| `"); ok {
			name, _, _ = strings.Cut(name, "`")
			listed[name] = true
		}
	}
	names := map[string]bool{}
	addMetrics(names, messengerTable)
	addMetrics(names, bufferTable)
	addMetrics(names, connTable)
	addMetrics(names, verbsTable)
	addMetrics(names, runningTable)
	addLatencies(names, messengerLatencies)
	addLatencies(names, bufferLatencies)
	addLatencies(names, connLatencies)
	addLatencies(names, verbsLatencies)
	require.Equal(t, names, listed)
}
