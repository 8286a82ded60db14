package buffer

import (
	"errors"
	"fmt"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/argonaut-rdma/argonaut/verbs"
)

func TestPreflight(t *testing.T) {
	cfg, err := Config{Budget: 256 << 20, RegionSize: 64 << 20}.withDefaults()
	require.NoError(t, err)
	pins := verbs.Caps{Name: "mlx5_0", Provider: "ibverbs", Pins: true, PageSize: 4096}
	soft := pins
	soft.Provider, soft.Name = "iwarp", "iwarp"
	for name, c := range map[string]struct {
		caps verbs.Caps
		sys  limits
		want error
		err  *LimitError
		says []string
	}{
		"does not pin":      {caps: verbs.Caps{}, sys: limits{known: true}},
		"enough":            {caps: pins, sys: limits{known: true, memlock: 256 << 20}},
		"unlimited":         {caps: pins, sys: limits{known: true, memlock: unlimited, pinned: 1 << 62}},
		"CAP_IPC_LOCK":      {caps: pins, sys: limits{known: true, lifted: true}},
		"unknown":           {caps: pins, sys: limits{}},
		"mlock is not that": {caps: pins, sys: limits{known: true, memlock: 256 << 20, locked: 1}},
		"pins are not that": {caps: soft, sys: limits{known: true, memlock: 256 << 20, pinned: 1}},
		"memlock": {
			caps: pins, sys: limits{known: true, memlock: 8 << 20}, want: verbs.ErrMemlock,
			err:  &LimitError{Need: 256 << 20, Allowed: 8 << 20},
			says: []string{"RLIMIT_MEMLOCK: need 268435456 bytes, allowed are 8388608", "LimitMEMLOCK=268435456", "ulimit -l 262144`", "CAP_IPC_LOCK", "initial user namespace", "lower Config.Budget"},
		},
		"memlock of which some is used": {
			caps: soft, sys: limits{known: true, memlock: 256 << 20, locked: 1 << 20}, want: verbs.ErrMemlock,
			err:  &LimitError{Need: 257 << 20, Used: 1 << 20, Allowed: 256 << 20},
			says: []string{"need 269484032 bytes (1048576 of them are used already)", "LimitMEMLOCK=269484032"},
		},
		"MaxMRSize": {
			caps: verbs.Caps{Name: "x", MaxMRSize: 32 << 20}, want: verbs.ErrLimit,
			err:  &LimitError{Need: 64 << 20, Allowed: 32 << 20},
			says: []string{"MaxMRSize of x: need 67108864 bytes, allowed are 33554432: set Config.RegionSize to a power of two of at most 33554432"},
		},
		"MaxMR": {
			caps: verbs.Caps{Name: "x", MaxMR: 3}, want: verbs.ErrLimit, err: &LimitError{Need: 4, Allowed: 3},
			says: []string{"MaxMR of x: need 4 regions, allowed are 3: raise Config.RegionSize, or lower Config.Budget"},
		},
		"MaxPages": {
			caps: verbs.Caps{Name: "x", MaxPages: 65535, PageSize: 4096}, want: verbs.ErrLimit, err: &LimitError{Need: 65536, Allowed: 65535},
			says: []string{"MaxPages of x: need 65536 pages, allowed are 65535: lower Config.Budget to 268431360 bytes"},
		},
	} {
		err := preflight(cfg, c.caps, c.sys)
		if c.want == nil {
			require.NoError(t, err, name)
			continue
		}
		require.ErrorIs(t, err, c.want, name)
		var l *LimitError
		require.ErrorAs(t, err, &l)
		require.Equal(t, []uint64{c.err.Need, c.err.Used, c.err.Allowed}, []uint64{l.Need, l.Used, l.Allowed}, name)
		for _, s := range c.says {
			require.ErrorContains(t, err, s, name)
		}
	}
	require.ErrorIs(t, Preflight(Config{Budget: -1}, pins), ErrInvalid)
	require.NoError(t, Preflight(Config{}, verbs.Caps{}))
}

func TestRegistrationErrors(t *testing.T) {
	cfg, err := Config{Budget: 1 << 20}.withDefaults()
	require.NoError(t, err)
	err = registrationError(cfg.Budget, cfg.Budget, verbs.Caps{}, fmt.Errorf("register: %w", verbs.ErrMemlock))
	require.ErrorIs(t, err, verbs.ErrMemlock)
	var l *LimitError
	require.ErrorAs(t, err, &l)
	require.EqualValues(t, 1<<20, l.Need-l.Used)
	broken := errors.New("broken")
	err = registrationError(cfg.Budget, cfg.Budget, verbs.Caps{Name: "x"}, broken)
	require.ErrorIs(t, err, broken)
	require.ErrorContains(t, err, "register 1048576 bytes, 1048576 in all, on x")
}

// A table of slots that the machine could not hold is refused, not made.
func TestTableOfSlots(t *testing.T) {
	var limit *LimitError
	cfg := Config{Budget: 1 << 51, Initial: 1 << 20, NoHugePages: true, Classes: []int{1 << 20}}
	_, err := New(cfg)
	if runtime.GOOS == "linux" {
		require.ErrorAs(t, err, &limit)
		require.Contains(t, limit.Limit, "memory")
		require.Equal(t, uint64(1<<31*24), limit.Need)
	}
	cfg, err = cfg.withDefaults()
	require.NoError(t, err)
	require.ErrorIs(t, preflight(cfg, verbs.Caps{}, limits{ram: 8 << 30}), verbs.ErrLimit)
	require.NoError(t, (&limits{}).holds(cfg), "nothing is known")
}
