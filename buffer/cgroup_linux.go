package buffer

import (
	"bytes"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// cgroupMemory is the tightest memory limit of the process's cgroup and those
// above it (cgroups(7), memory controller), 0 if there is none, and what is in
// use there.
func cgroupMemory() (limit, used uint64, file string) {
	self, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return 0, 0, ""
	}
	return cgroupLimit("/sys/fs/cgroup", string(self))
}

// cgroupLimit looks below root for the cgroups that self, as /proc/self/cgroup
// has it, names.
func cgroupLimit(root, self string) (limit, used uint64, file string) {
	for line := range strings.Lines(self) {
		f := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(f) != 3 {
			continue
		}
		dir, maxName, nowName := root, "memory.max", "memory.current"
		switch {
		case f[0] == "0" && f[1] == "":
		case strings.Contains(","+f[1]+",", ",memory,"):
			dir, maxName, nowName = filepath.Join(root, "memory"), "memory.limit_in_bytes", "memory.usage_in_bytes"
		default:
			continue
		}
		for p := path.Clean("/" + f[2]); ; p = path.Dir(p) {
			name := filepath.Join(dir, p, maxName)
			// "max", or nearly 2^63 in version 1, is no limit.
			if n, ok := readNumber(name); ok && n < 1<<62 && (limit == 0 || n < limit) {
				limit, file = n, name
				used, _ = readNumber(filepath.Join(dir, p, nowName))
			}
			if p == "/" {
				break
			}
		}
	}
	return limit, used, file
}

func readNumber(name string) (uint64, bool) {
	b, err := os.ReadFile(name)
	if err != nil {
		return 0, false
	}
	n, err := strconv.ParseUint(strings.TrimSpace(string(b)), 10, 64)
	return n, err == nil
}

// mapCounts are how many mappings the process has and may have
// (vm.max_map_count). It is called when there can be no more: then the Go heap
// can not grow either, so it takes no memory to speak of.
func mapCounts() (used, limit uint64) {
	limit, _ = readNumber("/proc/sys/vm/max_map_count")
	fd, err := unix.Open("/proc/self/maps", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0, 0
	}
	var buf [4096]byte
	for {
		n, err := unix.Read(fd, buf[:])
		if err == unix.EINTR {
			continue
		}
		if n <= 0 {
			break
		}
		used += uint64(bytes.Count(buf[:n], []byte{'\n'}))
	}
	if unix.Close(fd) != nil {
		return 0, 0
	}
	return used, limit
}
