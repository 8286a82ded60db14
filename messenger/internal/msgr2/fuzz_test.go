package msgr2

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// fuzzFrame checks a control frame's decoder: it never panics, and whatever it
// accepts comes back from the encoder unchanged.
func fuzzFrame(f *testing.F, tag Tag) {
	for _, frame := range all {
		if frame.Tag() == tag {
			f.Add(frame.Append(nil))
		}
	}
	f.Fuzz(func(t *testing.T, p []byte) {
		a, b := New(tag), New(tag)
		if a.Decode(p) != nil {
			return
		}
		wire := a.Append(nil)
		require.NoError(t, b.Decode(wire))
		require.Equal(t, wire, b.Append(nil))
	})
}

func FuzzHello(f *testing.F)                { fuzzFrame(f, TagHello) }
func FuzzAuthRequest(f *testing.F)          { fuzzFrame(f, TagAuthRequest) }
func FuzzAuthBadMethod(f *testing.F)        { fuzzFrame(f, TagAuthBadMethod) }
func FuzzAuthReplyMore(f *testing.F)        { fuzzFrame(f, TagAuthReplyMore) }
func FuzzAuthRequestMore(f *testing.F)      { fuzzFrame(f, TagAuthRequestMore) }
func FuzzAuthDone(f *testing.F)             { fuzzFrame(f, TagAuthDone) }
func FuzzAuthSignature(f *testing.F)        { fuzzFrame(f, TagAuthSignature) }
func FuzzClientIdent(f *testing.F)          { fuzzFrame(f, TagClientIdent) }
func FuzzServerIdent(f *testing.F)          { fuzzFrame(f, TagServerIdent) }
func FuzzIdentMissingFeatures(f *testing.F) { fuzzFrame(f, TagIdentMissingFeatures) }
func FuzzSessionReconnect(f *testing.F)     { fuzzFrame(f, TagSessionReconnect) }
func FuzzSessionReset(f *testing.F)         { fuzzFrame(f, TagSessionReset) }
func FuzzSessionRetry(f *testing.F)         { fuzzFrame(f, TagSessionRetry) }
func FuzzSessionRetryGlobal(f *testing.F)   { fuzzFrame(f, TagSessionRetryGlobal) }
func FuzzSessionReconnectOK(f *testing.F)   { fuzzFrame(f, TagSessionReconnectOK) }
func FuzzWait(f *testing.F)                 { fuzzFrame(f, TagWait) }
func FuzzKeepalive2(f *testing.F)           { fuzzFrame(f, TagKeepalive2) }
func FuzzKeepalive2Ack(f *testing.F)        { fuzzFrame(f, TagKeepalive2Ack) }
func FuzzAck(f *testing.F)                  { fuzzFrame(f, TagAck) }
func FuzzRefused(f *testing.F)              { fuzzFrame(f, TagRefused) }

func FuzzBanner(f *testing.F) {
	f.Add(Banner{1, 1}.Append(nil))
	f.Fuzz(func(t *testing.T, p []byte) {
		var a, b Banner
		if a.Decode(p) == nil {
			require.NoError(t, b.Decode(a.Append(nil)))
			require.Equal(t, a, b)
		}
	})
}

func FuzzPreamble(f *testing.F) {
	for _, p := range []Preamble{ControlPreamble(TagHello, 36), MessagePreamble(1, 2, 3), MessagePreamble(0, 0, 0)} {
		f.Add(p.Append(nil)[:PreambleLen-4])
	}
	f.Fuzz(func(t *testing.T, p []byte) {
		if len(p) < PreambleLen-4 {
			require.Error(t, new(Preamble).Decode(p, Limits{}))
			return
		}
		p = p[:PreambleLen-4]
		p = le.AppendUint32(p[:len(p):len(p)], CRC(0, p)) // else the checksum stops everything
		var a, b Preamble
		if a.Decode(p, Limits{}) != nil {
			return
		}
		require.NoError(t, b.Decode(a.Append(nil), Limits{}))
		require.Equal(t, a, b)
		for i, s := range a.Segs {
			require.LessOrEqual(t, s.Len, uint32(DefaultData), "segment %d", i)
		}
	})
}

func FuzzSegZero(f *testing.F) {
	f.Add(AppendControl(nil, &Ack{Seq: 1})[PreambleLen:], uint32(8))
	f.Fuzz(func(t *testing.T, p []byte, n uint32) {
		pre := ControlPreamble(TagAck, int(n%4096))
		if b, err := pre.CheckSegZero(p); err == nil {
			require.Len(t, b, int(n%4096))
		}
	})
}

func FuzzEpilogue(f *testing.F) {
	f.Add((&Epilogue{CRC: [3]uint32{1, 2, 3}}).Append(nil))
	f.Fuzz(func(t *testing.T, p []byte) {
		var a, b Epilogue
		if a.Decode(p) == nil {
			require.NoError(t, b.Decode(a.Append(nil)))
			require.Equal(t, a, b)
		}
	})
}

func FuzzHeader(f *testing.F) {
	f.Add((&Header{Seq: 1, Type: 2}).Append(nil))
	f.Fuzz(func(t *testing.T, p []byte) {
		var a Header
		if a.Decode(p) == nil {
			require.Equal(t, p[:HeaderLen], a.Append(nil))
		}
	})
}

func FuzzEntityName(f *testing.F) {
	f.Add(EntityName{EntityOSD, 7}.Append(nil))
	f.Fuzz(func(t *testing.T, p []byte) {
		var a EntityName
		if a.Decode(p) == nil {
			require.Equal(t, p[:EntityNameLen], a.Append(nil))
		}
	})
}

func FuzzAddr(f *testing.F) {
	for _, a := range []Addr{v4, v6, {}} {
		f.Add(a.Append(nil))
	}
	f.Fuzz(func(t *testing.T, p []byte) {
		var a, b Addr
		if a.Decode(p) == nil {
			require.NoError(t, b.Decode(a.Append(nil)))
			require.Equal(t, a, b)
		}
	})
}

func FuzzAddrVec(f *testing.F) {
	f.Add(AddrVec{v4, v6, ia}.Append(nil))
	f.Add(AddrVec(nil).Append(nil))
	f.Fuzz(func(t *testing.T, p []byte) {
		var a, b AddrVec
		if a.Decode(p) == nil {
			require.NoError(t, b.Decode(a.Append(nil)))
			require.Equal(t, a, b)
		}
	})
}
