//go:build !unix

package buffer

// mapRegion takes the memory from the Go heap: there is no mmap.
func mapRegion(size int64, _ bool) (region, error) { return heapRegion(size), nil }

func prefault(mem []byte) error {
	touch(mem)
	return nil
}
