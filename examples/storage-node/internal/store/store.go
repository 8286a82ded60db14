package store

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"go.etcd.io/bbolt"
	bberrors "go.etcd.io/bbolt/errors"
)

// Config says where a store lives. Only Dir is required.
type Config struct {
	// Dir is the directory of the store; it is created where it does not exist.
	Dir string
	// Reserve is how many bytes of the file system a PUT may not touch, so that there is room for the index to record
	// removals when the disk is full. Default 16 MiB; negative: none.
	Reserve int64
	// Logger hears of what Open cleaned up and of blobs that could not be removed. nil: silent.
	Logger *slog.Logger

	sync func(dir string) error // makes the entries of dir durable; nil: syncDir. For tests.
}

const defaultReserve = 16 << 20

// Buckets of the index. Blobs has an entry for each blob file that an object owns, so that a file without one is known
// to be a leftover; meta has the format and the totals.
var (
	bucketObjects = []byte("objects") // key -> record
	bucketBlobs   = []byte("blobs")   // blob id -> key
	bucketMeta    = []byte("meta")
	metaFormat    = []byte("format")
	metaTotals    = []byte("totals") // objects, bytes: 8 bytes each, big endian
	formatValue   = []byte("argonaut-store-1")
)

// Store is an open data directory.
type Store struct {
	dir     string
	reserve int64
	log     *slog.Logger
	db      *bbolt.DB
	sync    func(dir string) error
	closed  atomic.Bool
	swept   int // leftovers that Open removed

	update  func(func(*bbolt.Tx) error) error // db.Update, but for tests
	writing sync.Mutex                        // held while the index changes
	failed  atomic.Bool                       // the index takes no more changes; set while writing is held
}

// Totals is what the store holds.
type Totals struct {
	Objects int64
	Bytes   int64
}

// Open opens or creates the store in cfg.Dir and removes blobs that a crash left unfinished. It takes the time of
// listing every blob. Errors: ErrInUse where another process has it open, ErrFormat, ErrNoIndex, ErrNoSpace, or the cause.
func Open(cfg Config) (*Store, error) {
	s := &Store{dir: cfg.Dir, reserve: cfg.Reserve, log: cfg.Logger, sync: cfg.sync}
	if s.reserve == 0 {
		s.reserve = defaultReserve
	}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	if cfg.Dir == "" {
		return nil, &Error{Op: "open", Err: errors.New("no data directory given")}
	}
	if s.sync == nil {
		s.sync = syncDir
	}
	if err := s.makeDir(filepath.Clean(s.dir)); err != nil {
		return nil, fail("open", "", err)
	}
	for i := range shards {
		if err := os.MkdirAll(s.shard(i), 0o700); err != nil {
			return nil, fail("open", "", err)
		}
	}
	db, err := bbolt.Open(filepath.Join(s.dir, "index.db"), 0o600, &bbolt.Options{
		Timeout:      time.Second,
		FreelistType: bbolt.FreelistMapType,
	})
	switch {
	case errors.Is(err, bberrors.ErrTimeout):
		return nil, &Error{Op: "open", Kind: ErrInUse, Err: errors.New(s.dir)}
	case errors.Is(err, bberrors.ErrInvalid), errors.Is(err, bberrors.ErrVersionMismatch), errors.Is(err, bberrors.ErrChecksum):
		return nil, &Error{Op: "open", Kind: ErrFormat, Err: err}
	case err != nil:
		return nil, fail("open", "", err)
	}
	s.db, s.update = db, db.Update
	for _, step := range []func() error{s.prepare, s.syncDirs, s.sweep} {
		if err := step(); err != nil {
			return nil, errors.Join(fail("open", "", err), db.Close())
		}
	}
	return s, nil
}

// makeDir makes dir, and what is missing above it, and syncs the directories that have got an entry by that, also by a start
// before that ended too soon.
func (s *Store) makeDir(dir string) error {
	parent := filepath.Dir(dir)
	if st, err := os.Stat(dir); err == nil && st.IsDir() {
		err := s.sync(parent)
		if errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.EINVAL) {
			return nil // it was made for us by somebody else, or is where a file system begins that another can not sync
		}
		return err
	}
	if parent != dir {
		if err := s.makeDir(parent); err != nil {
			return err
		}
	}
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return s.sync(parent)
}

// syncDirs makes the directories of the blobs durable, and the entry of the index.
func (s *Store) syncDirs() error {
	return errors.Join(s.sync(filepath.Join(s.dir, "blobs")), s.sync(s.dir))
}

