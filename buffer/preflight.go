package buffer

import (
	"errors"
	"fmt"
	"unsafe"

	"github.com/argonaut-rdma/argonaut/verbs"
)

// limits is what the system lets the process pin.
type limits struct {
	known   bool   // the rest holds
	memlock uint64 // RLIMIT_MEMLOCK, bytes
	lifted  bool   // CAP_IPC_LOCK in the initial user namespace
	pinned  uint64 // bytes pinned by kernel drivers (VmPin)
	locked  uint64 // bytes locked by mlock (VmLck)

	ram        uint64 // bytes of the machine; 0: not known
	cgroup     uint64 // bytes that the cgroup may use; 0: no limit
	cgroupUsed uint64
	cgroupFile string
}

const unlimited = ^uint64(0)

// Preflight says whether an arena of cfg can be attached to a device with these
// capabilities: enough regions, large enough, enough translations, and where
// registration pins, enough lockable memory. It takes nothing. Attach does the
// same. The error is ErrInvalid, ErrNotSupported or a *LimitError, which names
// the exact number and what to do.
func Preflight(cfg Config, caps verbs.Caps) error {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return err
	}
	return preflight(cfg, caps, systemLimits())
}

func preflight(cfg Config, caps verbs.Caps, sys limits) error {
	if err := sys.holds(cfg); err != nil {
		return err
	}
	budget := uint64(cfg.Budget)
	regions := (budget + uint64(cfg.RegionSize) - 1) / uint64(cfg.RegionSize)
	if region := min(budget, uint64(cfg.RegionSize)); caps.MaxMRSize != 0 && region > caps.MaxMRSize {
		return &LimitError{
			Limit: "MaxMRSize of " + caps.Name, Need: region, Allowed: caps.MaxMRSize, Unit: "bytes", Err: verbs.ErrLimit,
			Remedy: fmt.Sprintf("set Config.RegionSize to a power of two of at most %d", caps.MaxMRSize),
		}
	}
	if caps.MaxMR != 0 && regions > uint64(caps.MaxMR) {
		return &LimitError{
			Limit: "MaxMR of " + caps.Name, Need: regions, Allowed: uint64(caps.MaxMR), Unit: "regions", Err: verbs.ErrLimit,
			Remedy: "raise Config.RegionSize, or lower Config.Budget",
		}
	}
	if page := uint64(max(caps.PageSize, Page)); caps.MaxPages != 0 && (budget+page-1)/page > caps.MaxPages {
		return &LimitError{
			Limit: "MaxPages of " + caps.Name, Need: (budget + page - 1) / page, Allowed: caps.MaxPages, Unit: "pages", Err: verbs.ErrLimit,
			Remedy: fmt.Sprintf("lower Config.Budget to %d bytes", caps.MaxPages*page),
		}
	}
	if caps.Pins {
		if err := sys.fits(cfg.Budget); err != nil {
			return err
		}
	}
	if !caps.Pins || !sys.known || sys.lifted || sys.memlock == unlimited {
		return nil
	}
	// Kernel drivers count what they pin apart from mlock, once per PD.
	used := sys.pinned
	if caps.Provider == "iwarp" {
		used = sys.locked
	}
	if budget > sys.memlock || used > sys.memlock-budget {
		return memlockError(used+budget, used, sys.memlock, verbs.ErrMemlock)
	}
	return nil
}

// slotSize is the bytes of Go memory per slot of the smallest class.
const slotSize = uint64(unsafe.Sizeof(slot{}))

// holds says whether the table of the budget's slots, which is made at once,
// leaves most of the machine's memory to what it is for.
func (l *limits) holds(cfg Config) error {
	table := uint64(cfg.Budget) / uint64(cfg.Classes[0]) * slotSize
	if l.ram == 0 || table <= l.ram/4 {
		return nil
	}
	return &LimitError{
		Limit: "a quarter of the machine's memory", Need: table, Allowed: l.ram / 4, Unit: "bytes of Go memory for the table of slots", Err: verbs.ErrLimit,
		Remedy: fmt.Sprintf("lower Config.Budget, or raise the smallest of Config.Classes: each slot of %d bytes that the budget may have takes %d",
			cfg.Classes[0], slotSize),
	}
}

