package messenger

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/argonaut-rdma/argonaut/buffer"
)

// large is a message with front, middle and data, and how many bytes they are.
func large(t *testing.T, m *Messenger, data int64) (*Message, uint64) {
	t.Helper()
	x := NewMessage(1)
	x.Front = append(x.Front, make([]byte, 100)...)
	x.Middle = make([]byte, 30)
	var err error
	x.Data, err = m.cfg.Arena.GetList(soon(t), data, buffer.Anonymous)
	require.NoError(t, err)
	return x, uint64(130 + data)
}

// Bytes are those of front, middle and data, to the byte, on both sides, and those
// of secure mode are told apart.
func TestBytesAreCounted(t *testing.T) {
	for _, mode := range []Mode{ModeCRC, ModeSecure} {
		t.Run(mode.String(), func(t *testing.T) {
			carriers(t, func(t *testing.T, scheme string) {
				scfg, ccfg := Config{Modes: []Mode{ModeCRC}}, Config{Modes: []Mode{ModeCRC}}
				if mode == ModeSecure {
					scfg, ccfg = secured(Config{}), secured(Config{})
				}
				p := newPair(t, scheme, scfg, ccfg, nil, nil)
				m, n := large(t, p.client, 5000)
				r, err := p.c.Call(soon(t), m)
				require.NoError(t, err)
				r.Release()
				secure := uint64(0)
				if mode == ModeSecure {
					secure = n
				}
				// The reply may be there before all that has been done for it is counted.
				for _, x := range []*Messenger{p.client, p.server} {
					require.Eventually(t, func() bool {
						s := x.Stats()
						return s.MessagesSent == 1 && s.MessagesReceived == 1 && s.BytesSent == n && s.BytesReceived == n &&
							s.BytesEncrypted == secure && s.BytesDecrypted == secure
					}, patience, time.Millisecond, "%+v", x.Stats())
				}
			})
		})
	}
}
