package buffer

import (
	"errors"
	"os"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The system calls for memory, which tests replace.
var (
	sysMmap    = unix.MmapPtr
	sysMunmap  = unix.MunmapPtr
	sysMadvise = unix.Madvise
)

const mapProt, mapFlags = unix.PROT_READ | unix.PROT_WRITE, unix.MAP_PRIVATE | unix.MAP_ANON

// mapRegion maps size bytes: of 2 MiB pages from the system's pool, if huge and
// it gives so many to claim; else with transparent huge pages, if huge and they
// are on; else of 4 KiB pages. The memory is not in core dumps.
func mapRegion(size int64, huge bool, claim func(mem []byte) error) (region, error) {
	if huge && size%hugePage == 0 {
		if p, err := mapPool(size, claim); err == nil {
			return mapped(p, size, backHugeTLB)
		}
	}
	// A transparent huge page has to be aligned: map more and trim.
	extra := uintptr(0)
	if huge && size >= hugePage {
		extra = hugePage
	}
	p, err := sysMmap(-1, 0, nil, uintptr(size)+extra, mapProt, mapFlags)
	if err != nil {
		return region{}, os.NewSyscallError("mmap", err)
	}
	backing := backPages
	if extra > 0 {
		skip := -uintptr(p) & (hugePage - 1)
		if skip > 0 {
			err = sysMunmap(p, skip)
			p = unsafe.Add(p, skip)
		}
		if err == nil && skip < extra {
			err = sysMunmap(unsafe.Add(p, size), extra-skip)
		}
		if err != nil {
			return region{}, os.NewSyscallError("munmap", err)
		}
		if sysMadvise(unsafe.Slice((*byte)(p), size), unix.MADV_HUGEPAGE) == nil && thpOn() {
			backing = backTHP
		}
	}
	return mapped(p, size, backing)
}

// mapPool maps size bytes of 2 MiB pages from the system's pool.
func mapPool(size int64, claim func(mem []byte) error) (unsafe.Pointer, error) {
	p, err := sysMmap(-1, 0, nil, uintptr(size), mapProt, mapFlags|unix.MAP_HUGETLB|unix.MAP_HUGE_2MB)
	if err != nil {
		return nil, err
	}
	if err := claim(unsafe.Slice((*byte)(p), size)); err != nil {
		return nil, errors.Join(err, sysMunmap(p, uintptr(size)))
	}
	return p, nil
}

func mapped(p unsafe.Pointer, size int64, backing string) (region, error) {
	mem := unsafe.Slice((*byte)(p), size)
	unmap := func() error { return os.NewSyscallError("munmap", sysMunmap(p, uintptr(size))) }
	if err := sysMadvise(mem, unix.MADV_DONTDUMP); err != nil {
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

// populate touches every page of mem, whose contents stay. Where there is too
// little memory it is an error, not a fault. ErrNotSupported: before Linux 5.14,
// or of the Go heap with other flags.
func populate(mem []byte) error {
	for {
		switch err := sysMadvise(mem, unix.MADV_POPULATE_WRITE); err {
		case nil:
			return nil
		case unix.EINTR, unix.EAGAIN:
		case unix.EINVAL:
			return ErrNotSupported
		default:
			return os.NewSyscallError("madvise(MADV_POPULATE_WRITE)", err)
		}
	}
}
