package msgr2

import (
	"crypto/aes"
	"crypto/cipher"
	"encoding/binary"
	"fmt"
	"slices"
	"sync/atomic"
)

// Secure mode, specification constants.
const (
	// InlineLen is how much of segment 0 is sealed together with the preamble.
	InlineLen = 48
	// TagLen is the length of a record's authentication tag.
	TagLen = 16
	// SecurePreambleLen is the first record of a frame.
	SecurePreambleLen = PreambleLen + InlineLen + TagLen
	// SecretLen is what secure mode takes of the connection secret: a key and
	// two nonces, the first of them for what the server sends.
	SecretLen = keyLen + 2*nonceLen

	keyLen   = 16
	nonceLen = 12
	// blockLen is what segments are padded to, with zeros.
	blockLen = 16
	// secureEpilogueLen is the late status and its padding.
	secureEpilogueLen = blockLen
)

// record is one direction of AES-128-GCM with a counting nonce:
//
//	le32 fixed | le64 counter, one more for each record
//
// It ends for good when the counter comes round.
type record struct {
	key          *gcm
	nonce, first [nonceLen]byte
	begun        bool
}

func (r *record) init(key *gcm, nonce []byte) {
	r.key = key
	copy(r.nonce[:], nonce)
	r.first = r.nonce
}

// gcm is AES-128-GCM under one key. What it expands to takes most of the memory of
// secure mode: it is made when it is used, and again after forget. It has no state, and
// any number of goroutines may use it.
type gcm struct {
	key      [keyLen]byte
	expanded atomic.Pointer[cipher.AEAD]
}

func (g *gcm) expand() (cipher.AEAD, error) {
	block, err := aes.NewCipher(g.key[:])
	if err != nil {
		return nil, err
	}
	aead, err := cipher.NewGCM(block)
	if err != nil {
		return nil, err
	}
	g.expanded.Store(&aead)
	return aead, nil
}

func (g *gcm) get() cipher.AEAD {
	if p := g.expanded.Load(); p != nil {
		return *p
	}
	aead, err := g.expand()
	if err != nil {
		panic(fmt.Sprintf("msgr2: a cipher that was there before: %v", err))
	}
	return aead
}

func (g *gcm) forget() { g.expanded.Store(nil) }

// check reports whether the nonce may be used.
func (r *record) check() error {
	if r.begun && r.nonce == r.first {
		return ErrNonces
	}
	return nil
}

func (r *record) advance() {
	r.begun = true
	le.PutUint64(r.nonce[4:], le.Uint64(r.nonce[4:])+1)
}

// Sealer seals what is sent, record by record.
type Sealer struct{ record }

// Opener opens what is received, in the same order.
type Opener struct {
	record
	ahead [nonceLen]byte // scratch of Peek, so that nothing escapes
}

// NewSecure returns both directions for one end of a connection whose secret,
// of SecretLen bytes or more, both ends have.
func NewSecure(secret []byte, client bool) (*Sealer, *Opener, error) {
	if len(secret) < SecretLen {
		return nil, nil, decodeErr("connection secret", ErrTruncated, "%d bytes, secure mode takes %d", len(secret), SecretLen)
	}
	fromServer, fromClient := secret[keyLen:keyLen+nonceLen], secret[keyLen+nonceLen:SecretLen]
	if client {
		fromServer, fromClient = fromClient, fromServer
	}
	key := &gcm{key: [keyLen]byte(secret)}
	if _, err := key.expand(); err != nil {
		return nil, nil, err
	}
	var s Sealer
	var o Opener
	s.init(key, fromServer)
	o.init(key, fromClient)
	return &s, &o, nil
}

// Forget gives the memory of the cipher back until it is used again, by the Sealer or
// by the Opener that was made with it. It may be called while that is at work.
func (s *Sealer) Forget() { s.key.forget() }

// SealerState is a point to go back to.
type SealerState struct {
	nonce [nonceLen]byte
	begun bool
}

// State returns where the sealer stands.
func (s *Sealer) State() SealerState { return SealerState{s.nonce, s.begun} }

// Rewind goes back to st. Nothing sealed since may ever have been shown to
// anybody: the next record uses its nonce.
func (s *Sealer) Rewind(st SealerState) { s.nonce, s.begun = st.nonce, st.begun }

// Exhaust is for tests: every nonce has been used.
func (s *Sealer) Exhaust() { s.first, s.begun = s.nonce, true }

// Seal seals b[at:] in place as one record, and returns b with the tag behind.
func (s *Sealer) Seal(b []byte, at int) ([]byte, error) {
	if err := s.check(); err != nil {
		return b, err
	}
	n := len(b)
	b = slices.Grow(b, TagLen)
	s.key.get().Seal(b[at:at], s.nonce[:], b[at:n], nil)
	s.advance()
	return b[:n+TagLen], nil
}

