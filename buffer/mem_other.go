//go:build !unix

package buffer

// mapRegion takes the memory from the Go heap: there is no mmap.
func mapRegion(size int64, _ bool, _ func([]byte) error) (region, error) {
	return heapRegion(size), nil
}

// populate is of Linux.
func populate([]byte) error { return ErrNotSupported }
