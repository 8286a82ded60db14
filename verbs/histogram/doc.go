// Package histogram counts durations in buckets that are the same everywhere, for
// the latencies of all packages of this module. It imports nothing of it.
package histogram
