package messenger

import (
	"context"
	"fmt"
	"net"
	"net/netip"
)

// resolve is the addresses that a stands for, in the order in which to try them:
// a itself where its host is a number, so that the peer can be told whom we mean to
// reach, and where the dialer of a stream sees to names.
func (m *Messenger) resolve(ctx context.Context, a EntityAddr) (AddrVec, error) {
	host, port, err := net.SplitHostPort(a.HostPort())
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	if _, err := netip.ParseAddr(host); err == nil {
		return AddrVec{a}, nil
	}
	lookup := m.cfg.Resolve
	if lookup == nil {
		if a.Scheme() == SchemeTCP {
			return AddrVec{a}, nil
		}
		lookup = func(ctx context.Context, host string) ([]netip.Addr, error) {
			return net.DefaultResolver.LookupNetIP(ctx, "ip", host)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, m.cfg.ConnectTimeout)
	defer cancel()
	ips, err := lookup(ctx, host)
	if err != nil {
		return nil, fmt.Errorf("address of %s: %w", host, err)
	}
	var all AddrVec
	for _, ip := range ips {
		all = append(all, EntityAddr{URL: a.Scheme() + "://" + net.JoinHostPort(ip.Unmap().String(), port), Nonce: a.Nonce})
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("address of %s: %w", host, &net.DNSError{Err: "no addresses", Name: host, IsNotFound: true})
	}
	return all, nil
}
