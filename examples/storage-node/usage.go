package main

import (
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/argonaut-rdma/argonaut/examples/storage-node/internal/fabric"
	"github.com/argonaut-rdma/argonaut/messenger"
)

// usageError is a command line that can not be meant: nothing has been done, and nothing would help but another one.
type usageError struct{ err error }

func (e *usageError) Error() string { return e.err.Error() }
func (e *usageError) Unwrap() error { return e.err }

func usagef(format string, args ...any) error { return &usageError{fmt.Errorf(format, args...)} }

// usable returns the addresses of a flag, parsed.
func usable(flag, value string, choice fabric.Choice) (messenger.AddrVec, error) {
	if strings.TrimSpace(value) == "" {
		return nil, usagef("%s is empty: give an address, host:port", flag)
	}
	addrs, err := choice.ParseAddrs(value)
	switch {
	case errors.Is(err, fabric.ErrScheme):
		return nil, &usageError{err}
	case err != nil:
		return nil, usagef("%s takes host:port, or transport://host:port: %w", flag, err)
	}
	return addrs, nil
}

// named refuses addresses without a host, which say where to listen, and not whom to reach.
func named(addrs messenger.AddrVec) error {
	for _, a := range addrs {
		if host, port, err := net.SplitHostPort(a.HostPort()); err == nil && host == "" {
			return usagef("the address %s names no host: write localhost:%s for this machine", a.URL, port)
		}
	}
	return nil
}

func checkArena(arena int64) error {
	if arena < fabric.MinArena {
		return usagef("--arena %v is too small: at least %v are needed", byteSize(arena), byteSize(fabric.MinArena))
	}
	return nil
}

func checkTimeout(d time.Duration) error {
	if d <= 0 {
		return usagef("--timeout %v: it has to be longer than nothing, for instance 30s", d)
	}
	return nil
}
