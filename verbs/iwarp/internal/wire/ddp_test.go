package wire

import (
	"testing"

	"github.com/stretchr/testify/require"
)

var headers = []Header{
	{Tagged: true, Last: true, Op: OpWrite, STag: 0x01020304, TO: 0x1122334455667788},
	{Tagged: true, Op: OpReadResp, STag: 1},
	{Last: true, Op: OpSend, QN: QNSend, MSN: 1},
	{Last: true, Op: OpSendSEInv, STag: 0xdeadbeef, QN: QNSend, MSN: 7, MO: 4096},
	{Last: true, Op: OpReadReq, QN: QNReadReq, MSN: 2},
	{Last: true, Op: OpTerminate, QN: QNTerminate, MSN: 1},
	{Last: true, Op: OpAtomicReq, QN: QNReadReq, MSN: 3},
	{Last: true, Op: OpAtomicResp, QN: QNAtomicResp, MSN: 1},
	{Last: true, Op: OpSendSE, Imm: true, STag: 42, QN: QNSend, MSN: 8},
	{Last: true, Op: OpImmSE, QN: QNSend, MSN: 9},
}

func TestHeaderBytes(t *testing.T) {
	var b [UntaggedLen]byte
	n := PutHeader(b[:], &headers[0])
	require.Equal(t, []byte{0xc1, 0x40, 1, 2, 3, 4, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88}, b[:n])
	n = PutHeader(b[:], &headers[3])
	require.Equal(t, []byte{0x41, 0x46, 0xde, 0xad, 0xbe, 0xef, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0x10, 0}, b[:n])
}

func TestHeaderRefusals(t *testing.T) {
	enc := func(h Header, f func(b []byte)) []byte {
		b := make([]byte, UntaggedLen)
		b = b[:PutHeader(b, &h)]
		if f != nil {
			f(b)
		}
		return b
	}
	for _, tc := range []struct {
		name string
		b    []byte
		term TermCode
	}{
		{"empty", nil, TermDDPLocalCatastrophic},
		{"short untagged", enc(headers[2], nil)[:17], TermDDPLocalCatastrophic},
		{"tagged version", enc(headers[0], func(b []byte) { b[0] ^= 3 }), TermDDPTaggedVersion},
		{"untagged version", enc(headers[2], func(b []byte) { b[0] ^= 1 }), TermDDPUntaggedVersion},
		{"RDMAP version", enc(headers[2], func(b []byte) { b[1] |= 0x80 }), TermRDMAPVersion},
		{"tagged SEND", enc(Header{Tagged: true, Op: OpSend}, nil), TermRDMAPOpcode},
		{"untagged WRITE", enc(Header{Op: OpWrite}, nil), TermRDMAPOpcode},
		{"opcode 12", enc(Header{Op: 12}, nil), TermRDMAPOpcode},
		{"queue 4", enc(Header{Op: OpSend, QN: 4}, nil), TermDDPInvalidQN},
		{"SEND on queue 1", enc(Header{Op: OpSend, QN: 1}, nil), TermRDMAPOpcode},
	} {
		var h Header
		var de *DecodeError
		require.ErrorAs(t, DecodeHeader(tc.b, &h), &de, tc.name)
		require.Equal(t, tc.term, de.Term, tc.name)
	}
}

func TestHeaderAllocs(t *testing.T) {
	var b [UntaggedLen]byte
	var h Header
	require.Zero(t, testing.AllocsPerRun(100, func() {
		PutHeader(b[:], &headers[3])
		if DecodeHeader(b[:], &h) != nil {
			panic("refused")
		}
	}))
}

func FuzzHeader(f *testing.F) {
	for i := range headers {
		var b [UntaggedLen]byte
		f.Add(b[:PutHeader(b[:], &headers[i])])
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var h, again Header
		if DecodeHeader(b, &h) != nil {
			return
		}
		var c [UntaggedLen]byte
		n := PutHeader(c[:], &h)
		require.Equal(t, h.Len(), n)
		require.NoError(t, DecodeHeader(c[:n], &again))
		require.Equal(t, h, again)
	})
}
