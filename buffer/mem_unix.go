//go:build unix && !linux

package buffer

import (
	"os"

	"golang.org/x/sys/unix"
)

// mapRegion maps size bytes; huge pages are the system's to choose.
func mapRegion(size int64, _ bool, _ func([]byte) error) (region, error) {
	mem, err := unix.Mmap(-1, 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return region{}, os.NewSyscallError("mmap", err)
	}
	return region{mem: mem, backing: backPages, unmap: func() error { return os.NewSyscallError("munmap", unix.Munmap(mem)) }}, nil
}

// populate is of Linux.
func populate([]byte) error { return ErrNotSupported }
