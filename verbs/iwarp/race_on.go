//go:build race

package iwarp

import (
	"runtime"
	"unsafe"
)

// The race detector does not see what a system call does to memory, nor that bytes which came out of a socket were put
// in before. These tell it, as package syscall does for its own calls.

var raceSync byte

const raceEnabled = true

func raceSend(iov []iovec) {
	runtime.RaceReleaseMerge(unsafe.Pointer(&raceSync))
	for i := range iov {
		if p, n := iovecBytes(&iov[i]); n > 0 {
			runtime.RaceReadRange(p, n)
		}
	}
}

// raceReceived follows a call that filled the first n bytes of iov.
func raceReceived(iov []iovec, n int) {
	if n <= 0 {
		return
	}
	runtime.RaceAcquire(unsafe.Pointer(&raceSync))
	for i := range iov {
		p, k := iovecBytes(&iov[i])
		if k = min(k, n); k > 0 {
			runtime.RaceWriteRange(p, k)
		}
		n -= k
	}
}
