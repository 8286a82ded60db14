// Package bufferhttp serves an arena's report over net/http, to be mounted
// beside net/http/pprof. It is a package of its own so that only those who
// import it pay for net/http.
//
//	mux.Handle("/debug/argonaut/memory", bufferhttp.Handler(arena))
//
// A report names addresses, keys and stacks: do not serve it to strangers.
package bufferhttp
