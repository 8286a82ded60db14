package buffer

import (
	"errors"
	"fmt"

	"github.com/argonaut-rdma/argonaut/verbs"
)

// limits is what the system lets the process pin.
type limits struct {
	known   bool   // the rest holds
	memlock uint64 // RLIMIT_MEMLOCK, bytes
	lifted  bool   // CAP_IPC_LOCK in the initial user namespace
	pinned  uint64 // bytes pinned by kernel drivers (VmPin)
	locked  uint64 // bytes locked by mlock (VmLck)
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
	return &LimitError{
		Limit: "address space (RLIMIT_AS, vm.overcommit_memory, vm.max_map_count)", Unit: "bytes",
		Need: uint64(budget), Used: uint64(have), Remedy: "lower Config.Budget, or raise the limit",
		Err: fmt.Errorf("map %d bytes: %w", size, err),
	}
}

// touchError adds the numbers to a failure to touch total bytes.
func touchError(total int64, err error) error {
	return fmt.Errorf("buffer: touch %d bytes: %w: the machine or the cgroup (memory.max) has too little memory: lower Config.Budget", total, err)
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