// prepare creates the buckets of a new index and checks the format of an old one. It commits in any case, because sweep
// removes what the index does not name: a commit of the last run that failed may be in the system's cache alone.
func (s *Store) prepare() error {
	return s.db.Update(func(tx *bbolt.Tx) error {
		if b := tx.Bucket(bucketMeta); b != nil {
			if !bytes.Equal(b.Get(metaFormat), formatValue) || tx.Bucket(bucketObjects) == nil || tx.Bucket(bucketBlobs) == nil {
				return &Error{Op: "open", Kind: ErrFormat, Err: fmt.Errorf("format %q, want %q", b.Get(metaFormat), formatValue)}
			}
			return nil
		}
		// A new index comes before the first blob. The blobs of one that was lost are not leftovers.
		if err := s.eachBlob(func(path string, _ []byte) error {
			return &Error{Op: "open", Kind: ErrNoIndex, Err: errors.New(path)}
		}); err != nil {
			return err
		}
		for _, name := range [][]byte{bucketObjects, bucketBlobs} {
			if _, err := tx.CreateBucket(name); err != nil {
				return err
			}
		}
		meta, err := tx.CreateBucket(bucketMeta)
		if err != nil {
			return err
		}
		return meta.Put(metaFormat, formatValue)
	})
}

// sweep removes every blob file that no object owns: PUTs that a crash cut short, and replaced or removed blobs that
// could not be unlinked at the time.
func (s *Store) sweep() error {
	return s.db.View(func(tx *bbolt.Tx) error {
		blobs := tx.Bucket(bucketBlobs)
		if err := s.eachBlob(func(path string, id []byte) error {
			if blobs.Get(id) != nil {
				return nil
			}
			if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
			s.swept++
			return nil
		}); err != nil {
			return err
		}
		if s.swept > 0 {
			s.log.Info("removed unfinished blobs", "count", s.swept)
		}
		return nil
	})
}

// eachBlob calls f for every blob file until it returns an error. Files with other names are left alone.
func (s *Store) eachBlob(f func(path string, id []byte) error) error {
	for i := range shards {
		if err := s.eachBlobIn(s.shard(i), f); err != nil {
			return err
		}
	}
	return nil
}

func (s *Store) eachBlobIn(dir string, f func(path string, id []byte) error) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	for {
		names, err := d.Readdirnames(1024)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		for _, name := range names {
			path := filepath.Join(dir, name)
			id, err := hex.DecodeString(name)
			if err != nil || len(id) != len(blobID{}) {
				s.log.Warn("unknown file among the blobs", "file", path)
				continue
			}
			if err := f(path, id); err != nil {
				return err
			}
		}
	}
}

// Swept is how many unfinished or ownerless blobs Open removed.
func (s *Store) Swept() int { return s.swept }

// Close closes the index; it waits for the transactions that are running. Open objects stay readable; writers fail from
// now on. A second Close returns nil.
func (s *Store) Close() error {
	if s.closed.Swap(true) {
		return nil
	}
	return fail("close", "", s.db.Close())
}

// shards is how many directories the blobs are spread over, by the first digit of their names.
const shards = 16

func (s *Store) shard(i int) string { return filepath.Join(s.dir, "blobs", fmt.Sprintf("%x", i)) }

func (s *Store) blobPath(id blobID) string { return filepath.Join(s.shard(int(id[0]>>4)), id.String()) }

// lookup returns the record of key.
func (s *Store) lookup(op, key string) (record, error) {
	if err := CheckKey(key); err != nil {
		return record{}, err
	}
	var r record
	err := s.db.View(func(tx *bbolt.Tx) error {
		v := tx.Bucket(bucketObjects).Get([]byte(key))
		if v == nil {
			return &Error{Op: op, Key: key, Kind: ErrNotFound}
		}
		var err error
		if r, err = decodeRecord(v); err != nil {
			return &Error{Op: op, Key: key, Kind: ErrDamaged, Err: err}
		}
		return nil
	})
	return r, s.wrap(op, key, err)
}

// wrap is fail, with bbolt's word for a closed index replaced by ours.
func (s *Store) wrap(op, key string, err error) error {
	if errors.Is(err, bberrors.ErrDatabaseNotOpen) {
		return &Error{Op: op, Key: key, Kind: ErrClosed}
	}
	return fail(op, key, err)
}

// Stat describes the object key. Errors: ErrNotFound, ErrBadKey, ErrDamaged (its record), ErrClosed.
func (s *Store) Stat(key string) (Info, error) {
	r, err := s.lookup("stat", key)
	if err != nil {
		return Info{}, err
	}
	return r.info(key), nil
}

// List returns up to limit objects in the order of their keys, those that start with prefix and come after the key
// after; more tells whether there are others behind them. An object whose record is damaged is listed with size -1.
func (s *Store) List(prefix, after string, limit int) (infos []Info, more bool, err error) {
	err = s.db.View(func(tx *bbolt.Tx) error {
		c := tx.Bucket(bucketObjects).Cursor()
		from := []byte(prefix)
		if after >= prefix && after != "" {
			from = append([]byte(after), 0)
		}
		for k, v := c.Seek(from); k != nil && bytes.HasPrefix(k, []byte(prefix)); k, v = c.Next() {
			if len(infos) == limit {
				more = true
				return nil
			}
			r, err := decodeRecord(v)
			if err != nil {
				r = record{size: -1}
			}
			infos = append(infos, r.info(string(k)))
		}
		return nil
	})
	return infos, more, s.wrap("list", "", err)
}

