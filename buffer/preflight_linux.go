package buffer

import (
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// systemLimits reads what the process may pin and has pinned.
func systemLimits() limits {
	var l limits
	var r unix.Rlimit
	status, err := os.ReadFile("/proc/self/status")
	known := err == nil && unix.Getrlimit(unix.RLIMIT_MEMLOCK, &r) == nil
	if known {
		l = parseStatus(string(status))
	}
	l.cgroup, l.cgroupUsed, l.cgroupFile = cgroupMemory()
	var info unix.Sysinfo_t
	if unix.Sysinfo(&info) == nil {
		l.ram = uint64(info.Totalram) * uint64(info.Unit) //nolint:unconvert // Totalram has 32 bits on some
	}
	if !known {
		return l
	}
	l.known, l.memlock = true, r.Cur
	if l.lifted {
		users, err := os.ReadFile("/proc/self/uid_map")
		l.lifted = err == nil && initialUsers(string(users))
	}
	return l
}

// parseStatus reads the fields of /proc/self/status (proc_pid_status(5)).
func parseStatus(status string) limits {
	var l limits
	for line := range strings.Lines(status) {
		name, value, ok := strings.Cut(line, ":")
		f := strings.Fields(value)
		if !ok || len(f) == 0 {
			continue
		}
		switch name {
		case "CapEff":
			caps, err := strconv.ParseUint(f[0], 16, 64)
			l.lifted = err == nil && caps>>unix.CAP_IPC_LOCK&1 != 0
		case "VmPin", "VmLck":
			kb, err := strconv.ParseUint(f[0], 10, 54)
			if err != nil {
				continue
			}
			if name == "VmPin" {
				l.pinned = kb << 10
			} else {
				l.locked = kb << 10
			}
		}
	}
	return l
}

// initialUsers reports whether a uid_map is that of the initial user namespace:
// everybody is mapped to himself (user_namespaces(7)).
func initialUsers(uidMap string) bool {
	f := strings.Fields(uidMap)
	return len(f) == 3 && f[0] == "0" && f[1] == "0" && f[2] == "4294967295"
}
