package inspect

import (
	"encoding/json"
	"net/http"

	"github.com/argonaut-rdma/argonaut/messenger"
)

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
