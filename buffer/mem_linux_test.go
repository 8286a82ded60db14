package buffer

import (
	"os"
	"strings"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/argonaut-rdma/argonaut/test/env"
	"github.com/argonaut-rdma/argonaut/verbs"
)

// vma is what /proc/self/smaps says of the mapping that holds p.
func vma(t *testing.T, p *byte) string {
	t.Helper()
	b, err := os.ReadFile("/proc/self/smaps")
	require.NoError(t, err)
	addr := uint64(uintptr(unsafe.Pointer(p)))
	var found bool
	var text []string
	for line := range strings.Lines(string(b)) {
		if lo, hi, ok := bounds(line); ok {
			found = lo <= addr && addr < hi
		}
		if found {
			text = append(text, line)
		}
	}
	return strings.Join(text, "")
}

func bounds(line string) (lo, hi uint64, ok bool) {
	head, _, _ := strings.Cut(line, " ")
	l, h, ok := strings.Cut(head, "-")
	if !ok {
		return 0, 0, false
	}
	for _, x := range []struct {
		s string
		v *uint64
	}{{l, &lo}, {h, &hi}} {
		for _, d := range x.s {
			i := strings.IndexRune("0123456789abcdef", d)
			if i < 0 {
				return 0, 0, false
			}
			*x.v = *x.v<<4 | uint64(i)
		}
	}
	return lo, hi, true
}

func TestMappedMemory(t *testing.T) {
	if raceBuild {
		t.Skip("race builds have their memory on the Go heap")
	}
	for _, c := range []struct {
		cfg   Config
		flags []string
	}{
		{Config{Budget: 8 << 20, Prefault: true}, []string{" dd "}},
		{Config{Budget: 8 << 20, NoHugePages: true, Prefault: true}, []string{" dd "}},
	} {
		a := newArena(t, c.cfg)
		b := mustGet(t, a, 1<<20, Anonymous)
		m := vma(t, &b.Bytes()[0])
		var flags string
		for line := range strings.Lines(m) {
			if rest, ok := strings.CutPrefix(line, "VmFlags:"); ok {
				flags = rest
			}
		}
		require.Contains(t, flags, " dd ", "the memory is not in core dumps")
		if touched := "8192 kB"; a.Stats().Backing == backHugeTLB { // which is not counted as resident
			require.Contains(t, m, "Private_Hugetlb:    "+touched)
		} else {
			require.Contains(t, m, "Rss:                "+touched)
		}
		switch got := a.Stats().Backing; got {
		case backTHP:
			require.False(t, c.cfg.NoHugePages)
			require.Contains(t, flags, " hg ")
			require.Zero(t, uintptr(a.regions[0].base)%hugePage)
		case backHugeTLB:
			require.False(t, c.cfg.NoHugePages)
			require.Contains(t, flags, " ht ")
		default:
			require.Equal(t, backPages, got)
			require.NotContains(t, flags, " hg ")
		}
		t.Logf("%s", a.Stats().Backing)
		b.Release()
	}
}

func TestMapFails(t *testing.T) {
	if raceBuild {
		t.Skip("race builds have their memory on the Go heap")
	}
	env.UserSpace(t, "filling the address space takes minutes under emulation")
	_, err := New(Config{Budget: 1 << 50, Classes: []int{1 << 30}})
	var l *LimitError
	require.ErrorAs(t, err, &l)
	require.ErrorIs(t, err, verbs.ErrLimit)
	switch l.Limit { // whichever comes first
	case "vm.max_map_count":
		require.GreaterOrEqual(t, l.Need, l.Allowed)
		require.ErrorContains(t, err, "sysctl vm.max_map_count=")
	default:
		require.ErrorContains(t, err, "lower Config.Budget, or raise the limit")
	}
}

func TestParseStatus(t *testing.T) {
	const status = "Name:\tx\nVmLck:\t     128 kB\nVmPin:\t      64 kB\nCapEff:\t0000000000004000\n"
	require.Equal(t, limits{lifted: true, pinned: 64 << 10, locked: 128 << 10}, parseStatus(status))
	require.Equal(t, limits{}, parseStatus("CapEff:\t0000003fffffbfff\nVmLck: many kB\nVmPin:\nCap"))
	require.True(t, initialUsers("         0          0 4294967295\n"))
	require.False(t, initialUsers("         0       1000          1\n"))
	require.False(t, initialUsers(""))
	l := systemLimits()
	require.True(t, l.known)
	require.NotZero(t, l.memlock)
}