// fits says whether budget bytes, all in use, are within the cgroup's limit.
func (l *limits) fits(budget int64) error {
	if l.cgroup == 0 || uint64(budget) <= l.cgroup {
		return nil
	}
	return &LimitError{
		Limit: l.cgroupFile, Need: uint64(budget), Allowed: l.cgroup, Unit: "bytes", Err: verbs.ErrLimit,
		Remedy: fmt.Sprintf("raise the memory limit of the container or unit (MemoryMax=, resources.limits.memory) above %d with room for the "+
			"rest of the process, or lower Config.Budget", budget),
	}
}

func memlockError(need, used, allowed uint64, err error) error {
	return &LimitError{
		Limit: "RLIMIT_MEMLOCK", Need: need, Used: used, Allowed: allowed, Unit: "bytes", Err: err,
		Remedy: fmt.Sprintf("set LimitMEMLOCK=%d in the systemd unit, or `ulimit -l %d`, or a memlock line in /etc/security/limits.conf, "+
			"or give the process CAP_IPC_LOCK (it counts in the initial user namespace only), or lower Config.Budget",
			need, (need+1023)/1024),
	}
}

// registrationError adds the numbers to an error of the device that preflight
// did not foresee: size bytes were to be registered, of total.
func registrationError(size, total int64, caps verbs.Caps, err error) error {
	if errors.Is(err, verbs.ErrMemlock) {
		sys := systemLimits()
		used := sys.pinned
		if caps.Provider == "iwarp" {
			used = sys.locked
		}
		return memlockError(used+uint64(total), used, sys.memlock, err)
	}
	return fmt.Errorf("register %d bytes, %d in all, on %s: %w", size, total, caps.Name, err)
}

// mapError adds the numbers to the system's refusal to map size bytes, when have
// of budget are mapped.
func mapError(budget, have, size int64, err error) error {
	err = fmt.Errorf("map %d bytes: %w: %w", size, err, verbs.ErrLimit)
	if used, limit := mapCounts(); limit > 0 && used+2 >= limit {
		return &LimitError{
			Limit: "vm.max_map_count", Unit: "mappings", Need: used + 2, Used: used, Allowed: limit, Err: err,
			Remedy: fmt.Sprintf("sysctl vm.max_map_count=%d, or raise Config.RegionSize so that there are fewer regions", 2*limit),
		}
	}
	return &LimitError{
		Limit: "address space (RLIMIT_AS, vm.overcommit_memory)", Unit: "bytes",
		Need: uint64(budget), Used: uint64(have), Remedy: "lower Config.Budget, or raise the limit", Err: err,
	}
}

// touchError adds the numbers to a failure to touch total bytes.
func touchError(total int64, err error) error {
	limit, used, file := cgroupMemory()
	e := &LimitError{
		Limit: "memory of the machine", Unit: "bytes", Need: uint64(total),
		Remedy: "lower Config.Budget, or give the machine or the NUMA nodes more memory", Err: fmt.Errorf("touch memory: %w: %w", err, verbs.ErrLimit),
	}
	if limit > 0 && used+uint64(total) > limit {
		e.Limit, e.Need, e.Used, e.Allowed = file, used+uint64(total), used, limit
		e.Remedy = "raise the memory limit of the container or unit, or lower Config.Budget"
	}
	return e
}

// Error names the numbers and the remedy.
func (e *LimitError) Error() string {
	s := fmt.Sprintf("buffer: %s: need %d %s", e.Limit, e.Need, e.Unit)
	if e.Used > 0 {
		s += fmt.Sprintf(" (%d of them are used already)", e.Used)
	}
	if e.Allowed > 0 {
		s += fmt.Sprintf(", allowed are %d", e.Allowed)
	}
	s += ": " + e.Remedy
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	return s
}
