package inspect

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"

	"github.com/argonaut-rdma/argonaut/messenger"
)

// Live answers a probe with 200 while messenger.Health says Live, else with 503;
// the body is the Health as JSON.
func Live(m *messenger.Messenger) http.Handler {
	return probe(m, func(h messenger.Health) bool { return h.Live })
}

// Ready is Live for Health.Ready: whether peers may be sent here.
func Ready(m *messenger.Messenger) http.Handler {
	return probe(m, func(h messenger.Health) bool { return h.Ready })
}

func probe(m *messenger.Messenger, good func(messenger.Health) bool) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		h := m.Health()
		text, err := json.Marshal(h)
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		if !good(h) {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		_, _ = w.Write(append(text, '\n')) // to who has gone, perhaps
	})
}

// MaxLimit is the most connections that one answer of Handler has.
const MaxLimit = 1000

// Handler answers GET with messenger.Inspect as JSON: the messenger's counters,
// its memory and who holds it, policies, throttles, endpoints, and connections
// with their sessions, queues, grants and transports. Durations are in
// nanoseconds. The query chooses the connections, see messenger.InspectQuery:
//
//	limit=n     at most n of them, 1 to MaxLimit; 100 without it
//	after=id    those behind that ID: Next of the answer before, while it has one
//	peer=name   of the peer osd.3, or of all peers of type osd
//	state=open  in that state
//
// Anything else in the query is answered with 400. The answer is complete before
// the first byte of it is written, so a slow reader holds up nobody. It is for
// operators: put it where only they can reach it.
func Handler(m *messenger.Messenger) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			w.Header().Set("Allow", "GET, HEAD")
			http.Error(w, "method not allowed", http.StatusMethodNotAllowed)
			return
		}
		q, err := queryOf(r.URL)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		text, err := json.MarshalIndent(m.Inspect(q), "", "  ")
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(append(text, '\n')) // to who has gone, perhaps
	})
}

// queryOf reads what is asked for.
func queryOf(u *url.URL) (q messenger.InspectQuery, err error) {
	values, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return q, err
	}
	for key, vs := range values {
		if len(vs) != 1 {
			return q, fmt.Errorf("%d values of %q, want one", len(vs), key)
		}
		v := vs[0]
		switch key {
		case "limit":
			if q.Limit, err = strconv.Atoi(v); err != nil || q.Limit < 1 || q.Limit > MaxLimit {
				return q, fmt.Errorf("limit %q is not a number from 1 to %d", v, MaxLimit)
			}
		case "after":
			if q.After, err = strconv.ParseUint(v, 10, 64); err != nil {
				return q, fmt.Errorf("after %q is not the ID of a connection", v)
			}
		case "peer":
			q.Peer = v
		case "state":
			q.State = v
			if !slices.ContainsFunc(states, func(s messenger.State) bool { return s.String() == v }) {
				return q, fmt.Errorf("state %q is none of %v", v, states)
			}
		default:
			return q, fmt.Errorf("unknown %q: want limit, after, peer, state", key)
		}
	}
	return q, nil
}

// states are those that connections are listed in.
var states = []messenger.State{messenger.StateConnecting, messenger.StateOpen, messenger.StateStandby}
