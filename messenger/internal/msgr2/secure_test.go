package msgr2

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

func unhex(t testing.TB, s string) []byte {
	if s == "-" {
		return nil
	}
	b, err := hex.DecodeString(s)
	require.NoError(t, err)
	return b
}

// openSecure reads a sealed frame as the reader of a stream does.
func openSecure(o *Opener, wire []byte) (p Preamble, segs [MaxSegments][]byte, err error) {
	wire = bytes.Clone(wire)
	if len(wire) < SecurePreambleLen {
		return p, segs, ErrTruncated
	}
	segs[0], err = o.OpenPreamble(wire[:SecurePreambleLen], &p, Limits{})
	if err != nil {
		return p, segs, err
	}
	if p.SecureLen() != int64(len(wire)) {
		return p, segs, ErrTruncated
	}
	wire = wire[SecurePreambleLen:]
	if n := p.SecureRestLen(); n > 0 {
		rest, err := o.OpenRest(wire[:n], &p)
		if err != nil {
			return p, segs, err
		}
		segs[0] = append(segs[0], rest...)
		wire = wire[n:]
	}
	if p.SecureTailLen() == 0 {
		return p, segs, nil
	}
	tail, err := o.OpenTail(wire, &p)
	copy(segs[1:], tail[:])
	return p, segs, err
}

// The bytes of secure mode, and across the counter's carry.
func TestSecureVectors(t *testing.T) {
	raw, err := os.ReadFile("testdata/secure.txt")
	require.NoError(t, err)
	var s *Sealer
	var o *Opener
	frames := 0
	for line := range strings.Lines(string(raw)) {
		f := strings.Fields(line)
		switch {
		case f[0] == "#":
			continue
		case f[0] == "secret":
			s, _, err = NewSecure(unhex(t, f[1]), true)
			require.NoError(t, err)
			_, o, err = NewSecure(unhex(t, f[1]), false)
			require.NoError(t, err)
			continue
		}
		var tag int
		_, err := fmt.Sscan(f[0], &tag)
		require.NoError(t, err)
		var segs [MaxSegments][]byte
		for i := range segs {
			segs[i] = unhex(t, f[1+i])
		}
		p := ControlPreamble(Tag(tag), len(segs[0]))
		if Tag(tag) == TagMessage {
			p = MessagePreamble(len(segs[1]), len(segs[2]), len(segs[3]))
		}
		data := [][]byte{segs[3][:len(segs[3])/2], segs[3][len(segs[3])/2:]}
		wire, err := s.AppendSecure([]byte("before"), &p, segs[0], segs[1], segs[2], data, f[5] == "1")
		require.NoError(t, err)
		require.Equal(t, f[6], hex.EncodeToString(wire[6:]))

		got, back, err := openSecure(o, wire[6:])
		if f[5] == "1" {
			require.ErrorIs(t, err, ErrAborted)
		} else {
			require.NoError(t, err)
		}
		require.Equal(t, p, got)
		for i := range segs {
			require.Equal(t, hex.EncodeToString(segs[i]), hex.EncodeToString(back[i]), "segment %d", i)
		}
		frames++
	}
	require.Equal(t, 8, frames)
}

func testSecret(x byte) []byte {
	b := make([]byte, SecretLen)
	for i := range b {
		b[i] = x + byte(i)
	}
	return b
}

func securePair(t testing.TB) (*Sealer, *Opener) {
	secret := testSecret(7)
	s, _, err := NewSecure(secret, true)
	require.NoError(t, err)
	_, o, err := NewSecure(secret, false)
	require.NoError(t, err)
	return s, o
}

