package buffer

import (
	"fmt"

	"github.com/argonaut-rdma/argonaut/verbs"
)

// MappingError says why memory of the caller can not be registered, or not so,
// or not any more. It matches verbs.ErrInvalid.
type MappingError struct {
	Addr, Length uint64 // of the part concerned
	Path         string // of the file that is mapped, if any
	Reason       string
	Remedy       string
	Err          error // the device's refusal, if it was asked
}

// Error names the memory, the reason and the remedy.
func (e *MappingError) Error() string {
	s := fmt.Sprintf("buffer: memory at 0x%x, %d bytes", e.Addr, e.Length)
	if e.Path != "" {
		s += ", of " + e.Path
	}
	s += ": " + e.Reason
	if e.Remedy != "" {
		s += ": " + e.Remedy
	}
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	return s
}

// Is reports whether target is verbs.ErrInvalid.
func (e *MappingError) Is(target error) bool { return target == verbs.ErrInvalid }

// Unwrap returns Err.
func (e *MappingError) Unwrap() error { return e.Err }

// mapping is what the system knows of a piece of the address space.
type mapping struct {
	lo, hi      uint64
	read, write bool
	shared      bool
	offset      uint64 // in the file
	dev         string
	inode       uint64
	path        string
}

// file reports whether pages of the mapping belong to a file of a disk: it is
// shared, and neither anonymous nor of shmem or hugetlbfs.
func (m *mapping) file() bool { return m.shared && m.inode != 0 && regularFile(m.path) }

// sameAs reports whether the mapping has stayed what it was, apart from its
// extent.
func (m *mapping) sameAs(o *mapping) bool {
	return m.dev == o.dev && m.inode == o.inode && m.shared == o.shared && (m.inode == 0 || m.offset-m.lo == o.offset-o.lo)
}

// checkRights says whether memory of these mappings can be registered for
// writing, or at all.
func checkRights(ms []mapping, addr, n uint64, write bool) error {
	at := addr
	for i := range ms {
		m := &ms[i]
		if m.lo > at {
			break
		}
		e := &MappingError{Addr: at, Length: min(m.hi, addr+n) - at, Path: m.path}
		switch {
		case !m.read:
			e.Reason = "it is mapped without PROT_READ"
			return e
		case write && !m.write:
			e.Reason, e.Remedy = "it is mapped read-only", "register it without AccessLocalWrite: it can be sent and be read by the peer"
			return e
		case write && m.file():
			e.Reason = "it is a shared mapping of a regular file: since Linux 6.5 the kernel refuses to pin such pages for writing (EFAULT), because a device would dirty them behind the file system"
			e.Remedy = "register it without AccessLocalWrite, or use a memfd, hugetlbfs or anonymous memory and write the file from there"
			return e
		}
		at = m.hi
		if at >= addr+n {
			return nil
		}
	}
	return &MappingError{Addr: at, Length: addr + n - at, Reason: "it is not mapped"}
}
