//go:build unix

package buffer

import "syscall"

// errFault is a device's refusal to pin memory.
var errFault error = syscall.EFAULT
