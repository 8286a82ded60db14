package wire

import (
	"bytes"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/argonaut-rdma/argonaut/messenger"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m,
		goleak.IgnoreAnyFunction("github.com/panjf2000/ants/v2.(*poolCommon).purgeStaleWorkers"),
		goleak.IgnoreAnyFunction("github.com/panjf2000/ants/v2.(*poolCommon).ticktock"))
}

type message interface {
	Append([]byte) []byte
	Decode([]byte) error
}

var (
	someGrants = []messenger.Grant{{Addr: 0x7f0000001000, Len: 65536, RKey: 7, Epoch: 3}, {Addr: 1 << 40, Len: 5, RKey: 8, Epoch: 3, Write: true}}
	someInfo   = Info{Key: "a/b", Size: 1 << 40, Modified: 1_700_000_000_000_000_000, Version: strings.Repeat("0f", 16)}
	someTerms  = Terms{Chunk: 65536, Window: MaxWindow, Windows: 4}
)

// samples has at least one message of each kind.
var samples = []message{
	&PutRequest{Key: "k", Size: -1},
	&PutRequest{Key: "größe", Size: 5, Eager: true, Sums: []uint32{1, 0xffffffff}},
	&PutReply{Transfer: 9, Terms: someTerms, Info: someInfo},
	&PutWindow{Transfer: 1 << 63, Offset: 1 << 50, Length: 65541, Sums: []uint32{3}, Grants: someGrants},
	&PutCommit{Transfer: 1, Size: 77},
	&GetRequest{Key: "k", Offset: 10, Length: -1},
	&GetReply{Transfer: 4, Terms: someTerms, Offset: 5, Length: 1 << 39, Info: someInfo},
	&GetReply{Terms: someTerms, Length: 3, Eager: true, Sums: []uint32{1}, Info: someInfo},
	&GetWindow{Transfer: 4, Offset: 0, Length: MaxWindow / 16, Grants: someGrants},
	&GetWindowReply{Sums: []uint32{1, 2, 3}},
	&EndRequest{Transfer: 4},
	&KeyRequest{Key: "k"},
	&ListRequest{Prefix: "a/", After: "a/b"},
	&ListReply{Infos: []Info{someInfo, {Key: "z", Size: -1}}, More: true},
	&InfoReply{Info: someInfo},
	&NodeReply{Posted: 1, Held: 2, Free: 3, Total: 6, QueuePairs: 4, Connections: 5, Transfers: 6, Objects: 7, Bytes: 8, Uptime: 9, Device: "iwarp"},
	&NodeRequest{},
}

func empty(m message) message { return reflect.New(reflect.TypeOf(m).Elem()).Interface().(message) }

func TestRoundTrip(t *testing.T) {
	for _, m := range samples {
		t.Run(fmt.Sprintf("%T", m), func(t *testing.T) {
			p := m.Append([]byte("before"))[len("before"):]
			got := empty(m)
			require.NoError(t, got.Decode(p))
			require.Equal(t, m, got)
		})
	}
}

// Whatever is cut off or added makes an error; another version makes ErrVersion.
func TestCutAndExtended(t *testing.T) {
	for _, m := range samples {
		p := m.Append(nil)
		for n := range p {
			require.ErrorIs(t, empty(m).Decode(p[:n]), ErrMalformed, "%T cut to %d", m, n)
		}
		require.ErrorIs(t, empty(m).Decode(append(bytes.Clone(p), 0)), ErrMalformed, "%T", m)
		p[0]++
		require.ErrorIs(t, empty(m).Decode(p), ErrVersion, "%T", m)
	}
}

