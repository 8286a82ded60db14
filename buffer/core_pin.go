//go:build gc && !race

package buffer

import _ "unsafe" // go:linkname

// This is the only file that uses private parts of the Go runtime, and
// core_portable.go takes its place where they are not to be had. While a
// goroutine is pinned, its processor (P) runs no other goroutine, so what is
// kept per P needs no lock.

const canPin = true

//go:linkname procPin runtime.procPin
func procPin() int

//go:linkname procUnpin runtime.procUnpin
func procUnpin()
