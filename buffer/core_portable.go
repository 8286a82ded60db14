//go:build !gc || race

package buffer

// The race detector does not know that pinning orders memory accesses, and
// other compilers have other runtimes: a mutex per core guards the caches.

const canPin = false

func procPin() int { panic("buffer: no pinning in this build") }
func procUnpin()   { panic("buffer: no pinning in this build") }
