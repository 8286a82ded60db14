package buffer

import (
	"encoding/binary"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// mappings reads what is mapped in [addr, addr+n), from /proc/self/maps
// (proc_pid_maps(5)). ok is false where that can not be read.
func mappings(addr, n uint64) (ms []mapping, ok bool) {
	all, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return nil, false
	}
	for line := range strings.Lines(string(all)) {
		m, err := parseMapping(strings.TrimSuffix(line, "\n"))
		if err != nil {
			return nil, false
		}
		if m.lo < addr+n && addr < m.hi {
			ms = append(ms, m)
		}
	}
	return ms, true
}

func parseMapping(line string) (m mapping, err error) {
	f := strings.Fields(line)
	if len(f) < 5 || len(f[1]) < 4 {
		return m, fmt.Errorf("maps has %q", line)
	}
	lo, hi, _ := strings.Cut(f[0], "-")
	if m.lo, err = strconv.ParseUint(lo, 16, 64); err != nil {
		return m, err
	}
	if m.hi, err = strconv.ParseUint(hi, 16, 64); err != nil {
		return m, err
	}
	m.read, m.write, m.shared = f[1][0] == 'r', f[1][1] == 'w', f[1][3] == 's'
	if m.offset, err = strconv.ParseUint(f[2], 16, 64); err != nil {
		return m, err
	}
	m.dev = f[3]
	if m.inode, err = strconv.ParseUint(f[4], 10, 64); err != nil {
		return m, err
	}
	if i := strings.IndexAny(line, "/["); i >= 0 {
		m.path = line[i:]
	}
	return m, nil
}

// regularFile reports whether path, as maps has it, is of a file system on a
// disk or the like. Of what has no path any more nothing is known: the device
// has to say.
func regularFile(path string) bool {
	if !strings.HasPrefix(path, "/") || strings.HasPrefix(path, "/memfd:") || strings.HasPrefix(path, "/SYSV") {
		return false
	}
	var st unix.Statfs_t
	if unix.Statfs(path, &st) != nil {
		return false
	}
	return st.Type != unix.TMPFS_MAGIC && st.Type != unix.HUGETLBFS_MAGIC
}

// ofGoHeap reports whether memory seems to be of the Go heap: the heap's
// mappings follow each other, so it is asked whether those of mem do and an
// object of the heap is among them.
func ofGoHeap(addr uint64) bool {
	probe := new([2 * Page]byte)
	at := uint64(uintptr(unsafe.Pointer(probe)))
	all, err := os.ReadFile("/proc/self/maps")
	runtime.KeepAlive(probe)
	if err != nil {
		return false
	}
	var lo, hi uint64 // the run of anonymous mappings
	for line := range strings.Lines(string(all)) {
		m, err := parseMapping(strings.TrimSuffix(line, "\n"))
		if err != nil {
			return false
		}
		if m.lo != hi || m.inode != 0 {
			lo = m.lo
		}
		hi = m.hi
		if in := func(a uint64) bool { return lo <= a && a < hi }; in(at) && in(addr) {
			return true
		}
	}
	return false
}

// checkPages says what is wrong with the pages of memory that is mapped: that
// they are beyond the end of their file, or, if pinned, that they have been
// discarded: the device goes on using pages that are no longer those of the
// process. It reads every page.
func checkPages(addr, n uint64, pinned bool) error {
	lo, hi := addr&^(Page-1), (addr+n+Page-1)&^(Page-1)
	if pinned {
		f, err := os.Open("/proc/self/pagemap")
		if err == nil {
			defer f.Close()
			buf := make([]byte, 8*512)
			for at := lo; at < hi; at += 512 * Page {
				k, err := f.ReadAt(buf[:8*min(512, (hi-at)/Page)], int64(at/Page*8))
				if err != nil && k == 0 {
					break
				}
				for i := 0; i+8 <= k; i += 8 {
					const present, swapped = 1 << 63, 1 << 62
					if binary.LittleEndian.Uint64(buf[i:])&(present|swapped) == 0 {
						return &MappingError{
							Addr: at + uint64(i/8*Page), Length: Page, Reason: "its pages have been discarded (MADV_DONTNEED, truncation or a hole) while it was registered",
							Remedy: "close its Memory before",
						}
					}
				}
			}
		}
	}
	const per = 512
	var dst [per]byte
	pid := os.Getpid()
	for at := lo; at < hi; {
		var remote [per]unix.RemoteIovec
		k := 0
		for ; k < per && at < hi; k, at = k+1, at+Page {
			remote[k] = unix.RemoteIovec{Base: uintptr(at), Len: 1}
		}
		local := unix.Iovec{Base: &dst[0]}
		local.SetLen(k)
		got, err := unix.ProcessVMReadv(pid, []unix.Iovec{local}, remote[:k], 0)
		if err == unix.ENOSYS || err == unix.EPERM {
			return nil // not to be had here
		}
		if err != nil {
			got = 0
		}
		if got < k {
			return &MappingError{
				Addr: uint64(remote[got].Base), Length: Page, Reason: "its pages are gone: the file was truncated, or the memory unmapped",
				Remedy: "close its Memory before",
			}
		}
	}
	return nil
}
