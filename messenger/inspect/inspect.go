package inspect

import (
	"encoding/json"
	"net/http"

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

// Handler answers GET with messenger.Inspect as JSON: the messenger's counters,
// its memory, and every connection with its session, queues and grants. It is
// for operators: put it where only they can reach it.
func Handler(m *messenger.Messenger) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			w.Header().Set("Allow", "GET, HEAD")
			http.Error(w, "method not allowed", http.StatusMethodNotAllowed)
			return
		}
		text, err := json.MarshalIndent(m.Inspect(), "", "  ")
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(append(text, '\n')) // to who has gone, perhaps
	})
}
