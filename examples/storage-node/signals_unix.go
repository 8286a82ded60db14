//go:build unix

package main

import (
	"os"
	"syscall"
)

// stopSignals end a command gracefully, accountSignals make a node print its account.
var (
	stopSignals    = []os.Signal{os.Interrupt, syscall.SIGTERM}
	accountSignals = []os.Signal{syscall.SIGUSR1}
)
