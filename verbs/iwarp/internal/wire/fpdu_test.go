package wire

import (
	"encoding/hex"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestCRCWireOrder(t *testing.T) {
	var b [4]byte
	PutCRC(b[:], CRC(0, []byte("123456789")))
	require.Equal(t, "839206e3", hex.EncodeToString(b[:]))
	require.NoError(t, CheckCRC(b[:], CRC(CRC(0, []byte("1234")), []byte("56789"))))
	require.Error(t, CheckCRC(b[:], 0))
}

func TestFPDULength(t *testing.T) {
	require.Equal(t, 52, Standard.Len(UntaggedLen+ReadReqLen)) // as a kernel's READ request is on the wire
	for _, f := range []Framing{Standard, Jumbo} {
		for n := TaggedLen; n < TaggedLen+9; n++ {
			require.Zero(t, (int(f)+n+f.Pad(n))%4)
			require.Less(t, f.Pad(n), 4)
			var b [4]byte
			f.PutLength(b[:], n)
			got, err := f.DecodeLength(b[:])
			require.NoError(t, err)
			require.Equal(t, n, got)
		}
	}
	_, err := Jumbo.DecodeLength([]byte{0xff, 0xff, 0xff, 0xff})
	require.Error(t, err)
	_, err = Standard.DecodeLength([]byte{0, TaggedLen - 1})
	require.Error(t, err)
}

func FuzzFPDULength(f *testing.F) {
	var b [4]byte
	Standard.PutLength(b[:], 1448)
	f.Add(b[:], false)
	Jumbo.PutLength(b[:], MaxJumboULPDU)
	f.Add(b[:], true)
	f.Fuzz(func(t *testing.T, b []byte, jumbo bool) {
		fr := Standard
		if jumbo {
			fr = Jumbo
		}
		n, err := fr.DecodeLength(b)
		if err != nil {
			return
		}
		require.GreaterOrEqual(t, n, TaggedLen)
		require.LessOrEqual(t, n, MaxJumboULPDU)
		var c [4]byte
		fr.PutLength(c[:], n)
		require.Equal(t, b[:fr], c[:fr])
	})
}
