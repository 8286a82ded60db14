package main

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/argonaut-rdma/argonaut/verbs"
)

// As ibv_rc_pingpong writes it: wire_gid of rdma-core's pingpong.c is the GID's bytes in order.
func TestEndpointText(t *testing.T) {
	e := verbs.QPEndpoint{LID: 0x12, QPN: 0x11, PSN: 0xabcdef, GID: netip.MustParseAddr("::ffff:10.9.0.1")}
	b := appendEndpoint(nil, e)
	require.Equal(t, "0012:000011:abcdef:00000000000000000000ffff0a090001\x00", string(b))
	require.Len(t, b, endpointLen)
	got, err := parseEndpoint(b)
	require.NoError(t, err)
	require.Equal(t, e, got)
	for _, bad := range []string{"", "0012:000011:abcdef:", "zz:1:1:00", "0012:000011:abcdef:00000000000000000000ffff0a0900"} {
		_, err := parseEndpoint([]byte(bad))
		require.Error(t, err, bad)
	}
}
