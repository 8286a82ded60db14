package messenger

import (
	"fmt"
	"net/netip"
)

// halfOpen counts the peers that are in the handshake: all, those of each host,
// and those of each transport. Messenger.mu guards it.
type halfOpen struct {
	n      int
	host   map[netip.Prefix]int
	scheme map[string]int
}

// roomFor is how many half-open peers a transport may have: on RDMA each will have
// receive buffers, and those that are authenticated shall find some.
func (m *Messenger) roomFor(scheme string) int {
	if ep := m.endpoints[scheme]; ep != nil {
		return max(ep.Capacity()/2, 2)
	}
	return m.cfg.MaxHalfOpen
}

// hostOf is what counts as one host: an IPv4 address, or the network that one
// IPv6 host has to itself. The zero prefix is that of transports without IP.
func hostOf(remote string) netip.Prefix {
	ap, err := netip.ParseAddrPort(remote)
	if err != nil {
		return netip.Prefix{}
	}
	a := ap.Addr().Unmap().WithZone("")
	bits := 32
	if a.Is6() {
		bits = 64
	}
	p, _ := a.Prefix(bits)
	return p
}

// take counts a peer, or says why it is one too many.
func (h *halfOpen) take(m *Messenger, l *link) error {
	if n := h.scheme[l.scheme]; h.n >= m.cfg.MaxHalfOpen || n >= m.roomFor(l.scheme) {
		return fmt.Errorf("%w: %d handshakes under way, %d of them over %s", ErrBusy, h.n, n, l.scheme)
	}
	host := hostOf(l.remote)
	if n := h.host[host]; host.IsValid() && n >= m.cfg.MaxHalfOpenPerHost {
		m.n.refusedPerHost.Add(1)
		return fmt.Errorf("%w: %d handshakes of %v under way", ErrBusy, n, host)
	}
	if h.host == nil {
		h.host, h.scheme = map[netip.Prefix]int{}, map[string]int{}
	}
	h.host[host]++
	h.scheme[l.scheme]++
	h.n++
	return nil
}

// give counts a peer off, whose handshake has ended.
func (h *halfOpen) give(l *link) {
	h.n--
	h.scheme[l.scheme]--
	host := hostOf(l.remote)
	if h.host[host]--; h.host[host] == 0 {
		delete(h.host, host)
	}
}
