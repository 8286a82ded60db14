package doctor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strings"

	"github.com/argonaut-rdma/argonaut/buffer"
	"github.com/argonaut-rdma/argonaut/examples/storage-node/internal/fabric"
	"github.com/argonaut-rdma/argonaut/verbs"
	"github.com/argonaut-rdma/argonaut/verbs/ibverbs"
	"github.com/argonaut-rdma/argonaut/verbs/iwarp"
)

// Config says what the machine is wanted for.
type Config struct {
	Device string // as for fabric.Choose
	Addr   string // address to listen on, "host:port" or host; empty: all of the machine's are looked at
	Arena  int64  // bytes
	Pin    bool   // with the adapter in software
}

// Report is what was found.
type Report struct {
	cfg      Config
	devices  []ibverbs.DeviceInfo
	choice   fabric.Choice
	facts    []fact
	addrs    []fact
	problems []Problem
}

// fact is a line of the report.
type fact struct{ name, value string }

// Problem stands in the way.
type Problem struct {
	What, Remedy string
	Fatal        bool // what was asked for can not be used
}

// Usable reports whether what was asked for can be used.
func (r *Report) Usable() bool {
	for _, p := range r.problems {
		if p.Fatal {
			return false
		}
	}
	return true
}

// Choice is the device that would be used.
func (r *Report) Choice() fabric.Choice { return r.choice }

// Problems are what stands in the way, the fatal ones included.
func (r *Report) Problems() []Problem { return r.problems }

func (r *Report) fact(name, format string, a ...any) {
	r.facts = append(r.facts, fact{name, fmt.Sprintf(format, a...)})
}

func (r *Report) problem(fatal bool, what, remedy string) {
	r.problems = append(r.problems, Problem{What: what, Remedy: remedy, Fatal: fatal})
}

// Examine looks. It opens the device that would be used, and closes it again.
func Examine(cfg Config) *Report {
	r := &Report{cfg: cfg}
	listen := cfg.Addr
	if listen == "" {
		listen = "127.0.0.1"
	}
	if _, _, err := net.SplitHostPort(listen); err != nil && !strings.Contains(listen, "://") {
		listen = net.JoinHostPort(strings.Trim(listen, "[]"), "0")
	}
	r.choice = fabric.Choose(cfg.Device, listen, true)
	real := r.choice.Scheme() == "rdma"

	r.fact("system", "%s/%s, %d processors, %s", runtime.GOOS, runtime.GOARCH, runtime.NumCPU(), runtime.Version())
	if ibverbs.Built {
		r.fact("provider", "ibverbs: built in")
	} else {
		r.fact("provider", "ibverbs: not built in; iwarp, the adapter in software, always is")
		_, err := ibverbs.Open(ibverbs.Config{})
		r.problem(real, "this program can not use RDMA devices", remedyOf(err))
	}
	var err error
	if r.devices, err = ibverbs.Devices(); err != nil {
		r.problem(real, "the RDMA devices can not be listed: "+err.Error(), "see whether /sys is mounted and readable")
	}
	if len(r.devices) == 0 {
		r.problem(real, "this machine shows no RDMA device",
			"load the adapter's driver (lspci, dmesg), or make a device in software: rdma link add rxe0 type rxe netdev INTERFACE")
	}
	r.system(real)
	if m := fabric.MemoryLimit(); m.Bytes > 0 {
		r.fact("memory", "%d bytes: %s", m.Bytes, m.Limit)
		if m.CheckArena(cfg.Arena) != nil {
			r.problem(true, fmt.Sprintf("the arena of %d bytes is larger than all memory there is: %s is %d bytes", cfg.Arena, m.Limit, m.Bytes), m.Remedy)
		}
	}
	r.addresses()
	r.device(real)
	return r
}

// remedyOf is what an error of the provider says to do.
func remedyOf(err error) string {
	if err == nil {
		return ""
	}
	_, remedy, ok := strings.Cut(err.Error(), "RDMA devices: ")
	if !ok {
		return err.Error()
	}
	return strings.TrimSuffix(remedy, ": "+verbs.ErrNotSupported.Error())
}

// addresses says which device serves each address.
func (r *Report) addresses() {
	ips, err := resolve(r.cfg.Addr)
	switch {
	case err != nil:
		r.problem(true, fmt.Sprintf("the address %q can not be resolved: %v", r.cfg.Addr, err), "give host:port, a host, or an address that `ip address` lists")
	case len(ips) == 0:
		all, err := net.InterfaceAddrs()
		if err != nil {
			r.problem(false, "the addresses of this machine can not be listed: "+err.Error(), "give one with --addr")
		}
		for _, a := range all {
			if n, ok := a.(*net.IPNet); ok {
				if ip, ok := netip.AddrFromSlice(n.IP); ok {
					ips = append(ips, ip.Unmap())
				}
			}
		}
	}
	if r.cfg.Addr != "" && len(ips) > 0 && !slices.ContainsFunc(ips, ours) {
		r.problem(true, ips[0].String()+" is no address of this machine", "give one that `ip address` lists; a node can not listen elsewhere")
	}
	for _, ip := range ips {
		m, err := ibverbs.Find(r.devices, ip)
		if err != nil {
			why := strings.TrimSuffix(strings.TrimPrefix(err.Error(), "ibverbs: "), ": "+os.ErrNotExist.Error())
			r.addrs = append(r.addrs, fact{ip.String(), "no RDMA device: " + why})
			continue
		}
		r.addrs = append(r.addrs, fact{ip.String(), m.Device + ": " + m.Why})
	}
}

