package doctor

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// system looks at what Linux has for RDMA. needed: a device is to be used.
func (r *Report) system(needed bool) {
	var u unix.Utsname
	if unix.Uname(&u) == nil {
		r.fact("kernel", "%s", unix.ByteSliceToString(u.Release[:]))
	}
	if mode := line("/sys/module/ib_core/parameters/netns_mode"); mode != "" {
		what := "exclusive: a device belongs to one network namespace (rdma dev set DEV netns NAME moves it)"
		if mode == "Y" {
			what = "shared: every network namespace sees every device"
		}
		r.fact("RDMA netns", "%s", what)
	}
	if len(r.devices) > 0 {
		r.files(needed)
	}
	r.memory()
}

// files tries the character devices that the provider opens.
func (r *Report) files(needed bool) {
	const udev = "run as a member of the group that owns it, or add a udev rule; in a container, pass the device in"
	var open []string
	verbsFiles, _ := filepath.Glob("/dev/infiniband/uverbs*") // the pattern is well formed
	if len(verbsFiles) == 0 {
		r.problem(needed, "there is no /dev/infiniband/uverbs*", "modprobe ib_uverbs; in a container, pass /dev/infiniband in")
	}
	for _, name := range append(verbsFiles, "/dev/infiniband/rdma_cm") {
		f, err := os.OpenFile(name, os.O_RDWR, 0)
		switch {
		case err == nil:
			open = append(open, filepath.Base(name))
			_ = f.Close() // nothing was done with it
		case os.IsNotExist(err):
			r.problem(needed, "there is no "+name, "modprobe rdma_ucm; in a container, pass /dev/infiniband in")
		default:
			r.problem(needed, err.Error(), udev)
		}
	}
	r.fact("files", "usable in /dev/infiniband: %s", strings.Join(open, " "))
}

// memory looks at what pinned and huge memory there may be. The arena itself is compared when the device is opened.
func (r *Report) memory() {
	var lim unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_MEMLOCK, &lim) == nil {
		s := fmt.Sprintf("%d bytes", lim.Cur)
		if lim.Cur == unix.RLIM_INFINITY {
			s = "no limit"
		}
		r.fact("memlock", "%s, for an arena of %d bytes", s, r.cfg.Arena)
	}
	const huge = "/sys/kernel/mm/hugepages/hugepages-2048kB/"
	transparent := line("/sys/kernel/mm/transparent_hugepage/enabled")
	r.fact("huge pages", "of 2 MiB: %s, of which %s are free; transparent: %s", or(line(huge+"nr_hugepages"), "0"),
		or(line(huge+"free_hugepages"), "0"), or(transparent, "none"))
	if strings.Contains(transparent, "[never]") && or(line(huge+"free_hugepages"), "0") == "0" {
		r.problem(false, "there are no huge pages: translating addresses costs the adapter more",
			"echo madvise > /sys/kernel/mm/transparent_hugepage/enabled, or reserve some: sysctl vm.nr_hugepages=N")
	}
}

func line(name string) string {
	b, err := os.ReadFile(name)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

func or(s, other string) string {
	if s == "" {
		return other
	}
	return s
}
