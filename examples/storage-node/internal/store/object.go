package store

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
)

// Object is an object opened for reading. It stays what it was when opened, whatever happens to its key. It is for one
// goroutine.
type Object struct {
	info  Info
	id    blobID
	f     *os.File // nil after Close
	group int64    // the group whose table page is in table; -1: none yet
	table table
}

// Open opens the object key. Every Object ends with Close. Errors: ErrNotFound, ErrBadKey, ErrDamaged, ErrUnreadable,
// ErrClosed.
func (s *Store) Open(key string) (*Object, error) {
	var last blobID
	for {
		r, err := s.lookup("get", key)
		if err != nil {
			return nil, err
		}
		f, err := os.Open(s.blobPath(r.id))
		if errors.Is(err, fs.ErrNotExist) && r.id != last {
			last = r.id // replaced or removed between the two looks: look again
			continue
		}
		if errors.Is(err, fs.ErrNotExist) {
			return nil, &Error{Op: "get", Key: key, Kind: ErrDamaged, Err: err}
		}
		if err != nil {
			return nil, &Error{Op: "get", Key: key, Kind: ErrUnreadable, Err: err}
		}
		return &Object{info: r.info(key), id: r.id, f: f, group: -1}, nil
	}
}

// Info describes the object.
func (o *Object) Info() Info { return o.info }

// ReadAt fills segs with the bytes of the object from off on, checks them, and appends the CRC32C of each chunk to sums.
// off must be a multiple of ChunkSize, and the length of segs too unless it ends with the object. It borrows segs. On an
// error the content of segs is undefined. Errors: ErrRange, ErrDamaged, ErrUnreadable, ErrClosed.
func (o *Object) ReadAt(segs [][]byte, off int64, sums []uint32) ([]uint32, error) {
	if o.f == nil {
		return sums, o.fail(ErrClosed, nil)
	}
	n := totalLen(segs)
	if off < 0 || off%ChunkSize != 0 || n > o.info.Size-off || (n%ChunkSize != 0 && off+n != o.info.Size) {
		return sums, o.fail(ErrRange, fmt.Errorf("%d bytes at %d of %d", n, off, o.info.Size))
	}
	c := cursor{segs: segs}
	for n > 0 {
		chunk := min(n, ChunkSize)
		if err := o.loadTable(off / groupData); err != nil {
			return sums, err
		}
		sum, err := o.readChunk(&c, off, chunk)
		if err != nil {
			return sums, err
		}
		if want := o.table.sum(int(off % groupData / ChunkSize)); sum != want {
			return sums, o.fail(ErrDamaged, fmt.Errorf("chunk at %d: checksum %08x, want %08x", off, sum, want))
		}
		sums = append(sums, sum)
		off += chunk
		n -= chunk
	}
	return sums, nil
}

// readChunk reads n bytes at off of the object and returns their checksum.
func (o *Object) readChunk(c *cursor, off, n int64) (uint32, error) {
	at := fileOffset(off)
	var sum uint32
	for n > 0 {
		p := c.next(int(n))
		if err := o.read(p, at); err != nil {
			return 0, err
		}
		sum = UpdateChecksum(sum, p)
		at += int64(len(p))
		n -= int64(len(p))
	}
	return sum, nil
}

// loadTable makes table the page of group.
func (o *Object) loadTable(group int64) error {
	if o.group == group {
		return nil
	}
	o.group = -1
	n := min(o.info.Size-group*groupData, groupData)
	if err := o.read(o.table.page[:], tableOffset(group, n)); err != nil {
		return err
	}
	if err := o.table.check(o.id, group, int(Chunks(n))); err != nil {
		return o.fail(ErrDamaged, err)
	}
	o.group = group
	return nil
}

// read fills p from the blob file. A file that is too short is damaged; whatever else goes wrong is the system's word.
func (o *Object) read(p []byte, at int64) error {
	_, err := o.f.ReadAt(p, at)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, io.EOF):
		return o.fail(ErrDamaged, errors.New("the blob file is too short"))
	default:
		return o.fail(ErrUnreadable, err)
	}
}

func (o *Object) fail(kind, err error) error {
	return &Error{Op: "get", Key: o.info.Key, Kind: kind, Err: err}
}

// Close ends the reading. A second Close returns nil.
func (o *Object) Close() error {
	if o.f == nil {
		return nil
	}
	f := o.f
	o.f = nil
	return fail("get", o.info.Key, f.Close())
}
