package messenger

import (
	"net/netip"

	"github.com/argonaut-rdma/argonaut/messenger/internal/msgr2"
)

// Who is bound to no particular host (0.0.0.0) does not know where others reach
// it; the peers that it connects to see it, and say so in HELLO (Ceph:
// learned_addr). Peers that know it by a session go on knowing it by what that
// session began with, see Connection.ours.

// learn takes note of where a peer sees us that we have connected to, and that has
// authenticated. m.mu is held.
func (m *Messenger) learn(seen msgr2.Addr) {
	ip := seen.AddrPort().Addr().Unmap()
	if !ip.IsValid() || ip.IsUnspecified() || ip.IsMulticast() {
		return
	}
	known := &m.learned[0]
	if ip.Is6() {
		known = &m.learned[1]
	}
	if known.IsValid() && (!known.IsLoopback() || ip.IsLoopback()) {
		return
	}
	*known = ip
	m.tell()
}

// tell makes told and wire of what is bound and what has been learned. m.mu is
// held.
func (m *Messenger) tell() {
	m.told, m.wire = nil, nil
	for _, a := range m.bound {
		if ap, err := netip.ParseAddrPort(a.HostPort()); err == nil && ap.Addr().IsUnspecified() {
			ip, v6 := m.learned[0], m.learned[1]
			if ap.Addr().Is6() && v6.IsValid() && (!v6.IsLoopback() || !ip.IsValid() || ip.IsLoopback()) {
				ip = v6
			}
			if ip.IsValid() {
				a.URL = a.Scheme() + "://" + netip.AddrPortFrom(ip, ap.Port()).String()
			}
		}
		m.told = append(m.told, a)
		m.wire = append(m.wire, a.toWire())
	}
}
