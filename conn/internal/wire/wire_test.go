package wire

import (
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/argonaut-rdma/argonaut/verbs"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var hello = Hello{Credits: 32, Most: 40, Rendezvous: 8, Features: FeatureRendezvous, RecvSize: 128 << 10, Epoch: 0xdeadbeef, MaxMessage: 64 << 20}

func TestHello(t *testing.T) {
	var b [HelloLen]byte
	hello.Put(&b)
	require.LessOrEqual(t, HelloLen, 40)
	got, err := ParseHello(b[:])
	require.NoError(t, err)
	require.Equal(t, hello, got)

	// One that gives all its credits at once does not say how many they become.
	all := hello
	all.Most = 0
	all.Put(&b)
	got, err = ParseHello(b[:])
	require.NoError(t, err)
	require.Equal(t, hello.Credits, got.Most)
	hello.Put(&b)

	// Padding behind its own length is ignored.
	got, err = ParseHello(append(b[:], make([]byte, 24)...))
	require.NoError(t, err)
	require.Equal(t, hello, got)

	// A longer hello of a later release of this version still holds ours.
	long := append(append([]byte(nil), b[:]...), 1, 2, 3, 4)
	long[4] = HelloLen + 4
	got, err = ParseHello(long)
	require.NoError(t, err)
	require.Equal(t, hello, got)

	for n := range HelloLen {
		_, err = ParseHello(b[:n])
		require.ErrorIs(t, err, verbs.ErrProtocol, n)
	}
	for name, change := range map[string]func([]byte){
		"magic":      func(b []byte) { b[0] = 'X' },
		"short":      func(b []byte) { b[4] = HelloLen - 1 },
		"no length":  func(b []byte) { b[4] = 0 },
		"too long":   func(b []byte) { b[4] = HelloLen + 1 },
		"no credits": func(b []byte) { b[6] = 1 },
		"too few":    func(b []byte) { b[6], b[22] = 7, 7 },
		"no more":    func(b []byte) { b[22], b[23] = 0, 0; b[6] = 7 },
		"more":       func(b []byte) { b[22] = 31 },
		"tiny":       func(b []byte) { copy(b[12:], []byte{0xff, 0xf, 0, 0}) },
		"huge":       func(b []byte) { copy(b[12:], []byte{1, 0, 0x10, 0}) },
		"message":    func(b []byte) { b[31] = 0x80 },
	} {
		c := b
		change(c[:])
		_, err = ParseHello(c[:])
		require.ErrorIs(t, err, verbs.ErrProtocol, name)
	}
	b[5] = 2
	_, err = ParseHello(b[:])
	var v *VersionError
	require.ErrorAs(t, err, &v)
	require.EqualValues(t, 2, v.Version)
}

func TestRefusal(t *testing.T) {
	var b [RefusalLen]byte
	PutRefusal(&b, ReasonBusy)
	r, ok := ParseRefusal(append(b[:], 0, 0, 0))
	require.True(t, ok)
	require.Equal(t, ReasonBusy, r)
	require.Equal(t, "busy", r.String())
	require.Equal(t, "77", Reason(77).String())
	_, ok = ParseRefusal(b[:7])
	require.False(t, ok)
	_, ok = ParseRefusal([]byte("HTTP/1.1 400"))
	require.False(t, ok)
}

func TestPacket(t *testing.T) {
	for _, p := range []Packet{{}, {1, 2, true}, {0xffffffff, 0xffff, false}} {
		var b [PacketLen]byte
		p.Put(b[:])
		got, err := ParsePacket(b[:])
		require.NoError(t, err)
		require.Equal(t, p, got)
		_, err = ParsePacket(b[:7])
		require.ErrorIs(t, err, verbs.ErrProtocol)
		b[6] |= 2
		_, err = ParsePacket(b[:])
		require.ErrorIs(t, err, verbs.ErrProtocol)
	}
}

func TestRecord(t *testing.T) {
	for _, c := range []struct {
		r    Record
		body int // bytes behind the header
		want int // that the record takes up; -1: refused
	}{
		{Record{Type: Msg}, 0, 0},
		{Record{Type: Msg, Head: 3, Payload: 5}, 8, 8},
		{Record{Type: Msg, Head: 3, Payload: 5}, 100, 8},
		{Record{Type: Msg, Head: 3, Payload: 1 << 40}, 10, 10},
		{Record{Type: Msg, Head: 11, Payload: 1}, 10, -1},
		{Record{Type: Msg, Head: 0xffffffff}, 10, -1},
		{Record{Type: Msg, Segments: 1}, 100, -1},
		{Record{Type: Frag, Payload: 5}, 5, 5},
		{Record{Type: Frag, Payload: 50}, 5, 5},
		{Record{Type: Frag, Payload: 5}, 0, -1},
		{Record{Type: Frag}, 5, -1},
		{Record{Type: Frag, Head: 1, Payload: 5}, 9, -1},
		{Record{Type: RndvRTS, Head: 4, Payload: 9, Segments: 2}, 36, 36},
		{Record{Type: RndvRTS, Head: 4, Payload: 9, Segments: 2}, 99, 36},
		{Record{Type: RndvRTS, Head: 4, Payload: 9, Segments: 2}, 35, -1},
		{Record{Type: RndvRTS, Head: 4, Payload: 9}, 35, -1},
		{Record{Type: RndvRTS, Segments: 1}, 35, -1},
		{Record{Type: Done, Payload: 77}, 0, 0},
		{Record{Type: Done, Head: 1}, 9, -1},
		{Record{Type: Goodbye}, 0, 0},
		{Record{Type: Goodbye, Payload: 1}, 0, -1},
		{Record{Type: Close, Payload: CloseEndpoint}, 0, 0},
		{Record{Type: Close, Head: 1}, 1, -1},
		{Record{Type: 0}, 0, -1},
		{Record{Type: 99}, 0, -1},
	} {
		b := make([]byte, RecordLen+c.body)
		c.r.Put(b)
		got, n, err := ParseRecord(b)
		if c.want < 0 {
			require.ErrorIs(t, err, verbs.ErrProtocol, "%v", c)
			continue
		}
		require.NoError(t, err, "%v", c)
		require.Equal(t, c.r, got)
		require.Equal(t, RecordLen+c.want, n, "%v", c)
		b[1] = 1
		_, _, err = ParseRecord(b)
		require.ErrorIs(t, err, verbs.ErrProtocol)
	}
	_, _, err := ParseRecord(make([]byte, RecordLen-1))
	require.ErrorIs(t, err, verbs.ErrProtocol)
	require.Equal(t, "RTS", RndvRTS.String())
	require.Equal(t, "0", Type(0).String())
}

func TestSegments(t *testing.T) {
	b := make([]byte, 2*SegmentLen)
	s := Segment{Addr: 1<<63 + 5, Len: 77, RKey: 0xabcdef01}
	s.Put(b)
	Segment{Addr: 1, Len: 3, RKey: 2}.Put(b[SegmentLen:])
	require.Equal(t, s, ParseSegment(b))
	require.NoError(t, CheckSegments(b, 80))
	require.ErrorIs(t, CheckSegments(b, 81), verbs.ErrProtocol)
	Segment{}.Put(b[SegmentLen:])
	require.ErrorIs(t, CheckSegments(b, 77), verbs.ErrProtocol)
}

func FuzzHello(f *testing.F) {
	var b [HelloLen]byte
	hello.Put(&b)
	f.Add(b[:])
	f.Add([]byte("GET / HTTP/1.1\r\n"))
	f.Fuzz(func(t *testing.T, in []byte) {
		h, err := ParseHello(in)
		if err != nil {
			return
		}
		var out [HelloLen]byte
		h.Put(&out)
		again, err := ParseHello(out[:])
		require.NoError(t, err)
		require.Equal(t, h, again)
	})
}

func FuzzRefusal(f *testing.F) {
	var b [RefusalLen]byte
	PutRefusal(&b, ReasonDenied)
	f.Add(b[:])
	f.Fuzz(func(t *testing.T, in []byte) {
		if r, ok := ParseRefusal(in); ok {
			_ = r.String()
			require.Equal(t, byte(r), in[6])
		}
	})
}

func FuzzPacket(f *testing.F) {
	b := make([]byte, PacketLen+6*RecordLen+2*SegmentLen+20)
	Packet{Epoch: 7, Credits: 3, Parked: true}.Put(b)
	o := PacketLen
	for _, r := range []Record{
		{Type: Msg, Head: 4, Payload: 6}, {Type: RndvRTS, Head: 3, Segments: 2, Payload: 9},
		{Type: Done, Payload: 1}, {Type: Goodbye}, {Type: Close, Payload: CloseConn}, {Type: Frag, Payload: 30},
	} {
		r.Put(b[o:])
		_, n, err := ParseRecord(b[o:])
		require.NoError(f, err)
		o += n
	}
	f.Add(b)
	f.Fuzz(func(t *testing.T, in []byte) {
		if _, err := ParsePacket(in); err != nil {
			return
		}
		for in = in[PacketLen:]; len(in) > 0; {
			r, n, err := ParseRecord(in)
			if err != nil {
				require.ErrorIs(t, err, verbs.ErrProtocol)
				return
			}
			require.GreaterOrEqual(t, n, RecordLen)
			require.LessOrEqual(t, n, len(in))
			if r.Type == RndvRTS {
				segs := in[RecordLen+int(r.Head) : n]
				require.Len(t, segs, int(r.Segments)*SegmentLen)
				_ = CheckSegments(segs, r.Payload)
				_ = ParseSegment(segs)
			}
			var h [RecordLen]byte
			r.Put(h[:])
			require.Equal(t, in[:RecordLen], h[:])
			in = in[n:]
		}
	})
}
