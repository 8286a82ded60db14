package msgr2

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestAddrOrder(t *testing.T) {
	at := func(s string, nonce uint32) Addr { return AddrFrom(AddrMsgr2, netip.MustParseAddrPort(s), nonce) }
	ordered := []Addr{
		at("192.0.2.9:6800", 0x0100), // the lowest byte of the nonce counts first
		at("192.0.2.1:6800", 0x0001),
		at("192.0.2.2:6800", 0x0001),
		at("192.0.2.1:6801", 0x0001), // the port before the address
		at("192.0.2.1:7000", 0x0001), // and its high byte first
		at("[2001:db8::1]:6800", 0x0001),
		at("[2001:db8::2]:6800", 0x0001),
	}
	for i := range ordered {
		for j := range ordered {
			got := ordered[i].Compare(&ordered[j])
			switch {
			case i < j:
				require.Negative(t, got, "%v, %v", ordered[i], ordered[j])
			case i > j:
				require.Positive(t, got, "%v, %v", ordered[i], ordered[j])
			default:
				require.Zero(t, got)
			}
		}
	}
}