// Totals counts objects and their bytes; it costs one look into the index.
func (s *Store) Totals() (Totals, error) {
	var t Totals
	err := s.db.View(func(tx *bbolt.Tx) error {
		t = readTotals(tx)
		return nil
	})
	return t, s.wrap("stat", "", err)
}

func readTotals(tx *bbolt.Tx) Totals {
	v := tx.Bucket(bucketMeta).Get(metaTotals)
	if len(v) != 16 {
		return Totals{}
	}
	return Totals{Objects: int64(binary.BigEndian.Uint64(v)), Bytes: int64(binary.BigEndian.Uint64(v[8:]))}
}

// replace makes r the record of key in one transaction, or removes the record where r is nil, and then unlinks the blob
// that it owned before.
func (s *Store) replace(op, key string, r *record) error {
	old, err := s.change(op, key, r)
	if err != nil {
		return err
	}
	if old != nil {
		// Readers keep what they have open. What can not be unlinked now goes at the next Open.
		if err := os.Remove(s.blobPath(old.id)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			s.log.Warn("replaced blob stays until the next start", "blob", old.id, "err", err)
		}
	}
	return nil
}

// change is the transaction of replace; it returns the record that was there. A commit that fails after it has written its
// meta page, in syncing it, is seen by whoever reads the index, but may not be on the disk: that is ErrIndex, and the end of
// changes, because the next would write over pages that the index on the disk may still need.
func (s *Store) change(op, key string, r *record) (old *record, err error) {
	s.writing.Lock()
	defer s.writing.Unlock()
	if s.failed.Load() {
		return nil, &Error{Op: op, Key: key, Kind: ErrIndex}
	}
	committing := false
	err = s.update(func(tx *bbolt.Tx) error {
		old, err = setRecord(tx, op, key, r)
		committing = err == nil
		return err
	})
	if err != nil && committing && s.shows(key, r) {
		s.failed.Store(true)
		return nil, &Error{Op: op, Key: key, Kind: ErrIndex, Err: err}
	}
	return old, s.wrap(op, key, err)
}

// shows tells whether a reader of the index finds r as the record of key, or none where r is nil. Where the index can not be
// read, that is taken to be so.
func (s *Store) shows(key string, r *record) bool {
	same := true
	_ = s.db.View(func(tx *bbolt.Tx) error {
		v := tx.Bucket(bucketObjects).Get([]byte(key))
		same = v == nil
		if r != nil {
			same = bytes.Equal(v, r.encode())
		}
		return nil
	})
	return same
}

// setRecord makes r the record of key, or removes the record where r is nil, and returns the one that was there, if it was
// sound.
func setRecord(tx *bbolt.Tx, op, key string, r *record) (old *record, err error) {
	objects, blobs := tx.Bucket(bucketObjects), tx.Bucket(bucketBlobs)
	t := readTotals(tx)
	if v := objects.Get([]byte(key)); v != nil {
		o, err := decodeRecord(v)
		t.Objects--
		if err == nil {
			old = &o
			t.Bytes -= o.size
			err = blobs.Delete(o.id[:])
		} else {
			err = disown(blobs, key) // the record can not say which blob it was
		}
		if err != nil {
			return nil, err
		}
	} else if r == nil {
		return nil, &Error{Op: op, Key: key, Kind: ErrNotFound}
	}
	if r == nil {
		if err := objects.Delete([]byte(key)); err != nil {
			return nil, err
		}
	} else {
		if err := objects.Put([]byte(key), r.encode()); err != nil {
			return nil, err
		}
		if err := blobs.Put(r.id[:], []byte(key)); err != nil {
			return nil, err
		}
		t.Objects++
		t.Bytes += r.size
	}
	v := binary.BigEndian.AppendUint64(nil, uint64(t.Objects))
	return old, tx.Bucket(bucketMeta).Put(metaTotals, binary.BigEndian.AppendUint64(v, uint64(t.Bytes)))
}

// disown removes every entry of blobs that belongs to key; the files go at the next Open.
func disown(blobs *bbolt.Bucket, key string) error {
	c := blobs.Cursor()
	for id, owner := c.First(); id != nil; id, owner = c.Next() {
		if string(owner) == key {
			if err := c.Delete(); err != nil {
				return err
			}
		}
	}
	return nil
}

// Remove deletes the object key; readers that have it open keep it. Errors: ErrNotFound, ErrBadKey, ErrNoSpace,
// ErrClosed: the object is still there; ErrIndex: the next Open tells.
func (s *Store) Remove(key string) error {
	if err := CheckKey(key); err != nil {
		return err
	}
	return s.replace("remove", key, nil)
}
