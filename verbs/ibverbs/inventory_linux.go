package ibverbs

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
)

const sysClass = "sys/class/infiniband" // of the root

func devices() ([]DeviceInfo, error) { return devicesOf(os.DirFS("/")) }

// devicesOf reads the devices below root: see the kernel's
// Documentation/ABI/stable/sysfs-class-infiniband.
func devicesOf(root fs.FS) ([]DeviceInfo, error) {
	entries, err := fs.ReadDir(root, sysClass)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil // the module ib_core is not loaded
	}
	if err != nil {
		return nil, fmt.Errorf("ibverbs: %w", err)
	}
	var devs []DeviceInfo
	for _, e := range entries {
		dir := path.Join(sysClass, e.Name())
		d := DeviceInfo{
			Name:     e.Name(),
			IWARP:    afterColon(line(root, dir, "node_type")) == "RNIC",
			Firmware: line(root, dir, "fw_ver"),
		}
		ports, err := fs.ReadDir(root, path.Join(dir, "ports"))
		if err != nil {
			continue // the device has just gone
		}
		for _, e := range ports {
			if n, err := strconv.Atoi(e.Name()); err == nil {
				d.Ports = append(d.Ports, portOf(root, path.Join(dir, "ports", e.Name()), n))
			}
		}
		slices.SortFunc(d.Ports, func(a, b PortInfo) int { return a.Num - b.Num })
		devs = append(devs, d)
	}
	return devs, nil
}

func portOf(root fs.FS, dir string, n int) PortInfo {
	p := PortInfo{
		Num: n, State: afterColon(line(root, dir, "state")), LinkLayer: line(root, dir, "link_layer"), Rate: line(root, dir, "rate"),
	}
	gids, _ := fs.ReadDir(root, path.Join(dir, "gids")) // none: a port without a table
	for _, e := range gids {
		i, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		a, err := netip.ParseAddr(line(root, dir, "gids", e.Name()))
		if err != nil || a.IsUnspecified() {
			continue // a hole
		}
		// Reading the attributes of an entry that has none is an error.
		g := GIDInfo{
			Index: i, Addr: a,
			Type: line(root, dir, "gid_attrs/types", e.Name()), NetDev: line(root, dir, "gid_attrs/ndevs", e.Name()),
		}
		p.GIDs = append(p.GIDs, g)
		if g.NetDev != "" && !slices.Contains(p.NetDevs, g.NetDev) {
			p.NetDevs = append(p.NetDevs, g.NetDev)
		}
	}
	slices.SortFunc(p.GIDs, func(a, b GIDInfo) int { return a.Index - b.Index })
	return p
}

// line is the content of a file of one line, "" if it can not be read.
func line(root fs.FS, name ...string) string {
	b, err := fs.ReadFile(root, path.Join(name...))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// afterColon is the name in "4: ACTIVE".
func afterColon(s string) string {
	_, name, _ := strings.Cut(s, ":")
	return strings.TrimSpace(name)
}