// resolve returns the IP addresses of host:port or host, none for all of this
// machine.
func resolve(addr string) ([]netip.Addr, error) {
	host := strings.Trim(addr, "[]")
	if h, _, err := net.SplitHostPort(addr); err == nil {
		host = h
	}
	if host == "" {
		return nil, nil
	}
	if ip, err := netip.ParseAddr(host); err == nil {
		if ip.IsUnspecified() {
			return nil, nil
		}
		return []netip.Addr{ip}, nil
	}
	names, err := net.DefaultResolver.LookupNetIP(context.Background(), "ip", host)
	for i := range names {
		names[i] = names[i].Unmap()
	}
	return names, err
}

// ours reports whether a node could listen on ip.
func ours(ip netip.Addr) bool {
	l, err := net.Listen("tcp", netip.AddrPortFrom(ip, 0).String())
	if err != nil {
		return false
	}
	_ = l.Close() // nobody has connected
	return true
}

// device opens the device that would be used and compares its limits with the arena.
func (r *Report) device(real bool) {
	var dev *verbs.Device
	var err error
	switch {
	case r.choice.Device == fabric.DeviceTCP:
		return
	case real:
		dev, err = ibverbs.Open(ibverbs.Config{Device: r.choice.Device, Addr: r.choice.Addr})
	default:
		dev, err = iwarp.Open(iwarp.Config{Pin: r.cfg.Pin})
	}
	if err != nil {
		if ibverbs.Built || !real {
			r.problem(true, fmt.Sprintf("device %s can not be opened: %v", r.choice.Device, err), openRemedy(err))
		}
		// What the arena needs of the machine does not depend on the device: whoever mends the one knows of the other.
		r.arena(verbs.Caps{Provider: "ibverbs", Pins: real || r.cfg.Pin})
		return
	}
	caps := dev.Caps()
	r.fact("device", "%s: %v, largest region %d bytes, %d regions, %d queue pairs, shared receive queues %v, windows that confine %v",
		caps.Name, caps.Transport, caps.MaxMRSize, caps.MaxMR, caps.MaxQP, caps.SRQ, caps.MWConfines)
	r.arena(caps)
	if err := dev.Close(); err != nil {
		r.problem(true, fmt.Sprintf("device %s can not be closed: %v", r.choice.Device, err), "see what the kernel's log says of it (dmesg)")
	}
}

// arena compares the arena with what the machine and a device allow.
func (r *Report) arena(caps verbs.Caps) {
	err := buffer.Preflight(buffer.Config{Budget: r.cfg.Arena}, caps)
	var limit *buffer.LimitError
	switch {
	case err == nil:
	case errors.As(err, &limit):
		r.problem(true, fmt.Sprintf("the arena of %d bytes: %s allows %d %s, %d are needed",
			r.cfg.Arena, limit.Limit, limit.Allowed, limit.Unit, limit.Need), limit.Remedy)
	default:
		r.problem(true, fmt.Sprintf("an arena of %d bytes can not be made: %v", r.cfg.Arena, err), "choose another size (--arena)")
	}
}

// openRemedy is what to do about a device that can not be opened.
func openRemedy(err error) string {
	switch {
	case errors.Is(err, os.ErrPermission):
		return "run as a member of the group that owns /dev/infiniband/uverbs* and /dev/infiniband/rdma_cm, or add a udev rule; " +
			"in a container, pass the devices in and let its cgroup use them"
	case errors.Is(err, os.ErrNotExist):
		return "name a device that is listed above, or an address that one serves"
	case errors.Is(err, verbs.ErrInvalid):
		return "give an address that the device serves (listed above), or let --device auto find the one that serves the address"
	case errors.Is(err, verbs.ErrLimit), errors.Is(err, verbs.ErrMemlock):
		return "see which limit it is: ulimit -l, the rdma controller of the cgroup (rdma.max), what other processes hold (rdma resource show)"
	case errors.Is(err, verbs.ErrDeviceLost):
		return "see what the kernel's log says of it (dmesg); load its driver again"
	}
	return "see what the kernel's log says of it (dmesg)"
}

// Print writes the report.
func (r *Report) Print(w io.Writer) error {
	p := &printer{w: w}
	for _, f := range r.facts {
		p.line("%-12s %s", f.name, f.value)
	}
	p.line("\ndevices")
	for _, d := range r.devices {
		kind := "InfiniBand or RoCE"
		if d.IWARP {
			kind = "iWARP"
		}
		p.line("  %s  %s%s", d.Name, kind, prefixed(", firmware ", d.Firmware))
		for _, port := range d.Ports {
			p.line("    port %d  %s, %s%s%s", port.Num, port.State, port.LinkLayer, prefixed(", ", port.Rate),
				prefixed(", ", strings.Join(port.NetDevs, " ")))
			for _, g := range port.GIDs {
				p.line("      GID %-3d %s%s%s", g.Index, g.Addr, prefixed("  ", g.Type), prefixed("  ", g.NetDev))
			}
		}
	}
	if len(r.devices) == 0 {
		p.line("  none")
	}
	p.line("\naddresses")
	for _, a := range r.addrs {
		p.line("  %-24s %s", a.name, a.value)
	}
	p.line("\nchosen       %s: %s", r.choice.Device, r.choice.Why)
	for i, x := range r.problems {
		kind := "note"
		if x.Fatal {
			kind = "PROBLEM"
		}
		p.line("\n%s %d: %s\n  remedy: %s", kind, i+1, x.What, x.Remedy)
	}
	if r.Usable() {
		p.line("\nusable: yes")
	} else {
		p.line("\nusable: NO")
	}
	return p.err
}

func prefixed(prefix, s string) string {
	if s == "" {
		return ""
	}
	return prefix + s
}

// printer keeps the first error.
type printer struct {
	w   io.Writer
	err error
}

func (p *printer) line(format string, a ...any) {
	if p.err == nil {
		_, p.err = fmt.Fprintf(p.w, format+"\n", a...)
	}
}
