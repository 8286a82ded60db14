package store

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"
)

// Writer takes the data of one PUT. Nothing of it is visible before Commit has returned nil, and nothing is left of it
// after Abort. It is for one goroutine.
type Writer struct {
	s        *Store
	key      string
	id       blobID
	f        *os.File // nil after Commit or Abort
	declared int64    // -1: unknown
	size     int64
	table    table
	err      error // what ended it; later calls return it again
}

// Create begins a PUT of size bytes, or of as many as will come where size is -1. The space is reserved where the file
// system can do that, so that a full disk shows before the data is sent. Every Writer ends with Commit or Abort.
// Errors: ErrBadKey, ErrNoSpace, ErrClosed, ErrIndex.
func (s *Store) Create(key string, size int64) (*Writer, error) {
	if err := CheckKey(key); err != nil {
		return nil, err
	}
	if s.closed.Load() {
		return nil, &Error{Op: "put", Key: key, Kind: ErrClosed}
	}
	if s.failed.Load() {
		return nil, &Error{Op: "put", Key: key, Kind: ErrIndex}
	}
	if size < -1 {
		return nil, &Error{Op: "put", Key: key, Kind: ErrSize, Err: fmt.Errorf("size %d", size)}
	}
	w := &Writer{s: s, key: key, declared: size}
	rand.Read(w.id[:]) // never fails: it ends the program instead
	if err := s.checkSpace(key, max(size, 0)); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(s.blobPath(w.id), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, fail("put", key, err)
	}
	w.f = f
	if size > 0 {
		if err := preallocate(f, fileSize(size)); err != nil {
			return nil, errors.Join(fail("put", key, err), w.Abort())
		}
	}
	return w, nil
}

// checkSpace refuses n more bytes where they would eat into the reserve.
func (s *Store) checkSpace(key string, n int64) error {
	if s.reserve < 0 {
		return nil
	}
	free, err := freeSpace(s.dir)
	if err != nil {
		return fail("put", key, err)
	}
	if free < s.reserve || free-s.reserve < n {
		return &Error{Op: "put", Key: key, Kind: ErrNoSpace,
			Err: fmt.Errorf("%d bytes wanted, %d free, %d of them reserved", n, free, s.reserve)}
	}
	return nil
}

// Size is how many bytes have been appended.
func (w *Writer) Size() int64 { return w.size }

// Append writes the bytes of segs, one after the other, behind what has been written. sums are the CRC32C of each chunk
// of them as their sender computed it; nil where nobody did. Each call but the last must bring whole chunks. It borrows
// segs and sums. After an error (ErrChecksum, ErrSize, ErrNoSpace, ErrClosed) the Writer can only be aborted.
func (w *Writer) Append(segs [][]byte, sums []uint32) error {
	if w.err != nil {
		return w.err
	}
	n := totalLen(segs)
	switch {
	case n > 0 && w.size%ChunkSize != 0:
		return w.broken(ErrSize, errors.New("data after a partial chunk"))
	case w.declared >= 0 && n > w.declared-w.size:
		return w.broken(ErrSize, fmt.Errorf("more than the %d bytes announced", w.declared))
	case sums != nil && int64(len(sums)) != Chunks(n):
		return w.broken(ErrChecksum, fmt.Errorf("%d checksums for %d chunks", len(sums), Chunks(n)))
	}
	c := cursor{segs: segs}
	for i := 0; n > 0; i++ {
		chunk := min(n, ChunkSize)
		sum, err := w.writeChunk(&c, chunk)
		if err != nil {
			return w.broken(nil, err)
		}
		if sums != nil && sums[i] != sum {
			return w.broken(ErrChecksum, fmt.Errorf("chunk at %d: %08x, its sender says %08x", w.size, sum, sums[i]))
		}
		w.table.set(w.table.count, sum)
		w.table.count++
		w.size += chunk
		n -= chunk
		if w.table.count == groupChunks {
			if err := w.writeTable(); err != nil {
				return w.broken(nil, err)
			}
		}
	}
	return nil
}

