package messenger_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	. "github.com/argonaut-rdma/argonaut/messenger"
)

// Why a less good address was tried is counted: nobody listened at the better one,
// or it did not answer.
func TestFallbacksAreCounted(t *testing.T) {
	for name, host := range map[string]func(*duo) string{
		"refused": func(d *duo) string { return d.Nodes[1].Host },
		"timeout": func(d *duo) string {
			d.Net.Split([]string{d.Nodes[0].Host}, []string{"10.99.0.1"})
			return "10.99.0.1"
		},
	} {
		t.Run(name, func(t *testing.T) {
			under(t, func(t *testing.T) {
				d := newDuo(t, LosslessPeer(), LosslessPeer())
				addrs := append(AddrVec{{URL: "tcp://" + host(d) + ":1"}}, d.Nodes[1].Addrs()...)
				c, err := d.Nodes[0].ConnectTo(OSD, addrs)
				require.NoError(t, err)
				ready(t, c)
				st := d.Nodes[0].Stats()
				want := map[string]uint64{name: 1}
				require.Equal(t, want["refused"], st.FallbacksRefused)
				require.Equal(t, want["timeout"], st.FallbacksTimeout)
				require.Zero(t, st.FallbacksOther+st.FallbacksNoTransport)
				require.EqualValues(t, 2, st.Attempts)
			})
		})
	}
}
