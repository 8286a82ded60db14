package buffer

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/argonaut-rdma/argonaut/verbs"
)

func TestCgroupLimit(t *testing.T) {
	root := t.TempDir()
	put := func(name, value string) {
		name = filepath.Join(root, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(name), 0o755))
		require.NoError(t, os.WriteFile(name, []byte(value+"\n"), 0o600))
	}
	limit, _, _ := cgroupLimit(root, "0::/a/b\n")
	require.Zero(t, limit)
	put("a/b/memory.max", "max")
	put("a/memory.max", "1000000")
	put("a/memory.current", "5000")
	put("memory.max", "2000000")
	limit, used, file := cgroupLimit(root, "0::/a/b\n")
	require.EqualValues(t, 1000000, limit, "the one above is tighter")
	require.EqualValues(t, 5000, used)
	require.Equal(t, filepath.Join(root, "a/memory.max"), file)
	// Version 1.
	put("memory/x/memory.limit_in_bytes", "777")
	put("memory/memory.limit_in_bytes", "9223372036854771712")
	limit, _, _ = cgroupLimit(root, "5:cpu,cpuacct:/x\n4:memory:/x\nrubbish\n")
	require.EqualValues(t, 777, limit)

	l := limits{cgroup: 1 << 20, cgroupFile: "/x/memory.max"}
	require.NoError(t, l.fits(1<<20))
	cfg, err := Config{Budget: 2 << 20}.withDefaults()
	require.NoError(t, err)
	require.NoError(t, preflight(cfg, verbs.Caps{}, l), "what is not pinned need not be there")
	err = preflight(cfg, verbs.Caps{Pins: true}, l)
	var le *LimitError
	require.ErrorAs(t, err, &le)
	require.ErrorIs(t, err, verbs.ErrLimit)
	require.Equal(t, LimitError{Limit: "/x/memory.max", Need: 2 << 20, Allowed: 1 << 20, Unit: "bytes", Err: verbs.ErrLimit, Remedy: le.Remedy}, *le)
	require.ErrorContains(t, err, "raise the memory limit of the container")
}

// Each exhaustion is a *LimitError with numbers and a remedy.
func TestSystemLimitErrors(t *testing.T) {
	cfg := Config{Budget: 1 << 48, NoHugePages: true}
	err := cfg.mapMemory(t.Context(), &region{}, 1<<48, 0)
	var le *LimitError
	require.ErrorAs(t, err, &le, "more than there are addresses")
	require.ErrorIs(t, err, verbs.ErrLimit)
	require.NotEmpty(t, le.Remedy)
	require.NotZero(t, le.Need)
	err = touchError(1<<50, errors.New("no"))
	require.ErrorAs(t, err, &le)
	require.EqualValues(t, 1<<50, le.Need-le.Used)
	used, limit := mapCounts()
	require.Positive(t, used)
	require.Less(t, used, limit)
}
