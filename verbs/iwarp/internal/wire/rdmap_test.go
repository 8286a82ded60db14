package wire

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func FuzzReadReq(f *testing.F) {
	var b [ReadReqLen]byte
	PutReadReq(b[:], &ReadReq{SinkSTag: 1, SinkTO: 2, Length: 3, SrcSTag: 4, SrcTO: 5})
	f.Add(b[:])
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := DecodeReadReq(b)
		if err != nil {
			require.NotEqual(t, ReadReqLen, len(b))
			return
		}
		var c [ReadReqLen]byte
		PutReadReq(c[:], &r)
		require.Equal(t, b, c[:])
	})
}

func FuzzAtomicReq(f *testing.F) {
	var b [AtomicReqLen]byte
	PutAtomicReq(b[:], &AtomicReq{Op: AtomicCmpSwap, ID: 1, STag: 2, TO: 3, AddSwap: 4, AddSwapMask: 5, Compare: 6, CompareMask: 7})
	f.Add(b[:])
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := DecodeAtomicReq(b)
		if err != nil {
			return
		}
		var c [AtomicReqLen]byte
		PutAtomicReq(c[:], &r)
		require.Equal(t, b[4:], c[4:]) // the first word has reserved bits
		again, err := DecodeAtomicReq(c[:])
		require.NoError(t, err)
		require.Equal(t, r, again)
	})
}

func FuzzAtomicResp(f *testing.F) {
	var b [AtomicRespLen]byte
	PutAtomicResp(b[:], AtomicResp{ID: 1, Value: 2})
	f.Add(b[:])
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := DecodeAtomicResp(b)
		if err != nil {
			require.NotEqual(t, AtomicRespLen, len(b))
			return
		}
		var c [AtomicRespLen]byte
		PutAtomicResp(c[:], r)
		require.Equal(t, b, c[:])
	})
}

func FuzzImm(f *testing.F) {
	var b [ImmLen]byte
	PutImm(b[:], 0x01020304)
	f.Add(b[:])
	f.Fuzz(func(t *testing.T, b []byte) {
		imm, err := DecodeImm(b)
		if err != nil {
			require.NotEqual(t, ImmLen, len(b))
			return
		}
		var c [ImmLen]byte
		PutImm(c[:], imm)
		require.Equal(t, b[:4], c[:4])
	})
}

func TestBodyLengths(t *testing.T) {
	for _, decode := range []func([]byte) error{
		func(b []byte) error { _, err := DecodeReadReq(b); return err },
		func(b []byte) error { _, err := DecodeAtomicReq(b); return err },
		func(b []byte) error { _, err := DecodeAtomicResp(b); return err },
		func(b []byte) error { _, err := DecodeImm(b); return err },
	} {
		var de *DecodeError
		require.ErrorAs(t, decode(make([]byte, 64)), &de)
		require.Equal(t, TermDDPTooLong, de.Term)
		require.ErrorAs(t, decode(nil), &de)
		require.Equal(t, TermRDMAPStreamCatastrophic, de.Term)
	}
}
