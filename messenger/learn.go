package messenger

import (
	"net"
	"net/netip"
	"slices"

	"github.com/argonaut-rdma/argonaut/messenger/internal/msgr2"
)

// Who is bound to no particular host (0.0.0.0, ::) does not know where others
// reach it. Each transport knows: the peer that it connects to sees it, and says so
// in HELLO (Ceph: learned_addr), and the end here of one that was accepted is where
// the peer has reached it. So each peer is told the address by which it reaches us,
// also where we have several interfaces, and, if it is one of ours, the one that is
// told to all, by which it may have heard of us from others. Peers that know us by
// a session go on knowing us by what that session began with, see Connection.ours.

// isAny reports whether a is on no particular host, and its port.
func isAny(a EntityAddr) (port uint16, ok bool) {
	ap, err := netip.ParseAddrPort(a.HostPort())
	return ap.Port(), err == nil && ap.Addr().IsUnspecified()
}

// onHost is a, which isAny, on ip.
func onHost(a EntityAddr, ip netip.Addr) EntityAddr {
	port, _ := isAny(a)
	a.URL = a.Scheme() + "://" + netip.AddrPortFrom(ip, port).String()
	return a
}

// serves reports whether who listens on a, which isAny, is reached on ip: :: is
// both families.
func serves(a EntityAddr, ip netip.Addr) bool {
	ap, _ := netip.ParseAddrPort(a.HostPort())
	return ip.Is4() || ap.Addr().Is6()
}

// telling reports whether ip says where something is.
func telling(ip netip.Addr) bool { return ip.IsValid() && !ip.IsUnspecified() && !ip.IsMulticast() }

// endOf is the IP address of an end of a transport, if it has one.
func endOf(a net.Addr) netip.Addr {
	if a == nil {
		return netip.Addr{}
	}
	ap, _ := netip.ParseAddrPort(a.String())
	return ap.Addr().Unmap()
}

// end is where the peer reaches us, as it says to its client, else as our end of
// the transport is: who is accepted may not say it, and a tunnel's loopback tells
// nobody anything.
func (h *handshake) end() netip.Addr {
	seen := h.learned.AddrPort().Addr().Unmap()
	if h.p.client && telling(seen) && (!seen.IsLoopback() || !telling(h.p.here) || h.p.here.IsLoopback()) {
		return seen
	}
	return h.p.here
}

// learn takes note of where a peer has reached us, over a transport whose
// handshake has ended well. The first counts, and loopback only until there is
// another. m.mu is held.
func (m *Messenger) learn(ip netip.Addr) {
	if !telling(ip) {
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
		if _, ok := isAny(a); ok {
			ip, v6 := m.learned[0], m.learned[1]
			if serves(a, v6) && v6.IsValid() && (!v6.IsLoopback() || !ip.IsValid() || ip.IsLoopback()) {
				ip = v6
			}
			if ip.IsValid() {
				a = onHost(a, ip)
			}
		}
		m.told = append(m.told, a)
		m.wire = append(m.wire, a.toWire())
	}
}

// oursAt is our addresses for a peer that reaches us on ip, and others of ours by
// which it may have heard of us, for those that know that one may have many.
func (m *Messenger) oursAt(ip netip.Addr) (addrs, others msgr2.AddrVec) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !telling(ip) {
		return m.wire, nil
	}
	for i, a := range m.bound {
		told := m.told[i]
		if _, ok := isAny(a); !ok || !serves(a, ip) {
			addrs = append(addrs, m.wire[i])
			continue
		}
		at := onHost(a, ip)
		addrs = append(addrs, at.toWire())
		if _, unknown := isAny(told); at.URL != told.URL && !unknown {
			if ap, _ := netip.ParseAddrPort(told.HostPort()); ip.IsLoopback() || !ap.Addr().IsLoopback() {
				others = append(others, m.wire[i])
			}
		}
	}
	return addrs, others
}

// onEveryHost reports whether b, which is bound, would be reached at a if that is an
// address of this host, and which IP address that is.
func onEveryHost(a, b EntityAddr) (netip.Addr, bool) {
	port, ok := isAny(b)
	ap, err := netip.ParseAddrPort(a.HostPort())
	if !ok || err != nil || a.Scheme() != b.Scheme() || ap.Port() != port || (a.Nonce != 0 && a.Nonce != b.Nonce) {
		return netip.Addr{}, false
	}
	ip := ap.Addr().Unmap()
	return ip, serves(b, ip)
}

// isOwn reports whether one of addrs is ours; here is the addresses that this host
// has, nil where they have not been asked for. depends: it would take them to know.
// m.mu is held.
func (m *Messenger) isOwn(addrs AddrVec, here []netip.Addr) (own, depends bool) {
	for _, a := range addrs {
		same := func(b EntityAddr) bool { return a.URL == b.URL && (a.Nonce == b.Nonce || a.Nonce == 0) }
		if slices.ContainsFunc(m.bound, same) || slices.ContainsFunc(m.told, same) {
			return true, false
		}
		for _, b := range m.bound {
			ip, ok := onEveryHost(a, b)
			if ok && (ip.IsLoopback() || slices.Contains(m.learned[:], ip) || slices.Contains(here, ip)) {
				return true, false
			}
			depends = depends || ok
		}
	}
	return false, depends && here == nil
}

// hostAddrs is the IP addresses that this host has now. It asks the system: no lock
// is held.
func (m *Messenger) hostAddrs() []netip.Addr {
	all, _ := m.interfaces() // none: then it is found out by connecting
	here := make([]netip.Addr, 0, len(all))
	for _, i := range all {
		if p, err := netip.ParsePrefix(i.String()); err == nil {
			here = append(here, p.Addr().Unmap())
		}
	}
	return here
}
