package wire

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/argonaut-rdma/argonaut/messenger"
)

// Version is the version of the protocol. Peers of another version are refused.
const Version = 1

// Limits that decoders enforce. Both sides keep to them.
const (
	// MaxWindow is the largest window in bytes: what one buffer of the default arena holds.
	MaxWindow = 1 << 20
	// MaxWindows is how many windows a transfer may have under way.
	MaxWindows = 16
	// MaxEager is the largest object, or part of one, in bytes that travels inside a message.
	MaxEager = 32 << 10
	// MaxList is how many objects one reply to a ListRequest has at most.
	MaxList = 256

	maxKey     = 1024
	maxMessage = 1024
	maxSums    = 64 // of a window: chunks of 64 KiB would need 16, and one for a part at each end
	maxGrants  = 64 // of a window
)

var (
	// ErrMalformed: the input is no message of this protocol.
	ErrMalformed = errors.New("malformed object protocol message")
	// ErrVersion: the peer speaks another version.
	ErrVersion = errors.New("object protocol version not supported")
)

// decoder takes a front apart. After the first error every further read gives zeros.
type decoder struct {
	b   []byte
	err error
}

func (d *decoder) fail(format string, args ...any) {
	if d.err == nil {
		d.err = fmt.Errorf("%w: %s", ErrMalformed, fmt.Sprintf(format, args...))
		d.b = nil
	}
}

// take returns the next n bytes, or n zero bytes (n is small) after an error.
func (d *decoder) take(n int) []byte {
	if len(d.b) < n {
		d.fail("%d bytes missing", n-len(d.b))
		return make([]byte, n)
	}
	p := d.b[:n]
	d.b = d.b[n:]
	return p
}

func (d *decoder) u8() uint8   { return d.take(1)[0] }
func (d *decoder) u16() uint16 { return binary.LittleEndian.Uint16(d.take(2)) }
func (d *decoder) u32() uint32 { return binary.LittleEndian.Uint32(d.take(4)) }
func (d *decoder) u64() uint64 { return binary.LittleEndian.Uint64(d.take(8)) }
func (d *decoder) i64() int64  { return int64(d.u64()) }

// size is an i64 that may not be below least.
func (d *decoder) size(what string, least int64) int64 {
	n := d.i64()
	if n < least {
		d.fail("%s %d", what, n)
	}
	return n
}

func (d *decoder) str(what string, limit int) string {
	n := int(d.u16())
	if n > limit {
		d.fail("%s of %d bytes, at most %d", what, n, limit)
		return ""
	}
	if n > len(d.b) {
		d.fail("%s is cut", what)
		return ""
	}
	return string(d.take(n))
}

func (d *decoder) sums() []uint32 {
	n := int(d.u16())
	if n > maxSums || 4*n > len(d.b) {
		d.fail("%d checksums", n)
		return nil
	}
	if n == 0 {
		return nil
	}
	s := make([]uint32, n)
	for i := range s {
		s[i] = d.u32()
	}
	return s
}

// grants reads the grants of a window: they cover at most MaxWindow bytes.
func (d *decoder) grants() []messenger.Grant {
	if d.err != nil {
		return nil
	}
	gs, rest, err := messenger.DecodeGrants(nil, d.b)
	switch {
	case err != nil:
		d.fail("grants: %v", err)
		return nil
	case len(gs) > maxGrants || messenger.GrantsLen(gs) > MaxWindow:
		d.fail("window of %d grants and %d bytes", len(gs), messenger.GrantsLen(gs))
		return nil
	}
	d.b = rest
	return gs
}

func (d *decoder) info() Info {
	return Info{
		Key:      d.str("key", maxKey),
		Size:     d.size("size", -1),
		Modified: d.i64(),
		Version:  d.str("version", 64),
	}
}

// header checks the version.
func (d *decoder) header() {
	if v := d.u8(); d.err == nil && v != Version {
		d.err = fmt.Errorf("%w: %d, this side speaks %d", ErrVersion, v, Version)
		d.b = nil
	}
}

// end returns the error of the decoding; bytes that are left are one.
func (d *decoder) end() error {
	if len(d.b) > 0 {
		d.fail("%d bytes too many", len(d.b))
	}
	return d.err
}

func appendStr(b []byte, s string, limit int) []byte {
	if len(s) > limit {
		s = s[:limit]
	}
	b = binary.LittleEndian.AppendUint16(b, uint16(len(s)))
	return append(b, s...)
}

func appendSums(b []byte, sums []uint32) []byte {
	b = binary.LittleEndian.AppendUint16(b, uint16(len(sums)))
	for _, s := range sums {
		b = binary.LittleEndian.AppendUint32(b, s)
	}
	return b
}

func appendI64(b []byte, n int64) []byte { return binary.LittleEndian.AppendUint64(b, uint64(n)) }

func (i Info) append(b []byte) []byte {
	b = appendStr(b, i.Key, maxKey)
	b = appendI64(b, i.Size)
	b = appendI64(b, i.Modified)
	return appendStr(b, i.Version, 64)
}
