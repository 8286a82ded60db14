package fabric

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strconv"
	"strings"
)

// ErrMemory: an arena is larger than the memory that this process can have.
var ErrMemory = errors.New("more than the memory there is")

// Memory is how much memory this process can have.
type Memory struct {
	Bytes  int64  // 0: not known
	Limit  string // what says so
	Remedy string // for who wants more
}

// CheckArena compares an arena of so many bytes with m. The error matches ErrMemory, and has the remedy.
func (m Memory) CheckArena(arena int64) error {
	if m.Bytes == 0 || arena <= m.Bytes {
		return nil
	}
	return fmt.Errorf("an arena of %d bytes is %w: %s is %d bytes: %s", arena, ErrMemory, m.Limit, m.Bytes, m.Remedy)
}

// memoryIn reads the limits of Linux: MemTotal (proc_meminfo(5)) and the memory.max of the process's control group and
// those above it (cgroup v2, Documentation/admin-guide/cgroup-v2.rst). root is the root directory.
func memoryIn(root fs.FS) Memory {
	read := func(name string) string {
		b, err := fs.ReadFile(root, name)
		if err != nil {
			return ""
		}
		return string(b)
	}
	var m Memory
	for line := range strings.Lines(read("proc/meminfo")) {
		f := strings.Fields(line)
		if len(f) < 2 || f[0] != "MemTotal:" {
			continue
		}
		if kib, err := strconv.ParseInt(f[1], 10, 53); err == nil {
			m = Memory{Bytes: kib << 10, Limit: "MemTotal of /proc/meminfo", Remedy: "make --arena smaller"}
		}
	}
	for line := range strings.Lines(read("proc/self/cgroup")) {
		group, ok := strings.CutPrefix(strings.TrimSpace(line), "0::")
		if !ok {
			continue // of version 1
		}
		// In a container without a namespace of its own the path may begin outside of what is mounted: those are not there.
		for dir := path.Join("/", group); ; dir = path.Dir(dir) {
			name := path.Join("sys/fs/cgroup", dir, "memory.max")
			n, err := strconv.ParseInt(strings.TrimSpace(read(name)), 10, 64) // "max" is no number
			if err == nil && n > 0 && (m.Bytes == 0 || n < m.Bytes) {
				m = Memory{Bytes: n, Limit: "/" + name, Remedy: "make --arena smaller, or give the control group more (systemd: MemoryMax=, containers: --memory)"}
			}
			if dir == "/" {
				break
			}
		}
	}
	return m
}