func TestLimits(t *testing.T) {
	many := make([]messenger.Grant, maxGrants+1)
	for _, c := range []struct {
		into message
		from message
	}{
		{&GetWindow{}, &GetWindow{Length: MaxWindow + 1, Grants: []messenger.Grant{{Len: 2 * MaxWindow}}}},
		{&GetWindow{}, &GetWindow{Length: 0, Grants: someGrants}},
		{&GetWindow{}, &GetWindow{Length: 65542, Grants: someGrants}}, // one more than granted
		{&GetWindow{}, &GetWindow{Length: 1, Grants: []messenger.Grant{{Len: MaxWindow + 1}}}},
		{&GetWindow{}, &GetWindow{Length: 1, Grants: []messenger.Grant{{Len: 1 << 63}, {Len: 1 << 63}, {Len: 1}}}},
		{&GetWindow{}, &GetWindow{Length: 1, Grants: many}},
		{&GetWindow{}, &GetWindow{Offset: -1, Length: 1, Grants: someGrants}},
		{&PutWindow{}, &PutWindow{Length: 1, Grants: someGrants, Sums: make([]uint32, maxSums+1)}},
		{&PutRequest{}, &PutRequest{Key: "k", Size: -2}},
		{&PutCommit{}, &PutCommit{Size: -1}},
		{&GetRequest{}, &GetRequest{Key: "k", Length: -2}},
		{&GetReply{}, &GetReply{Terms: someTerms, Offset: 5, Length: 6, Info: Info{Size: 10}}},
		{&GetReply{}, &GetReply{Terms: someTerms, Offset: 11, Info: Info{Size: 10}}},
		{&GetReply{}, &GetReply{Terms: Terms{Chunk: 65536, Window: MaxWindow}, Info: someInfo}},
		{&GetReply{}, &GetReply{Terms: Terms{Chunk: 1000, Window: MaxWindow, Windows: 1}, Info: someInfo}},
		{&GetReply{}, &GetReply{Terms: Terms{Chunk: 65536, Window: 4096, Windows: 1}, Info: someInfo}},
		{&GetReply{}, &GetReply{Terms: Terms{Chunk: 65536, Window: 2 * MaxWindow, Windows: 1}, Info: someInfo}},
		{&ListReply{}, &ListReply{Infos: make([]Info, MaxList+1)}},
	} {
		require.ErrorIs(t, c.into.Decode(c.from.Append(nil)), ErrMalformed, "%#v", c.from)
	}
	// Strings that are too long are cut by the encoder, so the length has to be forged.
	p := (&KeyRequest{Key: strings.Repeat("k", maxKey)}).Append(nil)
	require.NoError(t, (&KeyRequest{}).Decode(p))
	p = append(p, 'k')
	p[1]++
	require.ErrorIs(t, (&KeyRequest{}).Decode(p), ErrMalformed)
}

func TestReply(t *testing.T) {
	s, message, err := DecodeReply(AppendReply(nil, StatusNoSpace, "disk full"))
	require.NoError(t, err)
	require.Equal(t, StatusNoSpace, s)
	require.Equal(t, "disk full", message)
	s, _, err = DecodeReply((&InfoReply{Info: someInfo}).Append(nil))
	require.NoError(t, err)
	require.Equal(t, StatusOK, s)
	_, _, err = DecodeReply(append(AppendReply(nil, StatusNoSpace, ""), 1))
	require.ErrorIs(t, err, ErrMalformed)
	require.ErrorIs(t, (&InfoReply{}).Decode(AppendReply(nil, StatusBusy, "")), ErrMalformed, "a failure has no body")
	for s := StatusOK; s <= StatusInternal; s++ {
		require.Contains(t, statusText, s)
	}
	require.Equal(t, "status 999", Status(999).Error())
}

// FuzzDecode feeds each decoder: whatever is accepted encodes to what was decoded.
func FuzzDecode(f *testing.F) {
	for i, m := range samples {
		f.Add(uint8(i), m.Append(nil))
	}
	f.Add(uint8(0), AppendReply(nil, StatusBusy, "words"))
	f.Fuzz(func(t *testing.T, kind uint8, p []byte) {
		m := empty(samples[int(kind)%len(samples)])
		before := bytes.Clone(p)
		err := m.Decode(p)
		require.Equal(t, before, p, "input was changed")
		if err == nil {
			again := empty(m)
			require.NoError(t, again.Decode(m.Append(nil)))
			require.Equal(t, m, again)
		} else {
			require.NotPanics(t, func() { _ = err.Error() })
		}
		_, _, _ = DecodeReply(p)
	})
}
