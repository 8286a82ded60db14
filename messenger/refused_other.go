//go:build !windows

package messenger

import (
	"errors"
	"syscall"
)

// isRefused reports whether err says that nobody listens at the address.
func isRefused(err error) bool { return errors.Is(err, syscall.ECONNREFUSED) }
