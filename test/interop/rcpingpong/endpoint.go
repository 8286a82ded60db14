package main

import (
	"encoding/hex"
	"fmt"
	"net/netip"

	"github.com/argonaut-rdma/argonaut/verbs"
)

// endpointLen is the length of "LID:QPN:PSN:GID" in hexadecimal digits, and the zero behind it.
const endpointLen = 4 + 1 + 6 + 1 + 6 + 1 + 32 + 1

func appendEndpoint(b []byte, e verbs.QPEndpoint) []byte {
	gid := e.GID.As16()
	return fmt.Appendf(b, "%04x:%06x:%06x:%x\x00", e.LID, e.QPN, e.PSN, gid[:])
}

// parseEndpoint leaves the MTU open: it is agreed on by the command line.
func parseEndpoint(b []byte) (e verbs.QPEndpoint, err error) {
	var digits string
	if n, err := fmt.Sscanf(string(b), "%04x:%06x:%06x:%32s", &e.LID, &e.QPN, &e.PSN, &digits); err != nil {
		return e, fmt.Errorf("endpoint %q: field %d: %w", b, n, err)
	}
	var gid [16]byte
	if n, err := hex.Decode(gid[:], []byte(digits)); err != nil || n != len(gid) {
		return e, fmt.Errorf("endpoint %q: GID %q: %w", b, digits, err)
	}
	e.GID = netip.AddrFrom16(gid)
	return e, nil
}
