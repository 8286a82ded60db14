package buffer

import (
	"os"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// mapRegion maps size bytes: of 2 MiB pages from the system's pool, if huge and
// it has so many; else with transparent huge pages, if huge and they are on;
// else of 4 KiB pages. The memory is not in core dumps.
func mapRegion(size int64, huge bool) (region, error) {
	const prot, flags = unix.PROT_READ | unix.PROT_WRITE, unix.MAP_PRIVATE | unix.MAP_ANON
	if huge && size%hugePage == 0 {
		if p, err := unix.MmapPtr(-1, 0, nil, uintptr(size), prot, flags|unix.MAP_HUGETLB|unix.MAP_HUGE_2MB); err == nil {
			return mapped(p, size, backHugeTLB)
		}
	}
	// A transparent huge page has to be aligned: map more and trim.
	extra := uintptr(0)
	if huge && size >= hugePage {
		extra = hugePage
	}
	p, err := unix.MmapPtr(-1, 0, nil, uintptr(size)+extra, prot, flags)
	if err != nil {
		return region{}, os.NewSyscallError("mmap", err)
	}
	backing := backPages
	if extra > 0 {
		skip := -uintptr(p) & (hugePage - 1)
		if skip > 0 {
			err = unix.MunmapPtr(p, skip)
			p = unsafe.Add(p, skip)
		}
		if err == nil && skip < extra {
			err = unix.MunmapPtr(unsafe.Add(p, size), extra-skip)
		}
		if err != nil {
			return region{}, os.NewSyscallError("munmap", err)
		}
		if unix.Madvise(unsafe.Slice((*byte)(p), size), unix.MADV_HUGEPAGE) == nil && thpOn() {
			backing = backTHP
		}
	}
	return mapped(p, size, backing)
}

func mapped(p unsafe.Pointer, size int64, backing string) (region, error) {
	mem := unsafe.Slice((*byte)(p), size)
	unmap := func() error { return os.NewSyscallError("munmap", unix.MunmapPtr(p, uintptr(size))) }
	if err := unix.Madvise(mem, unix.MADV_DONTDUMP); err != nil {
		_ = unmap() // the first error says more
		return region{}, os.NewSyscallError("madvise(MADV_DONTDUMP)", err)
	}
	return region{mem: mem, backing: backing, unmap: unmap}, nil
}

// thpOn reports whether the system heeds MADV_HUGEPAGE.
func thpOn() bool {
	b, err := os.ReadFile("/sys/kernel/mm/transparent_hugepage/enabled")
	return err == nil && !strings.Contains(string(b), "[never]")
}

// prefault touches every page of fresh memory. Where there is too little
// memory it is an error, not a fault.
func prefault(mem []byte) error {
	for {
		switch err := unix.Madvise(mem, unix.MADV_POPULATE_WRITE); err {
		case nil:
			return nil
		case unix.EINTR, unix.EAGAIN:
		case unix.EINVAL: // before Linux 5.14, or of the Go heap with other flags
			touch(mem)
			return nil
		default:
			return os.NewSyscallError("madvise(MADV_POPULATE_WRITE)", err)
		}
	}
}
