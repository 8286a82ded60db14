package msgr2

import (
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

var (
	v4  = AddrFrom(AddrMsgr2, netip.MustParseAddrPort("192.0.2.7:6800"), 4711)
	v6  = AddrFrom(AddrAny, netip.MustParseAddrPort("[2001:db8::1]:3300"), 1)
	ia  = AddrFrom(AddrIWARP, netip.MustParseAddrPort("192.0.2.7:7000"), 4711)
	all = []Frame{
		&Hello{Entity: EntityOSD, PeerAddr: v4},
		&AuthRequest{Method: AuthNone, Modes: []uint32{2, 1}, Payload: []byte("who")},
		&AuthBadMethod{Method: AuthCephx, Result: -95, Methods: []uint32{1}, Modes: []uint32{1, 2}},
		&AuthReplyMore{Payload: []byte{1}},
		&AuthRequestMore{Payload: []byte{2, 3}},
		&AuthDone{GlobalID: 4098, Mode: ModeCRC, Payload: []byte{4}},
		&AuthSignature{Sum: [SignatureLen]byte{9, 31: 8}},
		&ClientIdent{Addrs: AddrVec{v4, v6}, Target: v6, GID: -1, GlobalSeq: 2, Supported: 3, Required: 4, Flags: IdentLossy, Cookie: 5},
		&ServerIdent{Addrs: AddrVec{ia}, GID: 7, GlobalSeq: 2, Supported: 3, Required: 4, Flags: 0, Cookie: 5},
		&IdentMissingFeatures{Features: 1 << 63},
		&SessionReconnect{Addrs: AddrVec{v4}, ClientCookie: 1, ServerCookie: 2, GlobalSeq: 3, ConnectSeq: 4, MsgSeq: 5},
		&SessionReset{Full: true},
		&SessionRetry{ConnectSeq: 1},
		&SessionRetryGlobal{GlobalSeq: 2},
		&SessionReconnectOK{MsgSeq: 3},
		&Wait{},
		&Keepalive2{Sent: Timestamp{1, 2}},
		&Keepalive2Ack{Sent: Timestamp{3, 4}},
		&Ack{Seq: 5},
		&Refused{Reason: 3, Text: []byte("not here")},
	}
)

func TestHelloWithLimits(t *testing.T) {
	plain := (&Hello{Entity: EntityOSD, PeerAddr: v4}).Append(nil)
	want := Hello{Entity: EntityOSD, PeerAddr: v4, MaxFront: 1 << 16, MaxData: 1 << 33}
	wire := want.Append(nil)
	require.Equal(t, plain, wire[:len(plain)], "they are behind what Ceph knows")
	require.Len(t, wire, len(plain)+12)
	var got Hello
	require.NoError(t, got.Decode(wire))
	require.Equal(t, want, got)
	require.NoError(t, got.Decode(wire[:len(wire)-1]))
	require.Equal(t, Hello{Entity: EntityOSD, PeerAddr: v4}, got, "what is cut is not taken")
}

func TestRefusedIsBounded(t *testing.T) {
	wire := (&Refused{Text: make([]byte, MaxRefusedText+1)}).Append(nil)
	var got Refused
	require.NoError(t, got.Decode(wire))
	require.Len(t, got.Text, MaxRefusedText)
	wire = appendBlob([]byte{1}, make([]byte, MaxRefusedText+1))
	require.ErrorIs(t, got.Decode(wire), ErrTooLarge)
}

func TestEveryFrameComesBack(t *testing.T) {
	seen := map[Tag]bool{}
	for _, f := range all {
		wire := AppendControl(nil, f)
		var p Preamble
		require.NoError(t, p.Decode(wire, Limits{}))
		require.Equal(t, f.Tag(), p.Tag)
		require.EqualValues(t, len(wire), p.WireLen())
		payload, err := p.CheckSegZero(wire[PreambleLen:])
		require.NoError(t, err)
		g := New(p.Tag)
		require.NoError(t, g.Decode(payload))
		require.Equal(t, f, g)
		seen[p.Tag] = true

		for n := range payload { // any cut is noticed
			require.ErrorIs(t, New(p.Tag).Decode(payload[:n]), ErrTruncated, "%v cut to %d bytes", p.Tag, n)
		}
		require.NoError(t, New(p.Tag).Decode(append(payload, 1, 2, 3)), "later fields are ignored")
	}
	for tag := TagHello; tag <= TagAck; tag++ {
		require.Equal(t, tag != TagMessage, seen[tag], "%v", tag)
	}
}

func TestControlAppendsBehindWhatIsThere(t *testing.T) {
	got := AppendControl([]byte("before"), &Ack{Seq: 1})
	require.Equal(t, "before", string(got[:6]))
	require.Equal(t, AppendControl(nil, &Ack{Seq: 1}), got[6:])
}

func TestWaitIsAPreambleAlone(t *testing.T) {
	require.Len(t, AppendControl(nil, &Wait{}), PreambleLen)
}

func TestKnownChecksum(t *testing.T) {
	// RFC 3720 B.4: CRC32C of 32 zero bytes, as checksum 0x8a9136aa.
	require.Equal(t, uint32(0x8a9136aa), ^CRC(CRCSeed, make([]byte, 32)))
	require.Zero(t, CRC(0, make([]byte, 32)), "without inversion zeros do not change a zero register")
}

func TestBannerRefusals(t *testing.T) {
	good := Banner{Supported: 1, Required: 1}.Append(nil)
	require.Len(t, good, BannerLen)
	var b Banner
	require.NoError(t, b.Decode(good))
	require.Equal(t, Banner{1, 1}, b)

	longer := append([]byte(bannerMagic), 20, 0)
	longer = append(longer, good[BannerPrefixLen:]...)
	require.NoError(t, b.Decode(append(longer, 1, 2, 3, 4)), "a later version's banner")

	for name, c := range map[string]struct {
		in   []byte
		want error
	}{
		"HTTP":      {[]byte("GET / HTTP/1.1\r\n\r\nHost: x"), ErrMalformed},
		"msgr v1":   {[]byte("ceph v027\x00\x00\x00\x00\x00"), ErrMalformed},
		"short":     {good[:12], ErrTruncated},
		"nothing":   {nil, ErrTruncated},
		"too small": {append([]byte(bannerMagic), 15, 0), ErrMalformed},
		"too large": {append([]byte(bannerMagic), 0xff, 0xff), ErrTooLarge},
	} {
		require.ErrorIs(t, b.Decode(c.in), c.want, name)
	}
}

func TestPreambleRefusals(t *testing.T) {
	lim := Limits{Control: 100, Front: 200, Middle: 50, Data: 400}
	for name, c := range map[string]struct {
		edit func(*Preamble)
		want error
	}{
		"tag 0":                 {func(p *Preamble) { p.Tag = 0 }, ErrMalformed},
		"tag 21":                {func(p *Preamble) { p.Tag = 21 }, ErrMalformed},
		"no segment":            {func(p *Preamble) { p.Num = 0 }, ErrMalformed},
		"five segments":         {func(p *Preamble) { p.Num = 5 }, ErrMalformed},
		"uncounted segment":     {func(p *Preamble) { p.Num = 3 }, ErrMalformed},
		"last segment empty":    {func(p *Preamble) { p.Segs[SegData].Len = 0 }, ErrMalformed},
		"compressed":            {func(p *Preamble) { p.Flags = FlagCompressed }, ErrMalformed},
		"header too short":      {func(p *Preamble) { p.Segs[SegHeader].Len-- }, ErrMalformed},
		"front":                 {func(p *Preamble) { p.Segs[SegFront].Len = 201 }, ErrTooLarge},
		"middle":                {func(p *Preamble) { p.Segs[SegMiddle].Len = 51 }, ErrTooLarge},
		"4 GiB of data":         {func(p *Preamble) { p.Segs[SegData].Len = 1<<32 - 1 }, ErrTooLarge},
		"control, two segments": {func(p *Preamble) { *p = ControlPreamble(TagAck, 8); p.Num = 2; p.Segs[1].Len = 1 }, ErrMalformed},
		"control, too large":    {func(p *Preamble) { *p = ControlPreamble(TagAuthRequest, 101) }, ErrTooLarge},
	} {
		p := MessagePreamble(200, 50, 400)
		var q Preamble
		require.NoError(t, q.Decode(p.Append(nil), lim))
		c.edit(&p)
		require.ErrorIs(t, q.Decode(p.Append(nil), lim), c.want, name)
	}
	p := ControlPreamble(TagAck, 8)
	for i := range PreambleLen * 8 {
		b := p.Append(nil)
		b[i/8] ^= 1 << (i % 8)
		require.ErrorIs(t, new(Preamble).Decode(b, lim), ErrChecksum)
	}
	require.ErrorIs(t, new(Preamble).Decode(make([]byte, 31), lim), ErrTruncated)
}

func TestMessageShapes(t *testing.T) {
	h := Header{Seq: 1, TID: 2, Type: 3, Priority: 127, Version: 4, DataPrePadding: 5, DataOff: 6, AckSeq: 7, Flags: FlagComplete, CompatVersion: 8, Reserved: 9}
	front, middle, data := []byte("front"), []byte("middle"), []byte("data")
	for _, c := range []struct {
		front, middle, data []byte
		num                 uint8
	}{
		{nil, nil, nil, 1}, {front, nil, nil, 2}, {front, middle, nil, 3}, {nil, middle, nil, 3},
		{front, middle, data, 4}, {nil, nil, data, 4},
	} {
		b, p, e := AppendMessageHead(nil, &h, c.front, c.middle, len(c.data))
		b = append(b, c.data...)
		b = AppendMessageTail(b, &p, e, CRC(CRCSeed, c.data))
		require.Equal(t, c.num, p.Num)
		require.EqualValues(t, len(b), p.WireLen())
		again, _, n := recode(t, nil, b, false)
		require.Equal(t, b, again)
		require.Equal(t, len(b), n)
	}
}

func TestEpilogueRefusals(t *testing.T) {
	e := Epilogue{CRC: [3]uint32{1, 2, 3}}
	b := e.Append(nil)
	require.Len(t, b, EpilogueLen)
	require.ErrorIs(t, e.Decode(b[:12]), ErrTruncated)
	require.ErrorIs(t, e.Check(3, 4), ErrChecksum)
	require.NoError(t, e.Check(3, 3))
	for status := range 16 { // one flipped bit is neither status
		b[0] = byte(status)
		switch err := e.Decode(b); status {
		case lateComplete:
			require.NoError(t, err)
			require.False(t, e.Aborted)
		case lateAborted:
			require.NoError(t, err)
			require.True(t, e.Aborted)
			require.Equal(t, b, e.Append(nil))
		default:
			require.ErrorIs(t, err, ErrMalformed)
		}
	}
}

func TestAddrForms(t *testing.T) {
	var a Addr
	require.ErrorIs(t, a.Decode([]byte{2, 1, 1}), ErrMalformed)

	empty := Addr{Type: AddrNone}
	b := empty.Append(nil)
	require.NoError(t, a.Decode(b))
	require.Equal(t, empty, a)
	require.False(t, a.AddrPort().IsValid())

	// An empty address may also come without any sockaddr.
	require.NoError(t, a.Decode([]byte{1, 1, 1, 12, 0, 0, 0, 2, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0}))
	require.Equal(t, Addr{Type: AddrMsgr2, Nonce: 9}, a)

	// The encoding from before address types: padding, nonce, sockaddr_storage
	// with the family in network order.
	legacy := append([]byte{0, 0, 0, 0, 7, 0, 0, 0, 0, 2, 0x1a, 0x85, 192, 0, 2, 1}, make([]byte, 120)...)
	require.NoError(t, a.Decode(legacy))
	require.Equal(t, AddrFrom(AddrLegacy, netip.MustParseAddrPort("192.0.2.1:6789"), 7), a)

	var v AddrVec
	require.NoError(t, v.Decode(legacy))
	require.Equal(t, AddrVec{a}, v)
	require.ErrorIs(t, v.Decode([]byte{2, 33, 0, 0, 0}), ErrTooLarge)
	require.ErrorIs(t, v.Decode([]byte{3, 1, 0, 0, 0}), ErrMalformed)

	bad := v4.Append(nil)
	bad[19] = 99 // family
	require.ErrorIs(t, a.Decode(bad), ErrMalformed)
	require.Equal(t, "v2:192.0.2.7:6800/4711", v4.String())
	require.Equal(t, "any:[2001:db8::1]:3300/1", v6.String())
	require.Equal(t, "-", empty.String())
}

func TestNamesAndUnknownValues(t *testing.T) {
	require.Equal(t, "SESSION_RECONNECT_OK", TagSessionReconnectOK.String())
	require.Equal(t, "tag 21", Tag(21).String())
	require.Equal(t, "osd", EntityOSD.String())
	require.Equal(t, "type3", EntityType(3).String())
	require.Equal(t, "mode3", Mode(3).String())
	require.Equal(t, "method9", AuthMethod(9).String())
	require.Equal(t, "type9", AddrType(9).String())
}

func TestTimestamp(t *testing.T) {
	now := time.Unix(1764422400, 123456789)
	require.True(t, TimestampOf(now).Time().Equal(now))
}

func TestListsAreBounded(t *testing.T) {
	f := &AuthRequest{Method: AuthNone, Modes: make([]uint32, MaxMethods+1)}
	require.ErrorIs(t, new(AuthRequest).Decode(f.Append(nil)), ErrTooLarge)
	c := &ServerIdent{Addrs: make(AddrVec, MaxAddrs+1)}
	require.ErrorIs(t, new(ServerIdent).Decode(c.Append(nil)), ErrTooLarge)
}

func TestMessagePathAllocatesNothing(t *testing.T) {
	h := Header{Seq: 1, Type: 3}
	front, data := make([]byte, 100), make([]byte, 4096)
	buf := make([]byte, 0, 8192)
	var p Preamble
	var e Epilogue
	var ack, got Ack
	allocs := testing.AllocsPerRun(100, func() {
		b, q, f := AppendMessageHead(buf, &h, front, nil, len(data))
		b = append(b, data...)
		b = AppendMessageTail(b, &q, f, CRC(CRCSeed, data))
		if p.Decode(b, Limits{}) != nil {
			panic("preamble")
		}
		zero, err := p.CheckSegZero(b[PreambleLen:])
		if err != nil || h.Decode(zero) != nil {
			panic("header")
		}
		if e.Decode(b[len(b)-EpilogueLen:]) != nil || e.Check(SegData, CRC(CRCSeed, data)) != nil {
			panic("epilogue")
		}
		ack.Seq++
		b = AppendControl(buf, &ack)
		if got.Decode(b[PreambleLen:]) != nil || got != ack {
			panic("ack")
		}
	})
	require.Zero(t, allocs)
}