// Open opens one record in place, and returns what it held.
func (o *Opener) Open(b []byte) ([]byte, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	if len(b) < TagLen {
		return nil, decodeErr("sealed record", ErrTruncated, "%d bytes", len(b))
	}
	p, err := o.key.get().Open(b[:0], o.nonce[:], b, nil)
	if err != nil {
		return nil, &DecodeError{Part: "sealed record", Err: ErrForged}
	}
	o.advance()
	return p, nil
}

// Peek opens record b into dst, as the record that comes ahead records after
// the next one, and leaves the opener where it stands.
func (o *Opener) Peek(dst, b []byte, ahead uint64) ([]byte, error) {
	o.ahead = o.nonce
	le.PutUint64(o.ahead[4:], le.Uint64(o.ahead[4:])+ahead)
	if len(b) < TagLen {
		return nil, decodeErr("sealed record", ErrTruncated, "%d bytes", len(b))
	}
	p, err := o.key.get().Open(dst, o.ahead[:], b, nil)
	if err != nil {
		return nil, &DecodeError{Part: "sealed record", Err: ErrForged}
	}
	return p, nil
}

func padded(n int) int { return (n + blockLen - 1) &^ (blockLen - 1) }

// pad appends zeros until what begins at at is of whole blocks.
func pad(b []byte, at int) []byte {
	var zero [blockLen]byte
	n := len(b) - at
	return append(b, zero[:padded(n)-n]...)
}

// AppendSecure appends a whole sealed frame, as msgr v2.1 has it on a stream:
//
//	record: preamble, first 48 bytes of segment 0, padded with zeros to 48
//	record: rest of segment 0, padded to 16     only if it is longer
//	record: segments 1, 2, 3, each padded to 16; u8 late status, 15 zeros
//	                                            only if there are 2 segments and more
//
// segs are the segments, the last one, the data, in parts.
func (s *Sealer) AppendSecure(dst []byte, p *Preamble, zero, front, middle []byte, data [][]byte, aborted bool) (_ []byte, err error) {
	at := len(dst)
	dst = p.Append(dst)
	inline := zero[:min(len(zero), InlineLen)]
	dst = append(dst, inline...)
	var fill [InlineLen]byte
	dst = append(dst, fill[len(inline):]...)
	if dst, err = s.Seal(dst, at); err != nil {
		return dst, err
	}
	if rest := zero[len(inline):]; len(rest) > 0 {
		at = len(dst)
		dst = pad(append(dst, rest...), at)
		if dst, err = s.Seal(dst, at); err != nil {
			return dst, err
		}
	}
	if p.Num == 1 {
		return dst, nil
	}
	at = len(dst)
	dst = pad(append(dst, front...), at)
	start := len(dst)
	dst = pad(append(dst, middle...), start)
	start = len(dst)
	for _, d := range data {
		dst = append(dst, d...)
	}
	dst = pad(dst, start)
	status := byte(lateComplete)
	if aborted {
		status = lateAborted
	}
	dst = append(dst, status)
	dst = pad(dst, len(dst)-1)
	return s.Seal(dst, at)
}

// SecureLen is the length of the whole sealed frame.
func (p *Preamble) SecureLen() int64 {
	return SecurePreambleLen + int64(p.SecureRestLen()) + p.SecureTailLen()
}

// SecureRestLen is the length of the record with the rest of segment 0: 0 for
// none.
func (p *Preamble) SecureRestLen() int {
	n := int(p.Segs[0].Len)
	if n <= InlineLen {
		return 0
	}
	return padded(n) - InlineLen + TagLen
}

// SecureTailLen is the length of the record with the other segments and the late
// status: 0 for none.
func (p *Preamble) SecureTailLen() int64 {
	if p.Num == 1 {
		return 0
	}
	n := int64(secureEpilogueLen + TagLen)
	for _, s := range p.Segs[1:] {
		n += (int64(s.Len) + blockLen - 1) &^ (blockLen - 1)
	}
	return n
}

// OpenPreamble opens the first record of a frame, in place, decodes and checks
// the preamble against lim, and returns the part of segment 0 that came with it.
// b has SecurePreambleLen bytes. What fills segments up is not looked at, as
// Ceph does not.
func (o *Opener) OpenPreamble(b []byte, p *Preamble, lim Limits) ([]byte, error) {
	b, err := o.Open(b)
	if err != nil {
		return nil, err
	}
	if err := p.Decode(b, lim); err != nil {
		return nil, err
	}
	inline := b[PreambleLen:]
	n := min(int(p.Segs[0].Len), InlineLen)
	return inline[:n:n], nil
}

