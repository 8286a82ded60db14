package messenger

import (
	"errors"

	"golang.org/x/sys/windows"
)

// isRefused reports whether err says that nobody listens at the address.
func isRefused(err error) bool { return errors.Is(err, windows.WSAECONNREFUSED) }