// What is changed, cut, sent again, out of order, turned round, or sealed by
// somebody else does not open; and nothing else opens the place of a record.
func TestSealedRecordsAreWhatWasSealed(t *testing.T) {
	header := (&Header{Seq: 1}).Append(nil)
	seal := func(s *Sealer, front string) []byte {
		p := MessagePreamble(len(front), 0, 5)
		b, err := s.AppendSecure(nil, &p, header, []byte(front), nil, [][]byte{[]byte("bytes")}, false)
		require.NoError(t, err)
		return b
	}
	forged := func(o *Opener, wire []byte) {
		t.Helper()
		_, _, err := openSecure(o, wire)
		require.ErrorIs(t, err, ErrForged)
	}
	s, o := securePair(t)
	wire := seal(s, "one")
	for i := range wire {
		if i == SecurePreambleLen {
			break // the first record alone is enough here
		}
		_, o := securePair(t)
		b := bytes.Clone(wire)
		b[i] ^= 0x10
		forged(o, b)
	}
	for i := SecurePreambleLen; i < len(wire); i++ {
		_, o := securePair(t)
		b := bytes.Clone(wire)
		b[i] ^= 1
		forged(o, b)
	}
	for n := range wire {
		_, o := securePair(t)
		_, _, err := openSecure(o, wire[:n])
		require.ErrorIs(t, err, ErrTruncated)
	}
	_, _, err := openSecure(o, wire)
	require.NoError(t, err)
	forged(o, wire) // again
	second, third := seal(s, "two"), seal(s, "three")
	_ = second
	forged(o, third) // out of order

	_, mine, err := NewSecure(testSecret(7), true)
	require.NoError(t, err)
	forged(mine, wire) // turned round: the client's own bytes sent back to it

	_, other, err := NewSecure(testSecret(8), false)
	require.NoError(t, err)
	forged(other, wire)
}

// A direction that has used every nonce seals and opens nothing more.
func TestNoncesEnd(t *testing.T) {
	s, o := securePair(t)
	p := ControlPreamble(TagWait, 0)
	first, err := s.AppendSecure(nil, &p, nil, nil, nil, nil, false)
	require.NoError(t, err)
	_, _, err = openSecure(o, first)
	require.NoError(t, err)
	// As after 2^64 records.
	s.nonce, o.nonce = s.first, o.first
	_, err = s.AppendSecure(nil, &p, nil, nil, nil, nil, false)
	require.ErrorIs(t, err, ErrNonces)
	_, _, err = openSecure(o, first)
	require.ErrorIs(t, err, ErrNonces)

	_, _, err = NewSecure(make([]byte, SecretLen-1), true)
	require.ErrorIs(t, err, ErrTruncated)
}

// Peek looks ahead, and a rewound sealer repeats itself.
func TestPeekAndRewind(t *testing.T) {
	s, o := securePair(t)
	var recs [][]byte
	for _, text := range []string{"a", "bb", "ccc"} {
		st := s.State()
		_, err := s.Seal([]byte("never sent"), 0)
		require.NoError(t, err)
		s.Rewind(st)
		r, err := s.Seal([]byte(text), 0)
		require.NoError(t, err)
		recs = append(recs, r)
	}
	for i, r := range recs {
		got, err := o.Peek(nil, r, uint64(i))
		require.NoError(t, err)
		require.Len(t, got, i+1)
		_, err = o.Peek(nil, r, uint64(i+1))
		require.ErrorIs(t, err, ErrForged)
	}
	for _, r := range recs {
		_, err := o.Open(r)
		require.NoError(t, err)
	}
}

