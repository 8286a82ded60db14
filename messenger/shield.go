package messenger

import (
	"crypto/hkdf"
	"crypto/sha256"
	"fmt"

	"github.com/argonaut-rdma/argonaut/buffer"
	"github.com/argonaut-rdma/argonaut/messenger/internal/msgr2"
)

// shield is secure mode on one transport. What is sent and what is received are
// independent; each side is used by one goroutine at a time.
type shield struct {
	tx *msgr2.Sealer
	rx *msgr2.Opener

	// On RDMA the data goes by itself, see sealData.
	dtx, drx         msgr2.DataCipher
	txData, rxData   uint64   // frames with data so far
	admitted         uint64   // frames that Admit has seen and that have not come
	head, tags, peek []byte   // scratch
	parts            [][]byte // scratch
}

// newShield derives the keys of both directions from the connection secret.
func newShield(secret []byte, client bool) (*shield, error) {
	var s shield
	var err error
	if s.tx, s.rx, err = msgr2.NewSecure(secret, client); err != nil {
		return nil, err
	}
	ours, theirs := "server", "client"
	if client {
		ours, theirs = theirs, ours
	}
	if err := deriveData(&s.dtx, secret, ours); err != nil {
		return nil, err
	}
	return &s, deriveData(&s.drx, secret, theirs)
}

// deriveData makes d the cipher of the data that is sent by one side.
func deriveData(d *msgr2.DataCipher, secret []byte, from string) error {
	b, err := hkdf.Key(sha256.New, secret, nil, "argonaut msgr data "+from, msgr2.DataSecretLen)
	if err != nil {
		return err
	}
	return d.Init(b)
}

// control is a sealed control frame of the handshake.
func (s *shield) control(f msgr2.Frame, heads bool) []byte {
	var raw []byte
	var err error
	if heads {
		raw, err = s.tx.Seal(msgr2.AppendControl(nil, f), 0)
	} else {
		payload := f.Append(nil)
		p := msgr2.ControlPreamble(f.Tag(), len(payload))
		raw, err = s.tx.AppendSecure(nil, &p, payload, nil, nil, nil, false)
	}
	if err != nil {
		panic(fmt.Sprintf("messenger: sealing a frame of the handshake: %v", err)) // the nonces have just begun
	}
	return raw
}

// appendFrame appends f, which is in crc mode's encoding, as a sealed frame of
// the stream.
func (s *shield) appendFrame(dst []byte, f outFrame) ([]byte, error) {
	p, err := msgr2.PeekPreamble(f.head)
	if err != nil {
		return dst, err
	}
	at := msgr2.PreambleLen + int(p.Segs[0].Len)
	zero := f.head[msgr2.PreambleLen:at]
	if len(zero) > 0 {
		at += msgr2.CRCLen
	}
	front := f.head[at : at+int(p.Segs[msgr2.SegFront].Len)]
	at += len(front)
	middle := f.head[at : at+int(p.Segs[msgr2.SegMiddle].Len)]
	s.parts = s.parts[:0]
	if f.data != nil {
		s.parts = f.data.IOVec(s.parts)
	}
	dst, err = s.tx.AppendSecure(dst, &p, zero, front, middle, s.parts, false)
	clear(s.parts)
	return dst, err
}

// sealHead seals the head of a frame on RDMA, with the tags of its data behind
// it, into scratch.
func (s *shield) sealHead(head, tags []byte) ([]byte, error) {
	s.head = append(append(s.head[:0], head...), tags...)
	var err error
	s.head, err = s.tx.Seal(s.head, 0)
	return s.head, err
}

// sealData seals src into dst, a list of the same length, record by record, and
// returns the tags, in scratch: the data stays as long and as aligned as it was.
func (s *shield) sealData(dst, src *buffer.List) []byte {
	s.tags = s.tags[:0]
	key := &s.dtx
	r := newRecords(src.Len())
	defer r.end()
	from, to := cursor{l: src}, cursor{l: dst}
	for i := 0; r.next(); i++ {
		plain := from.take(r.n)
		if plain == nil {
			plain = r.buffer()[:r.n]
			from.copyOut(plain)
		}
		if room := to.room(); len(room) >= r.n+msgr2.TagLen {
			// The tag lies where the next record begins, until that is sealed.
			sealed := key.Seal(room[:0], plain, s.txData, uint32(i))
			s.tags = append(s.tags, sealed[r.n:]...)
			to.skip(r.n)
			continue
		}
		sealed := key.Seal(r.buffer()[:0], plain, s.txData, uint32(i))
		s.tags = append(s.tags, sealed[r.n:]...)
		to.copyIn(sealed[:r.n])
	}
	return s.tags
}

// openData opens data that came with tags, in place.
func (s *shield) openData(l *buffer.List, tags []byte) error {
	key := &s.drx
	r := newRecords(l.Len())
	defer r.end()
	c := cursor{l: l}
	var behind [msgr2.TagLen]byte
	for i := 0; r.next(); i++ {
		tag := tags[i*msgr2.TagLen:][:msgr2.TagLen]
		if room := c.room(); len(room) >= r.n+msgr2.TagLen {
			// The tag goes where the next record begins, for as long as it takes.
			b := room[:r.n+msgr2.TagLen]
			copy(behind[:], b[r.n:])
			copy(b[r.n:], tag)
			err := key.Open(b, s.rxData, uint32(i))
			copy(b[r.n:], behind[:])
			if err != nil {
				return err
			}
			c.skip(r.n)
			continue
		}
		b := r.buffer()[:r.n]
		at := c
		c.copyOut(b)
		b = append(b, tag...)
		if err := key.Open(b, s.rxData, uint32(i)); err != nil {
			return err
		}
		at.copyIn(b[:r.n])
	}
	return nil
}

// records walks over the records that data is cut into.
type records struct {
	all  int64
	left int64
	n    int     // of the record
	buf  *[]byte // scratch of one record and its tag, once it was needed
}

func newRecords(n int64) records { return records{all: n, left: n} }

func (r *records) next() bool {
	if r.left == 0 {
		return false
	}
	r.n = msgr2.NextDataRecord(r.all, r.left)
	r.left -= int64(r.n)
	return true
}

func (r *records) buffer() []byte {
	if r.buf == nil {
		r.buf = getScratch(msgr2.DataRecordLen(r.all) + msgr2.TagLen)
	}
	return *r.buf
}

func (r *records) end() {
	if r.buf != nil {
		putScratch(r.buf)
	}
}

// cursor is a place in a list.
type cursor struct {
	l        *buffer.List
	seg, off int
}

// room is the memory from the cursor to the end of its buffer.
func (c *cursor) room() []byte { return c.l.At(c.seg).Bytes()[c.off:] }

// skip goes n bytes on, which are in the cursor's buffer.
func (c *cursor) skip(n int) {
	if c.off += n; c.off == c.l.At(c.seg).Len() {
		c.seg++
		c.off = 0
	}
}

// take returns the next n bytes and goes behind them, if they are in one buffer;
// else nil.
func (c *cursor) take(n int) []byte {
	b := c.room()
	if len(b) < n {
		return nil
	}
	c.skip(n)
	return b[:n]
}

// copyOut copies the next bytes to p and goes behind them.
func (c *cursor) copyOut(p []byte) {
	for len(p) > 0 {
		n := copy(p, c.room())
		c.skip(n)
		p = p[n:]
	}
}

// copyIn copies p over the next bytes and goes behind them.
func (c *cursor) copyIn(p []byte) {
	for len(p) > 0 {
		n := copy(c.room(), p)
		c.skip(n)
		p = p[n:]
	}
}
