package messenger

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/argonaut-rdma/argonaut/test/env"
)

// A peer's better transport that does not exist here is counted, wherever in the
// list its address is, once for each connection.
func TestFallbacksWithoutTransport(t *testing.T) {
	env.UserSpace(t, "the schemes of user space and of adapters")
	iwarp, rdma, tcp := "iwarp://127.0.0.1:9", "rdma://127.0.0.1:9", "tcp://127.0.0.1:9"
	for _, tt := range []struct {
		device bool
		addrs  []string
		want   uint64
	}{
		{true, []string{iwarp, tcp}, 0},
		{true, []string{rdma, iwarp, tcp}, 1},
		{true, []string{tcp, iwarp, rdma}, 1},
		{true, []string{tcp}, 0},
		{true, []string{tcp, "rdma://127.0.0.1:0"}, 0}, // not bound
		{false, []string{iwarp, tcp}, 1},
		{false, []string{tcp, iwarp}, 1},
		{false, []string{tcp, rdma, iwarp}, 1},
		{false, []string{tcp, tcp}, 0},
	} {
		cfg := Config{}
		if !tt.device {
			cfg.Transports = []Transport{}
		}
		m := newMessenger(t, cfg)
		var addrs AddrVec
		for _, a := range tt.addrs {
			addrs = append(addrs, EntityAddr{URL: a})
		}
		for n := range uint64(2) {
			_, err := m.ConnectAnonymous(OSD, addrs)
			require.NoError(t, err)
			require.Equal(t, (n+1)*tt.want, m.Stats().FallbacksNoTransport, "%v, device %v", tt.addrs, tt.device)
		}
	}
}
