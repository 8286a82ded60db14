package store

import (
	"encoding/binary"
	"errors"
	"time"
	"unicode"
	"unicode/utf8"
)

// MaxKeyLen is the longest key, in bytes.
const MaxKeyLen = 1024

// CheckKey returns nil for a key that may name an object, else an *Error of kind ErrBadKey.
func CheckKey(key string) error {
	bad := func(why string) error { return &Error{Op: "key", Key: key, Kind: ErrBadKey, Err: errors.New(why)} }
	switch {
	case key == "":
		return bad("it is empty")
	case len(key) > MaxKeyLen:
		return &Error{Op: "key", Key: key[:32] + "...", Kind: ErrBadKey, Err: errors.New("it is longer than 1024 bytes")}
	case !utf8.ValidString(key):
		return bad("it is not UTF-8")
	}
	for _, r := range key {
		if unicode.IsControl(r) {
			return bad("it has a control character")
		}
	}
	return nil
}

// record is what the index keeps of an object (little endian):
//
//	 0  version (1)
//	 1  zero, 3 bytes
//	 4  CRC32C of the record with this field zero
//	 8  size of the object, 8 bytes
//	16  time of the PUT, nanoseconds since 1970, 8 bytes
//	24  blob id, 16 bytes
type record struct {
	size     int64
	modified int64
	id       blobID
}

const (
	recordLen     = 40
	recordVersion = 1
)

func (r record) encode() []byte {
	p := make([]byte, recordLen)
	p[0] = recordVersion
	binary.LittleEndian.PutUint64(p[8:], uint64(r.size))
	binary.LittleEndian.PutUint64(p[16:], uint64(r.modified))
	copy(p[24:], r.id[:])
	binary.LittleEndian.PutUint32(p[4:], Checksum(p))
	return p
}

func decodeRecord(p []byte) (record, error) {
	if len(p) != recordLen {
		return record{}, errors.New("index record has the wrong length")
	}
	if p[0] != recordVersion {
		return record{}, errors.New("index record has an unknown version")
	}
	var q [recordLen]byte
	copy(q[:], p)
	clear(q[4:8])
	if Checksum(q[:]) != binary.LittleEndian.Uint32(p[4:]) {
		return record{}, errors.New("index record does not match its checksum")
	}
	r := record{
		size:     int64(binary.LittleEndian.Uint64(p[8:])),
		modified: int64(binary.LittleEndian.Uint64(p[16:])),
		id:       blobID(p[24:40]),
	}
	if r.size < 0 {
		return record{}, errors.New("index record has a negative size")
	}
	return r, nil
}

// Info describes an object.
type Info struct {
	Key      string
	Size     int64     // bytes
	Modified time.Time // when the PUT was committed, by this node's clock
	Version  string    // changes whenever the object is replaced
}

func (r record) info(key string) Info {
	return Info{Key: key, Size: r.size, Modified: time.Unix(0, r.modified), Version: r.id.String()}
}
