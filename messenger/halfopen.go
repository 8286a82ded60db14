package messenger

import (
	"fmt"
	"net/netip"
)

// halfOpen counts the peers that are in the handshake: all, and those of each
// host. Messenger.mu guards it.
type halfOpen struct {
	n    int
	host map[netip.Prefix]int
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
func (h *halfOpen) take(m *Messenger, remote string) error {
	if h.n >= m.cfg.MaxHalfOpen {
		return fmt.Errorf("%w: %d handshakes under way", ErrBusy, h.n)
	}
	host := hostOf(remote)
	if n := h.host[host]; host.IsValid() && n >= m.cfg.MaxHalfOpenPerHost {
		m.n.refusedPerHost.Add(1)
		return fmt.Errorf("%w: %d handshakes of %v under way", ErrBusy, n, host)
	}
	if h.host == nil {
		h.host = map[netip.Prefix]int{}
	}
	h.host[host]++
	h.n++
	return nil
}

// give counts a peer off, whose handshake has ended.
func (h *halfOpen) give(remote string) {
	h.n--
	host := hostOf(remote)
	if h.host[host]--; h.host[host] == 0 {
		delete(h.host, host)
	}
}