// OpenRest opens the record with the rest of segment 0, in place. b has
// SecureRestLen bytes.
func (o *Opener) OpenRest(b []byte, p *Preamble) ([]byte, error) {
	b, err := o.Open(b)
	if err != nil {
		return nil, err
	}
	n := int(p.Segs[0].Len) - InlineLen
	return b[:n:n], nil
}

// OpenTail opens the record with the other segments, in place, and returns them.
// b has SecureTailLen bytes. ErrAborted: the sender has given the frame up.
func (o *Opener) OpenTail(b []byte, p *Preamble) (segs [MaxSegments - 1][]byte, err error) {
	if b, err = o.Open(b); err != nil {
		return segs, err
	}
	for i := range segs {
		n := int(p.Segs[i+1].Len)
		segs[i] = b[:n:n]
		b = b[padded(n):]
	}
	switch b[0] & lateMask {
	case lateComplete:
		return segs, nil
	case lateAborted:
		return segs, ErrAborted
	}
	return segs, decodeErr("epilogue", ErrMalformed, "late status %#02x", b[0])
}

// Sealed data, off the stream: the data segment is cut into records that are
// sealed one by one, under a key of their own, and whose tags travel elsewhere.
const (
	minDataRecord = 64 << 10
	maxDataRecord = 1 << 20
	maxDataTags   = 64 // as long as maxDataRecord allows it
	// lastDataRecord is the length of the last record of data longer than two: as
	// a tag needs room behind its record while that is sealed, or opened, in place,
	// a record that ends with the memory makes a detour, which is short then.
	lastDataRecord = 4 << 10
	// DataSecretLen is the key and the nonce prefix of one direction.
	DataSecretLen = keyLen + nonceLen
)

// DataRecordLen is the length of the records that n bytes of data are cut into,
// but for the last two: the smallest power of two from 64 KiB to 1 MiB that makes
// at most 64 of them, and the last one.
func DataRecordLen(n int64) int {
	r := minDataRecord
	for r < maxDataRecord && n > int64(r)*maxDataTags {
		r *= 2
	}
	return r
}

// DataRecords is the number of records of n bytes of data.
func DataRecords(n int64) int {
	r := int64(DataRecordLen(n))
	if n > 2*lastDataRecord {
		return int((n-lastDataRecord+r-1)/r) + 1
	}
	return int((n + r - 1) / r)
}

// NextDataRecord is the length of the record of n bytes of data behind which left
// less itself are left; left is not 0.
func NextDataRecord(n, left int64) int {
	if n > 2*lastDataRecord && left > lastDataRecord {
		left -= lastDataRecord
	}
	return int(min(left, int64(DataRecordLen(n))))
}

// DataCipher is one direction of sealed data. The nonce of a record is the nonce
// prefix XORed with le64 frame | le32 index, which are also its associated data:
// no two records of a connection share one, whatever order they are sealed in.
type DataCipher struct {
	key    gcm
	prefix [nonceLen]byte
	// Scratch, so that nothing escapes.
	nonce, ad [nonceLen]byte
}

// Init gives it DataSecretLen bytes of secret.
func (d *DataCipher) Init(secret []byte) error {
	if len(secret) < DataSecretLen {
		return decodeErr("data secret", ErrTruncated, "%d bytes of %d", len(secret), DataSecretLen)
	}
	copy(d.key.key[:], secret)
	copy(d.prefix[:], secret[keyLen:])
	return nil
}

// Forget gives the memory of the cipher back until it is used again. It may be called
// while it is at work.
func (d *DataCipher) Forget() { d.key.forget() }

func (d *DataCipher) at(frame uint64, index uint32) {
	binary.LittleEndian.PutUint64(d.ad[:], frame)
	binary.LittleEndian.PutUint32(d.ad[8:], index)
	for i := range d.nonce {
		d.nonce[i] = d.prefix[i] ^ d.ad[i]
	}
}

// Seal seals plain as record index of a frame and appends ciphertext and tag to
// dst, which must have room for them.
func (d *DataCipher) Seal(dst, plain []byte, frame uint64, index uint32) []byte {
	d.at(frame, index)
	return d.key.get().Seal(dst, d.nonce[:], plain, d.ad[:])
}

// Open opens b, ciphertext and tag, in place.
func (d *DataCipher) Open(b []byte, frame uint64, index uint32) error {
	d.at(frame, index)
	if _, err := d.key.get().Open(b[:0], d.nonce[:], b, d.ad[:]); err != nil {
		return decodeErr(segNames[SegData], ErrForged, "record %d", index)
	}
	return nil
}
