package wire

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestTerminateBytes(t *testing.T) {
	b := AppendTerminate(nil, &Terminate{Code: TermDDPBounds, HasDDP: true, SegLen: 30,
		DDP: Header{Tagged: true, Last: true, Op: OpWrite, STag: 0x01020304, TO: 5}})
	require.Equal(t, []byte{0x11, 0x01, 0xc0, 0, 0, 30, 0xc1, 0x40, 1, 2, 3, 4, 0, 0, 0, 0, 0, 0, 0, 5}, b)
	got, err := DecodeTerminate(b)
	require.NoError(t, err)
	require.Equal(t, TermDDPBounds, got.Code)
	require.Equal(t, 1, got.Code.Layer())
	require.Equal(t, 1, got.Code.Type())
	require.Equal(t, "DDP: base or bounds violation", got.Code.String())
	require.Equal(t, "terminate 0xf000", TermCode(0xf000).String())

	cut, err := DecodeTerminate(b[:10]) // the code still counts
	require.NoError(t, err)
	require.Equal(t, Terminate{Code: TermDDPBounds}, cut)
	_, err = DecodeTerminate(b[:3])
	require.Error(t, err)
	_, err = DecodeTerminate(make([]byte, MaxTerminateLen+1))
	require.Error(t, err)
}

func FuzzTerminate(f *testing.F) {
	f.Add(AppendTerminate(nil, &Terminate{Code: TermRDMAPUnspecified}))
	f.Add(AppendTerminate(nil, &Terminate{Code: TermDDPNoBuffer, HasDDP: true, SegLen: 100, DDP: Header{Op: OpSend, MSN: 3}}))
	f.Add(AppendTerminate(nil, &Terminate{Code: TermRDMAPAccess, HasDDP: true, SegLen: 46,
		DDP: Header{Last: true, Op: OpReadReq, QN: QNReadReq, MSN: 1}, HasRDMAP: true}))
	f.Fuzz(func(t *testing.T, b []byte) {
		term, err := DecodeTerminate(b)
		if err != nil {
			return
		}
		again, err := DecodeTerminate(AppendTerminate(nil, &term))
		require.NoError(t, err)
		require.Equal(t, term, again)
	})
}
