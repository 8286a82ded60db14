package fabric

import (
	"fmt"
	"net"
	"net/netip"
	"strings"

	"github.com/argonaut-rdma/argonaut/messenger"
	"github.com/argonaut-rdma/argonaut/verbs/ibverbs"
)

// Choice is a device, and why it was chosen.
type Choice struct {
	Device string // DeviceIWARP, DeviceTCP, or the name of an RDMA device
	Addr   string // the IP address of this machine that an RDMA device is used with; empty: any
	Why    string

	scheme string // of the addresses, where they have one
	named  bool   // the user has named the device
}

// Scheme is that of the addresses of the choice: what they say, or what the device is called. Both ends must use the
// same, whatever their devices are: an adapter in software reaches an iWARP device of the kernel at rdma://.
func (c Choice) Scheme() string {
	if c.scheme != "" {
		return c.scheme
	}
	switch c.Device {
	case DeviceIWARP:
		return messenger.SchemeIWARP
	case DeviceTCP:
		return messenger.SchemeTCP
	}
	return messenger.SchemeRDMA
}

// Choose decides on the device. What is not DeviceAuto was chosen by the user. addrs is a comma-separated list of
// addresses, of which the first counts: of this machine if local, else of a node to be reached. With DeviceAuto an RDMA
// device is chosen that can be opened and serves that address, or the way to it; else, and when an address names another
// transport, the adapter in software. An empty device is the adapter in software, by default.
func Choose(device, addrs string, local bool) Choice {
	first, _, _ := strings.Cut(addrs, ",")
	scheme, hostport, ok := strings.Cut(strings.TrimSpace(first), "://")
	if !ok {
		scheme, hostport = "", scheme
	}
	c := choose(device, scheme, hostport, local)
	c.named = device != "" && device != DeviceAuto
	if c.Device != DeviceTCP && (scheme == messenger.SchemeIWARP || scheme == messenger.SchemeRDMA) {
		c.scheme = scheme
	}
	return c
}

func choose(device, scheme, hostport string, local bool) Choice {
	switch device {
	case "":
		return Choice{Device: DeviceIWARP, Why: "the default"}
	case DeviceIWARP:
		if scheme == messenger.SchemeRDMA {
			return Choice{Device: device, Why: "asked for: the adapter in software, for iWARP devices of the kernel"}
		}
		return Choice{Device: device, Why: "asked for"}
	case DeviceTCP:
		return Choice{Device: device, Why: "asked for"}
	case DeviceAuto:
		switch scheme {
		case messenger.SchemeIWARP:
			return Choice{Device: DeviceIWARP, Why: "the address says so"}
		case messenger.SchemeTCP:
			return Choice{Device: DeviceTCP, Why: "the address says so"}
		}
	}
	ip, err := localIP(hostport, local)
	if device != DeviceAuto {
		c := Choice{Device: device, Why: "asked for"}
		if err == nil && local {
			c.Addr = ip.String()
		}
		return c
	}
	software := func(err error) Choice {
		return Choice{Device: DeviceIWARP, Why: fmt.Sprintf("the adapter in software, because: %v", err)}
	}
	if !ibverbs.Built {
		return software(fmt.Errorf("this program was built without -tags ibverbs"))
	}
	if err != nil {
		return software(err)
	}
	devs, err := ibverbs.Devices()
	if err != nil {
		return software(err)
	}
	m, err := ibverbs.Find(devs, ip)
	if err != nil {
		return software(err)
	}
	d, err := ibverbs.Open(ibverbs.Config{Device: m.Device, Addr: ip.String()})
	if err == nil {
		err = d.Close()
	}
	if err != nil {
		return software(err)
	}
	return Choice{Device: m.Device, Addr: ip.String(), Why: m.Why}
}

// localIP is the address of this machine that hostport is, or is reached from.
func localIP(hostport string, local bool) (netip.Addr, error) {
	host, port, err := net.SplitHostPort(hostport)
	if err != nil {
		return netip.Addr{}, err
	}
	if !local {
		c, err := net.Dial("udp", net.JoinHostPort(host, port)) // sends nothing
		if err != nil {
			return netip.Addr{}, err
		}
		defer func() { _ = c.Close() }() // it was only asked for its address
		return c.LocalAddr().(*net.UDPAddr).AddrPort().Addr().Unmap(), nil
	}
	a, err := net.ResolveIPAddr("ip", host)
	if err != nil {
		return netip.Addr{}, err
	}
	ip, ok := netip.AddrFromSlice(a.IP)
	if !ok || ip.IsUnspecified() {
		return netip.Addr{}, fmt.Errorf("%q is not the address of one device: name the one to listen on", host)
	}
	return ip.Unmap().WithZone(a.Zone), nil
}
