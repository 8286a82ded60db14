package ibverbs

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
)

// DeviceInfo is an RDMA device of this machine as the kernel shows it. It needs
// neither the provider nor a permission.
type DeviceInfo struct {
	Name     string // "mlx5_0"
	IWARP    bool   // else InfiniBand or RoCE
	Firmware string // as the driver spells it; may be empty
	Ports    []PortInfo
}

// PortInfo is a port of a device.
type PortInfo struct {
	Num       int    // from 1
	State     string // "ACTIVE", "DOWN", "INIT" ...
	LinkLayer string // "Ethernet" or "InfiniBand"
	Rate      string // "100 Gb/sec (4X EDR)"
	NetDevs   []string
	GIDs      []GIDInfo // without the holes of the table
}

// Active reports whether the port can carry connections.
func (p *PortInfo) Active() bool { return p.State == "ACTIVE" }

// GIDInfo is an entry of a port's GID table.
type GIDInfo struct {
	Index  int
	Addr   netip.Addr // RoCE: the IP address; InfiniBand: prefix and GUID; iWARP: the MAC address, then zeros
	Type   string     // "RoCE v2", "IB/RoCE v1"; empty where the driver says none
	NetDev string     // empty: none
}

// Devices lists the RDMA devices of this machine, by name. There may be none;
// then the list is empty. It is read anew at each call, from sysfs(5).
func Devices() ([]DeviceInfo, error) { return devices() }

// GID returns the entry that a queue pair connected out of band uses: the first,
// on InfiniBand; on RoCE one with addr, if that is valid, RoCE v2 before v1 and a
// routable address before a link-local one. false: there is none.
func (p *PortInfo) GID(addr netip.Addr) (GIDInfo, bool) {
	addr = addr.Unmap().WithZone("")
	best, rank := GIDInfo{}, -1
	for _, g := range p.GIDs {
		if g.Index > maxGIDIndex {
			continue
		}
		r := 0
		if p.LinkLayer != linkInfiniBand {
			if addr.IsValid() && g.Addr.Unmap() != addr {
				continue
			}
			if g.Type == roceV2 {
				r += 2
			}
			if !g.Addr.Unmap().IsLinkLocalUnicast() {
				r++
			}
		}
		if r > rank {
			best, rank = g, r
		}
	}
	return best, rank >= 0
}

// Match is what connections from one IP address use.
type Match struct {
	Device string
	Port   int
	GID    int    // index; -1: an iWARP device needs none
	NetDev string // the network interface with the address
	Why    string // for people
}

const (
	roceV2         = "RoCE v2"
	linkInfiniBand = "InfiniBand"
	// maxGIDIndex is what an address of ibv_modify_qp(3) has room for.
	maxGIDIndex = 255
)

// Find returns the device of devs that serves connections from addr, an address
// of this machine: the one whose active port belongs to the interface with the
// address. Of several GIDs with the address, RoCE v2 comes before v1. Where there
// is none, the error matches os.ErrNotExist and says why.
func Find(devs []DeviceInfo, addr netip.Addr) (Match, error) {
	ifs, err := net.Interfaces()
	if err != nil {
		return Match{}, fmt.Errorf("ibverbs: network interfaces: %w", err)
	}
	addr = addr.Unmap().WithZone("")
	for i := range ifs {
		addrs, err := ifs[i].Addrs()
		if err != nil {
			continue // it has just gone
		}
		for _, a := range addrs {
			if n, ok := a.(*net.IPNet); ok {
				if ip, ok := netip.AddrFromSlice(n.IP); ok && ip.Unmap() == addr {
					return find(devs, addr, ifs[i].Name, ifs[i].HardwareAddr)
				}
			}
		}
	}
	return Match{}, fmt.Errorf("ibverbs: %v is no address of this machine (`ip address` lists them): %w", addr, os.ErrNotExist)
}

// find is Find where the interface of addr is known.
func find(devs []DeviceInfo, addr netip.Addr, netdev string, hw net.HardwareAddr) (Match, error) {
	var reasons []error
	for i := range devs {
		for j := range devs[i].Ports {
			p := &devs[i].Ports[j]
			gid, why := p.serves(&devs[i], addr, netdev, hw)
			if why == "" {
				continue
			}
			if !p.Active() {
				reasons = append(reasons, fmt.Errorf("port %d of %s serves it, but is %s", p.Num, devs[i].Name, p.State))
				continue
			}
			if gid == noGID {
				reasons = append(reasons, fmt.Errorf("port %d of %s belongs to %s, but has no GID with the address (is the interface up?)",
					p.Num, devs[i].Name, netdev))
				continue
			}
			return Match{Device: devs[i].Name, Port: p.Num, GID: max(gid, -1), NetDev: netdev, Why: why}, nil
		}
	}
	if len(reasons) > 0 {
		return Match{}, fmt.Errorf("ibverbs: %v of %s: %w: %w", addr, netdev, errors.Join(reasons...), os.ErrNotExist)
	}
	return Match{}, fmt.Errorf("ibverbs: no RDMA device belongs to %s, the interface of %v (an adapter's driver makes one, "+
		"or `rdma link add rxe0 type rxe netdev %s` in software): %w", netdev, addr, netdev, os.ErrNotExist)
}

const (
	anyGID = -1
	noGID  = -2
)

// serves says whether the port serves addr of the interface, and why; "" is no.
func (p *PortInfo) serves(d *DeviceInfo, addr netip.Addr, netdev string, hw net.HardwareAddr) (gid int, why string) {
	owns := slices.Contains(p.NetDevs, netdev)
	switch {
	case d.IWARP:
		for _, g := range p.GIDs {
			raw := g.Addr.As16()
			owns = owns || len(hw) == 6 && bytes.HasPrefix(raw[:], hw)
		}
		if owns {
			return anyGID, fmt.Sprintf("iWARP, port %d belongs to %s", p.Num, netdev)
		}
	case p.LinkLayer == linkInfiniBand:
		// An IPoIB interface's address ends with the port's GID.
		for _, g := range p.GIDs {
			raw := g.Addr.As16()
			if len(hw) == 20 && bytes.Equal(hw[4:], raw[:]) {
				return g.Index, fmt.Sprintf("InfiniBand, %s is IPoIB on port %d, GID %d", netdev, p.Num, g.Index)
			}
		}
	default:
		best := noGID
		for _, g := range p.GIDs {
			if g.Addr.Unmap() != addr || g.NetDev != "" && g.NetDev != netdev {
				continue
			}
			owns = true
			if g.Type == roceV2 {
				return g.Index, fmt.Sprintf("RoCE v2, GID %d of port %d is the address, on %s", g.Index, p.Num, netdev)
			}
			if best == noGID {
				best = g.Index
			}
		}
		if owns && best != noGID {
			return best, fmt.Sprintf("RoCE v1, GID %d of port %d is the address, on %s; there is no v2 one", best, p.Num, netdev)
		}
		if owns {
			return noGID, "RoCE without a GID"
		}
	}
	return noGID, ""
}
