package messenger

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/argonaut-rdma/argonaut/test/env"
)

// An address with the wrong scheme: both sides say what it looks like.
func TestWrongScheme(t *testing.T) {
	env.UserSpace(t, "iWARP's first bytes are looked at")
	var log syncSlice[string]
	server := newMessenger(t, Config{Name: EntityName{OSD, 0}, Logger: newLogger(&log)})
	require.NoError(t, server.Bind(soon(t), append(anyAddr(SchemeTCP), anyAddr(SchemeIWARP)...)))
	dial := func(url, want string) {
		c, err := newMessenger(t, Config{}).ConnectTo(OSD, AddrVec{{URL: url}})
		require.NoError(t, err)
		require.Eventually(t, func() bool { return c.Err() != nil && strings.Contains(c.Err().Error(), want) }, patience, time.Millisecond,
			"%s: %v", url, c.Err())
	}
	addrs := server.Addrs()
	dial(strings.Replace(addrs[0].URL, "tcp://", "iwarp://", 1), "as a tcp:// port")
	dial(strings.Replace(addrs[1].URL, "iwarp://", "tcp://", 1), "as an iwarp:// port")
	require.Eventually(t, func() bool { return strings.Contains(log.String(), "speaks iWARP") }, patience, time.Millisecond)
}

// One side takes the session for lossy and the other does not: who is surprised
// says so.
func TestPolicyMismatch(t *testing.T) {
	carriers(t, func(t *testing.T, scheme string) {
		for _, want := range []struct {
			server, client Policy
			n              [2]uint64
		}{
			{StatelessServer(), LossyClient(), [2]uint64{0, 0}},
			{StatefulServer(), LosslessClient(), [2]uint64{0, 0}},
			{StatefulServer(), LossyClient(), [2]uint64{1, 0}},
			{StatelessServer(), LosslessClient(), [2]uint64{0, 1}},
		} {
			p := newPairOf(t, scheme, want.server, want.client, &handler{dispatch: echo})
			r, err := p.c.Call(soon(t), NewMessage(1))
			require.NoError(t, err)
			r.Release()
			got := [2]uint64{p.server.Stats().PolicyMismatches, p.client.Stats().PolicyMismatches}
			require.Equal(t, want.n, got, "%v and %v", want.server, want.client)
		}
	})
}
