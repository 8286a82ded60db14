package ceph

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

// subscription is what a client asks a monitor to be kept informed of
// (MMonSubscribe, version 3).
type subscription struct {
	what map[string]since // by the name of the map
	host string           // the client's
}

// since is from when on, and for how long.
type since struct {
	start uint64 // the first epoch that is wanted, 0: the newest
	once  bool   // and none after it
}

var errSubscription = errors.New("malformed subscription")

// maxSubscriptions bounds how many one message may have.
const maxSubscriptions = 64

// decodeSubscription decodes the front of the message:
//
//	le32 count | count x (string name | le64 start | u8 flags, 1: once) | string host
//
// where a string is le32 length | bytes. It accepts any input.
func decodeSubscription(p []byte) (s subscription, err error) {
	n, p, ok := cut32(p)
	if !ok || n > maxSubscriptions {
		return s, fmt.Errorf("%w: %d entries", errSubscription, n)
	}
	s.what = map[string]since{}
	for range n {
		var name string
		if name, p, ok = cutString(p); !ok || len(p) < 9 {
			return s, fmt.Errorf("%w: entry %d of %d is cut off", errSubscription, len(s.what), n)
		}
		s.what[name] = since{binary.LittleEndian.Uint64(p), p[8]&1 != 0}
		p = p[9:]
	}
	if s.host, p, ok = cutString(p); !ok || len(p) > 0 {
		return s, fmt.Errorf("%w: %d bytes behind the entries", errSubscription, len(p))
	}
	return s, nil
}

func cut32(p []byte) (n uint32, rest []byte, ok bool) {
	if len(p) < 4 {
		return 0, p, false
	}
	return binary.LittleEndian.Uint32(p), p[4:], true
}

func cutString(p []byte) (s string, rest []byte, ok bool) {
	n, p, ok := cut32(p)
	if !ok || uint64(n) > uint64(len(p)) {
		return "", p, false
	}
	return string(p[:n]), p[n:], true
}

// What the ceph program of Ceph 16.2 sends (front of message 2 of
// messenger/internal/msgr2/testdata/mon-watch-000-client), decoded.
func TestDecodeSubscription(t *testing.T) {
	raw, err := hex.DecodeString("02000000" +
		"06000000636f6e666967" + "0000000000000000" + "00" +
		"060000006d6f6e6d6170" + "0000000000000000" + "00" +
		"02000000766d")
	require.NoError(t, err)
	s, err := decodeSubscription(raw)
	require.NoError(t, err)
	require.Equal(t, subscription{what: map[string]since{"config": {}, "monmap": {}}, host: "vm"}, s)
	for n := range raw { // cut off anywhere
		_, err := decodeSubscription(raw[:n])
		require.ErrorIs(t, err, errSubscription, "%d bytes", n)
	}
	_, err = decodeSubscription(append(raw, 0))
	require.ErrorIs(t, err, errSubscription)
	_, err = decodeSubscription([]byte{255, 255, 255, 255})
	require.ErrorIs(t, err, errSubscription)
	once, err := decodeSubscription(append([]byte("\x01\x00\x00\x00\x06\x00\x00\x00osdmap\x07\x00\x00\x00\x00\x00\x00\x00\x01"), 0, 0, 0, 0))
	require.NoError(t, err)
	require.Equal(t, map[string]since{"osdmap": {7, true}}, once.what)
}