func TestDataRecords(t *testing.T) {
	for _, c := range []struct {
		n       int64
		len     int
		records int
	}{{0, 64 << 10, 0}, {1, 64 << 10, 1}, {8 << 10, 64 << 10, 1}, {8<<10 + 1, 64 << 10, 2}, {64 << 10, 64 << 10, 2}, {68 << 10, 64 << 10, 2},
		{68<<10 + 1, 64 << 10, 3}, {4 << 20, 64 << 10, 65}, {4<<20 + 1, 128 << 10, 33}, {64 << 20, 1 << 20, 65},
		{128 << 20, 1 << 20, 129}, {1<<32 - 1, 1 << 20, 4097}} {
		require.Equal(t, c.len, DataRecordLen(c.n), "%d", c.n)
		require.Equal(t, c.records, DataRecords(c.n), "%d", c.n)
		records, last := 0, 0
		for left := c.n; left > 0; records++ {
			last = NextDataRecord(c.n, left)
			require.LessOrEqual(t, last, c.len)
			left -= int64(last)
			require.GreaterOrEqual(t, left, int64(0))
		}
		require.Equal(t, c.records, records, "%d", c.n)
		require.LessOrEqual(t, last, 8<<10, "%d: the last one is short", c.n)
	}
	var d, e DataCipher
	require.NoError(t, d.Init(bytes.Repeat([]byte{1}, DataSecretLen)))
	require.NoError(t, e.Init(bytes.Repeat([]byte{1}, DataSecretLen)))
	seal := func() []byte { return d.Seal(nil, []byte("data"), 5, 6) }
	require.NoError(t, e.Open(seal(), 5, 6))
	require.ErrorIs(t, e.Open(seal(), 6, 5), ErrForged)
	require.ErrorIs(t, e.Open(seal(), 5, 7), ErrForged)
	require.NotEqual(t, seal(), d.Seal(nil, []byte("data"), 7, 6))
	d.Forget()
	require.NoError(t, e.Open(seal(), 5, 6), "the same key")
	e.Forget()
	require.NoError(t, e.Open(seal(), 5, 6), "the same key")
	require.ErrorIs(t, d.Init(make([]byte, DataSecretLen-1)), ErrTruncated)
}

// A cipher that is forgotten in between goes on where it was, also while it works.
func TestForgottenCiphers(t *testing.T) {
	s, o := securePair(t)
	var forgetting sync.WaitGroup
	stop := make(chan struct{})
	forgetting.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				s.Forget()
			}
		}
	})
	for i := range 1000 {
		b, err := s.Seal([]byte{byte(i)}, 0)
		require.NoError(t, err)
		p, err := o.Open(b)
		require.NoError(t, err)
		require.Equal(t, []byte{byte(i)}, p)
	}
	close(stop)
	forgetting.Wait()
}

func TestSealingAllocatesNothing(t *testing.T) {
	s, o := securePair(t)
	var d DataCipher
	require.NoError(t, d.Init(bytes.Repeat([]byte{1}, DataSecretLen)))
	buf, zero, front := make([]byte, 0, 4096), make([]byte, HeaderLen), make([]byte, 100)
	p := MessagePreamble(len(front), 0, 0)
	require.Zero(t, testing.AllocsPerRun(100, func() {
		b, err := s.AppendSecure(buf, &p, zero, front, nil, nil, false)
		if err != nil {
			t.Fatal(err)
		}
		var q Preamble
		if _, err := o.OpenPreamble(b[:SecurePreambleLen], &q, Limits{}); err != nil {
			t.Fatal(err)
		}
		if _, err := o.OpenTail(b[SecurePreambleLen:], &q); err != nil {
			t.Fatal(err)
		}
		if err := d.Open(d.Seal(buf, front, 1, 2), 1, 2); err != nil {
			t.Fatal(err)
		}
	}))
}

// Whatever a peer without the key sends, nothing opens; whatever one with the
// key seals is decoded or refused, and the memory is that of the limits.
func FuzzSecureFrame(f *testing.F) {
	f.Add([]byte{1}, []byte{2}, []byte{3}, false)
	f.Fuzz(func(t *testing.T, pre, zero, tail []byte, keyed bool) {
		s, o := securePair(t)
		var wire []byte
		if keyed {
			first := make([]byte, PreambleLen+InlineLen)
			copy(first, pre)
			le.PutUint32(first[PreambleLen-4:], CRC(0, first[:PreambleLen-4]))
			wire, _ = s.Seal(first, 0)
			if len(zero) > 0 {
				r, _ := s.Seal(zero, 0)
				wire = append(wire, r...)
			}
			r, _ := s.Seal(tail, 0)
			wire = append(wire, r...)
		} else {
			wire = append(append(pre, zero...), tail...)
		}
		p, segs, err := openSecure(o, wire)
		if err != nil {
			return
		}
		require.True(t, keyed)
		for i, s := range segs {
			require.EqualValues(t, p.Segs[i].Len, len(s))
		}
	})
}
