package messenger

import (
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"

	"github.com/argonaut-rdma/argonaut/messenger/internal/msgr2"
)

// EntityAddr is one address of one incarnation of an entity: a URL whose
// scheme names the transport, and a nonce that changes with each start; where it
// is 0, as ParseAddr gives it, any incarnation is meant.
//
//	iwarp://192.0.2.1:7000   rdma://node7:7000   tcp://[2001:db8::1]:3300
type EntityAddr struct {
	URL   string
	Nonce uint32
}

// AddrVec is the addresses of one incarnation, in order of preference.
type AddrVec []EntityAddr

// The schemes that are known without configuration. tcp is msgr v2.1 on a plain
// byte stream, as Ceph speaks it; the others name a Config.Transports entry.
const (
	SchemeTCP   = "tcp"
	SchemeIWARP = "iwarp"
	SchemeRDMA  = "rdma"
)

// ParseAddr checks and splits an address. Without a scheme it is an error: a
// transport is never guessed.
func ParseAddr(s string) (EntityAddr, error) {
	scheme, hostport, ok := strings.Cut(s, "://")
	if !ok || scheme == "" {
		return EntityAddr{}, fmt.Errorf("%w: address %q has no scheme: write tcp://host:port, iwarp://host:port or rdma://host:port", ErrInvalid, s)
	}
	host, port, err := net.SplitHostPort(hostport)
	if err != nil {
		return EntityAddr{}, fmt.Errorf("%w: address %q: %w", ErrInvalid, s, err)
	}
	if _, err := strconv.ParseUint(port, 10, 16); err != nil {
		return EntityAddr{}, fmt.Errorf("%w: address %q: port %q is not a number from 0 to 65535", ErrInvalid, s, port)
	}
	return EntityAddr{URL: scheme + "://" + net.JoinHostPort(host, port)}, nil
}

// ParseAddrs parses a comma-separated list.
func ParseAddrs(s string) (AddrVec, error) {
	var v AddrVec
	for _, part := range strings.Split(s, ",") {
		a, err := ParseAddr(strings.TrimSpace(part))
		if err != nil {
			return nil, err
		}
		v = append(v, a)
	}
	return v, nil
}

// Scheme is the part of the URL before "://".
func (a EntityAddr) Scheme() string {
	scheme, _, _ := strings.Cut(a.URL, "://")
	return scheme
}

// HostPort is the part behind it.
func (a EntityAddr) HostPort() string {
	_, hostport, _ := strings.Cut(a.URL, "://")
	return hostport
}

func (a EntityAddr) String() string {
	return a.URL + "/" + strconv.FormatUint(uint64(a.Nonce), 10)
}

func (v AddrVec) String() string {
	parts := make([]string, len(v))
	for i, a := range v {
		parts[i] = a.String()
	}
	return "[" + strings.Join(parts, " ") + "]"
}

// toWire converts an address with a numeric host; others give an address
// without family, as names do not travel.
func (a EntityAddr) toWire() msgr2.Addr {
	t := msgr2.AddrMsgr2
	switch a.Scheme() {
	case SchemeIWARP:
		t = msgr2.AddrIWARP
	case SchemeRDMA:
		t = msgr2.AddrRDMA
	}
	ap, _ := netip.ParseAddrPort(a.HostPort())
	return msgr2.AddrFrom(t, ap, a.Nonce)
}

// fromWire is the reverse of toWire. Ceph's "any", which clients use, becomes
// tcp.
func fromWire(a msgr2.Addr) EntityAddr {
	scheme := SchemeTCP
	switch a.Type {
	case msgr2.AddrIWARP:
		scheme = SchemeIWARP
	case msgr2.AddrRDMA:
		scheme = SchemeRDMA
	}
	return EntityAddr{URL: scheme + "://" + a.AddrPort().String(), Nonce: a.Nonce}
}
