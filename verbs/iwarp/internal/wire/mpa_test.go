package wire

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestMPARequestBytes(t *testing.T) {
	b := AppendMPA(nil, MPAFrame{CRC: true, Enhanced: true, Rev: 2, PrivateDataLen: 4})
	b = AppendEnhanced(b, Enhanced{IRD: 4, ORD: 3, PeerToPeer: true, RTRWrite: true, RTRRead: true})
	require.Equal(t, append([]byte("MPA ID Req Frame"), 0x50, 2, 0, 4, 0x80, 4, 0xc0, 3), b)
	b = AppendMPA(nil, MPAFrame{Reply: true, Reject: true, Markers: true, Rev: 1})
	require.Equal(t, append([]byte("MPA ID Rep Frame"), 0xa0, 1, 0, 0), b)
}

func TestMPARefusals(t *testing.T) {
	good := AppendMPA(nil, MPAFrame{Rev: 1})
	for _, tc := range []struct {
		name  string
		bytes []byte
		reply bool
	}{
		{"short", good[:19], false},
		{"http", []byte("GET / HTTP/1.1\r\nHost: x\r\n"), false},
		{"reply where a request is due", AppendMPA(nil, MPAFrame{Reply: true, Rev: 1}), false},
		{"request where a reply is due", good, true},
		{"revision 0", AppendMPA(nil, MPAFrame{}), false},
		{"revision 3", AppendMPA(nil, MPAFrame{Rev: 3}), false},
		{"private data", AppendMPA(nil, MPAFrame{Rev: 1, PrivateDataLen: 513}), false},
		{"enhanced without room", AppendMPA(nil, MPAFrame{Rev: 2, Enhanced: true, PrivateDataLen: 3}), false},
	} {
		_, err := DecodeMPA(tc.bytes, tc.reply)
		var de *DecodeError
		require.ErrorAs(t, err, &de, tc.name)
		require.Equal(t, TermMPAInvalidRequest, de.Term, tc.name)
	}
}

func FuzzMPA(f *testing.F) {
	f.Add(AppendMPA(nil, MPAFrame{CRC: true, Rev: 1}), false)
	f.Add(AppendMPA(nil, MPAFrame{Reply: true, Enhanced: true, Rev: 2, PrivateDataLen: 4}), true)
	f.Fuzz(func(t *testing.T, b []byte, reply bool) {
		m, err := DecodeMPA(b, reply)
		if err != nil {
			return
		}
		again, err := DecodeMPA(AppendMPA(nil, m), reply)
		require.NoError(t, err)
		require.Equal(t, m, again)
	})
}

func FuzzEnhanced(f *testing.F) {
	f.Add(AppendEnhanced(nil, Enhanced{IRD: 1, ORD: MaxDepth, PeerToPeer: true, RTRSend: true}))
	f.Add(AppendEnhanced(nil, Enhanced{RTRWrite: true, RTRRead: true}))
	f.Fuzz(func(t *testing.T, b []byte) {
		e, err := DecodeEnhanced(b)
		if err != nil {
			require.Less(t, len(b), EnhancedLen)
			return
		}
		require.Equal(t, b[:EnhancedLen], AppendEnhanced(nil, e))
	})
}

func TestExtension(t *testing.T) {
	e := Extension{Jumbo: true, WaiveCRC: true, MaxULPDU: 1 << 20}
	b := AppendExtension([]byte("hello"), 5, e)
	user, got, ok := DecodeExtension(b)
	require.True(t, ok)
	require.Equal(t, []byte("hello"), user)
	require.Equal(t, e, got)

	user, _, ok = DecodeExtension(b[1:]) // not where it says
	require.False(t, ok)
	require.Equal(t, b[1:], user)
	b[len(b)-8] = 2 // another version
	_, _, ok = DecodeExtension(b)
	require.False(t, ok)
}

func FuzzExtension(f *testing.F) {
	f.Add(AppendExtension([]byte("private"), 7, Extension{Jumbo: true, Ops7306: true, WaiveCRC: true, MaxULPDU: 65536}))
	f.Add([]byte("no trailer here, only the user's own private data"))
	f.Fuzz(func(t *testing.T, b []byte) {
		user, e, ok := DecodeExtension(b)
		if !ok {
			require.Equal(t, b, user)
			return
		}
		again, e2, ok := DecodeExtension(AppendExtension(bytes.Clone(user), len(user), e))
		require.True(t, ok)
		require.Equal(t, user, again)
		require.Equal(t, e, e2)
	})
}
