// Package bare is one end of a connection without the layers above verbs, for programs that talk to those of others: a
// queue pair with memory of its own, and a completion queue that can be slept at.
package bare
