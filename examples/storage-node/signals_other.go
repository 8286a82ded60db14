//go:build !unix

package main

import "os"

// stopSignals end a command gracefully, accountSignals make a node print its account: there are none here.
var (
	stopSignals    = []os.Signal{os.Interrupt}
	accountSignals []os.Signal
)
