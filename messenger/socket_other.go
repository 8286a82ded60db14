//go:build !linux

package messenger

import "syscall"

const hasSocketPriority = false

// setSocket does nothing: the receive buffer is set once there is a connection.
func setSocket(syscall.RawConn, bool, *Config) error { return nil }