// writeChunk writes the next n bytes of c at the end of the blob and returns their checksum. Summing just before writing
// lets the second pass find the bytes in the cache.
func (w *Writer) writeChunk(c *cursor, n int64) (uint32, error) {
	at := fileOffset(w.size)
	var sum uint32
	for n > 0 {
		p := c.next(int(n))
		sum = UpdateChecksum(sum, p)
		if _, err := w.f.WriteAt(p, at); err != nil {
			return 0, err
		}
		at += int64(len(p))
		n -= int64(len(p))
	}
	return sum, nil
}

// writeTable writes the table page of the group that has just ended and starts the next.
func (w *Writer) writeTable() error {
	group := (w.size - 1) / groupData
	if w.declared < 0 {
		if err := w.s.checkSpace(w.key, groupSpan); err != nil {
			return err
		}
	}
	_, err := w.f.WriteAt(w.table.seal(w.id, group), tableOffset(group, w.size-group*groupData))
	w.table.count = 0
	return err
}

// broken remembers the error that ended the writer.
func (w *Writer) broken(kind, err error) error {
	if kind != nil {
		w.err = &Error{Op: "put", Key: w.key, Kind: kind, Err: err}
	} else {
		w.err = fail("put", w.key, err)
	}
	return w.err
}

// Commit makes the object durable and visible, replacing the one that had its key. When it returns nil the object
// survives a crash of the process or of the machine. On an error (ErrSize where fewer bytes came than announced,
// ErrNoSpace, ErrClosed) everything is as if the Writer had been aborted, but for ErrIndex: then both blobs stay until the
// next Open.
func (w *Writer) Commit() (Info, error) {
	r, err := w.commit()
	if err != nil {
		return Info{}, errors.Join(err, w.Abort())
	}
	w.err = &Error{Op: "put", Key: w.key, Kind: ErrClosed}
	return r.info(w.key), nil
}

func (w *Writer) commit() (record, error) {
	if w.err != nil {
		return record{}, w.err
	}
	if w.declared >= 0 && w.size != w.declared {
		return record{}, w.broken(ErrSize, fmt.Errorf("%d of %d bytes", w.size, w.declared))
	}
	if w.table.count > 0 {
		if err := w.writeTable(); err != nil {
			return record{}, w.broken(nil, err)
		}
	}
	// Data first, then its directory entry, then the record: a record never names what might not be there.
	if err := w.f.Sync(); err != nil {
		return record{}, w.broken(nil, err)
	}
	if err := w.s.sync(filepath.Dir(w.s.blobPath(w.id))); err != nil {
		return record{}, w.broken(nil, err)
	}
	r := record{size: w.size, modified: time.Now().UnixNano(), id: w.id}
	err := w.s.replace("put", w.key, &r)
	if err != nil && !errors.Is(err, ErrIndex) {
		return record{}, w.broken(nil, err)
	}
	// The record names the blob, or may: there is nothing to abort any more.
	f := w.f
	w.f = nil
	if err := f.Close(); err != nil {
		w.s.log.Warn("closing a blob", "blob", w.id, "err", err) // it is synced: nothing is lost
	}
	if err != nil {
		return record{}, w.broken(nil, err)
	}
	return r, nil
}

// Abort gives up and removes what was written. After Commit or Abort it does nothing.
func (w *Writer) Abort() error {
	if w.f == nil {
		return nil
	}
	if w.err == nil {
		w.err = &Error{Op: "put", Key: w.key, Kind: ErrClosed}
	}
	f := w.f
	w.f = nil
	err := f.Close()
	if e := os.Remove(w.s.blobPath(w.id)); e != nil && !errors.Is(e, fs.ErrNotExist) {
		err = errors.Join(err, e)
	}
	return fail("put", w.key, err)
}
