package store

import (
	"errors"
	"fmt"
	"net"
	"syscall"
)

// Kinds of failure. Each is what errors.Is finds in an *Error.
var (
	// ErrNotFound: no object has this key.
	ErrNotFound = errors.New("no such object")
	// ErrBadKey: a key is 1 to MaxKeyLen bytes of UTF-8 without control characters.
	ErrBadKey = errors.New("invalid key")
	// ErrNoSpace: the disk, the quota or the file size limit does not allow it. The store is as it was before; removing
	// objects still works, because the store keeps a reserve.
	ErrNoSpace = errors.New("no space left on the node")
	// ErrDamaged: what is on the disk is not what was written. The object should be stored again or removed.
	ErrDamaged = errors.New("object is damaged on disk")
	// ErrUnreadable: the operating system refuses to read the blob; the object may be sound.
	ErrUnreadable = errors.New("object can not be read from disk")
	// ErrChecksum: the data passed to Append does not have the checksums passed with it.
	ErrChecksum = errors.New("data does not match its checksum")
	// ErrSize: more or fewer bytes than were announced, or data after a partial chunk.
	ErrSize = errors.New("wrong number of bytes")
	// ErrRange: a read that is not made of whole chunks of the object.
	ErrRange = errors.New("range outside the object")
	// ErrInUse: another process has this store open.
	ErrInUse = errors.New("data directory is in use by another process")
	// ErrFormat: the directory holds something else, or a store of another version.
	ErrFormat = errors.New("not a store that this program understands")
	// ErrNoIndex: the index is new, and there are blobs: it was lost, and they may be all that is left.
	ErrNoIndex = errors.New("index.db is lost, and objects are there: bring it back, or move the directory blobs away to begin with nothing")
	// ErrIndex: the index could not be written. Whether the object of this change is the old one or the new one is known at the
	// next Open; until then either is read, whole, and there are no other changes.
	ErrIndex = errors.New("the index could not be written: start the node again to see whether the object has changed")
	// ErrClosed: the store, the writer or the object has been closed.
	ErrClosed = net.ErrClosed
)

// Error says which operation failed, on which key, and how: Kind is one of the package's Err values or nil, Err is the
// cause where there is one.
type Error struct {
	Op   string // "open", "put", "get", "stat", "list", "remove"
	Key  string // empty where it is about the store as a whole
	Kind error
	Err  error
}

func (e *Error) Error() string {
	s := e.Op
	if e.Key != "" {
		s += fmt.Sprintf(" %q", e.Key)
	}
	if e.Kind != nil {
		s += ": " + e.Kind.Error()
	}
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	return s
}

// Unwrap gives kind and cause to errors.Is and errors.As.
func (e *Error) Unwrap() []error {
	errs := make([]error, 0, 2)
	if e.Kind != nil {
		errs = append(errs, e.Kind)
	}
	if e.Err != nil {
		errs = append(errs, e.Err)
	}
	return errs
}

// fail wraps err for op on key, finding out what kind it is. An error that is already an *Error stays as it is.
func fail(op, key string, err error) error {
	if err == nil {
		return nil
	}
	var known *Error
	if errors.As(err, &known) {
		return err
	}
	e := &Error{Op: op, Key: key, Err: err}
	if isNoSpace(err) {
		e.Kind = ErrNoSpace
	}
	return e
}

// isNoSpace tells whether the operating system said, in one of its ways, that no more can be written.
func isNoSpace(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) || errors.Is(err, syscall.EFBIG)
}
