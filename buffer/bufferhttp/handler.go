package bufferhttp

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"

	"github.com/argonaut-rdma/argonaut/buffer"
	"github.com/argonaut-rdma/argonaut/verbs"
)

// Handler serves the reports of arenas, in that order.
//
//	GET  ?format=text (default) or json
//	POST ?trace=true or false   switches tracing of references, and of the
//	                            objects of all devices that the process has
//	                            open, on or off
//
// It is safe for concurrent use and keeps nothing but the arenas.
func Handler(arenas ...*buffer.Arena) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.Method {
		case http.MethodGet, http.MethodHead:
			report(w, r, arenas)
		case http.MethodPost:
			trace(w, r, arenas)
		default:
			w.Header().Set("Allow", "GET, HEAD, POST")
			http.Error(w, "GET or POST", http.StatusMethodNotAllowed)
		}
	})
}

func report(w http.ResponseWriter, r *http.Request, arenas []*buffer.Arena) {
	reports := make([]buffer.Report, len(arenas))
	switch format := r.FormValue("format"); format {
	case "json", "", "text":
		for i, a := range arenas {
			reports[i] = a.Report()
		}
		if format == "json" {
			w.Header().Set("Content-Type", "application/json")
			_ = json.NewEncoder(w).Encode(reports) // the client has gone: nobody to tell
			return
		}
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		for _, rep := range reports {
			if rep.WriteText(w) != nil {
				return
			}
		}
	default:
		http.Error(w, fmt.Sprintf("format %q: text or json", format), http.StatusBadRequest)
	}
}

func trace(w http.ResponseWriter, r *http.Request, arenas []*buffer.Arena) {
	on, err := strconv.ParseBool(r.FormValue("trace"))
	if err != nil {
		http.Error(w, "trace=true or trace=false", http.StatusBadRequest)
		return
	}
	for _, a := range arenas {
		a.SetTrace(on)
	}
	for _, d := range verbs.Devices() {
		d.SetTraceStacks(on)
	}
	fmt.Fprintf(w, "trace=%v\n", on)
}
