//go:build ibverbs && linux && cgo

package ibverbs

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"strconv"

	"github.com/argonaut-rdma/argonaut/verbs/driver"
	"github.com/argonaut-rdma/argonaut/verbs/ibverbs/internal/cverbs"
)

// resolve is the address that "host:port" names.
func resolve(ctx context.Context, addr string) (cverbs.SockAddr, error) {
	host, service, err := net.SplitHostPort(addr)
	if err != nil {
		return cverbs.SockAddr{}, fmt.Errorf("%w: %w", err, driver.ErrInvalid)
	}
	port, err := net.DefaultResolver.LookupPort(ctx, "tcp", service)
	if err != nil {
		return cverbs.SockAddr{}, err
	}
	ip := netip.IPv4Unspecified()
	if literal, err := netip.ParseAddr(host); err == nil {
		ip = literal.Unmap() // with its zone, which a look-up would lose
	} else if host != "" {
		ips, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
		if err != nil {
			return cverbs.SockAddr{}, err
		}
		ip = ips[0].Unmap()
	}
	return sockAddr(netip.AddrPortFrom(ip, uint16(port)))
}

// sockAddr finds the interface that a link-local address is meant on.
func sockAddr(a netip.AddrPort) (cverbs.SockAddr, error) {
	s := cverbs.SockAddr{AddrPort: a}
	zone := a.Addr().Zone()
	if zone == "" {
		return s, nil
	}
	if n, err := strconv.ParseUint(zone, 10, 32); err == nil {
		s.Scope = uint32(n)
		return s, nil
	}
	ifi, err := net.InterfaceByName(zone)
	if err != nil {
		return s, fmt.Errorf("%w: %w", err, driver.ErrInvalid)
	}
	s.Scope = uint32(ifi.Index)
	return s, nil
}

func (id *cmID) addrs() (local, remote string) {
	_ = id.do("", func(c cverbs.ID) error {
		l, r := zoned(c.LocalAddr(), c.PeerAddr(), id.dev.src.Scope)
		local, remote = addrString(l), addrString(r)
		return nil
	})
	return local, remote
}

// zoned gives link-local addresses the scope that one of the two has, or is ours:
// a request over InfiniBand or RoCE carries none.
func zoned(a, b cverbs.SockAddr, ours uint32) (cverbs.SockAddr, cverbs.SockAddr) {
	scope := max(a.Scope, b.Scope)
	if scope == 0 {
		scope = ours
	}
	for _, s := range []*cverbs.SockAddr{&a, &b} {
		if ip := s.Addr(); s.Scope == 0 && ip.Is6() && ip.IsLinkLocalUnicast() {
			s.Scope = scope
		}
	}
	return a, b
}

func addrString(s cverbs.SockAddr) string {
	a := s.AddrPort
	if s.Scope != 0 {
		zone := strconv.FormatUint(uint64(s.Scope), 10)
		if ifi, err := net.InterfaceByIndex(int(s.Scope)); err == nil {
			zone = ifi.Name
		}
		a = netip.AddrPortFrom(a.Addr().WithZone(zone), a.Port())
	}
	return a.String()
}
