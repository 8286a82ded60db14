package buffer

import (
	"bytes"
	"context"
	"os"
	"strings"
	"sync"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/argonaut-rdma/argonaut/test/env"
	"github.com/argonaut-rdma/argonaut/verbs"
	"github.com/argonaut-rdma/argonaut/verbs/driver"
	"github.com/argonaut-rdma/argonaut/verbs/verbstest"
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

// replace puts v in the place of a system call for the time of the test.
func replace[T any](t *testing.T, call *T, v T) {
	old := *call
	*call = v
	t.Cleanup(func() { *call = old })
}

// noPopulate is a kernel before Linux 5.14.
func noPopulate(b []byte, advice int) error {
	if advice == unix.MADV_POPULATE_WRITE {
		return unix.EINVAL
	}
	return unix.Madvise(b, advice)
}

// Attaching to a device that pins touches what is held, and leaves it as it is.
func TestTouchKeepsWhatIsHeld(t *testing.T) {
	replace(t, &sysMadvise, noPopulate)
	pd := openPD(t, noConfig, &verbstest.Script{Caps: func(c *driver.Caps) { c.Pins = true }})
	a := newArena(t, Config{Budget: 1 << 20, Reserve: -1})
	b := mustGet(t, a, 1<<20, Anonymous)
	want := bytes.Repeat([]byte{0xab}, 1<<20)
	copy(b.Bytes(), want)
	require.NoError(t, a.Attach(context.Background(), pd))
	require.True(t, bytes.Equal(want, b.Bytes()))
	b.Release()
	require.NoError(t, a.Detach(context.Background(), pd))
}

func TestPrefaultWithoutPopulate(t *testing.T) {
	replace(t, &sysMadvise, noPopulate)
	r := new(region)
	require.NoError(t, (&Config{NoHugePages: true}).mapMemory(t.Context(), r, 4<<20, 0))
	defer func() { require.NoError(t, r.unmap()) }()
	require.NoError(t, prefaultAll(t.Context(), Config{}, []*region{r}))
	require.Contains(t, vma(t, &r.mem[0]), "Rss:                4096 kB")
}

// pool2M is the system's pool of 2 MiB pages, made of smaller ones.
type pool2M struct {
	mapped, unmapped unsafe.Pointer
	size             uintptr
	policies         sync.Map // when it was touched
}

// newPool replaces the system's pool by one whose pages are touched with the
// result touch.
func newPool(t *testing.T, touch error) *pool2M {
	p := new(pool2M)
	replace(t, &sysMmap, func(fd int, off int64, addr unsafe.Pointer, n uintptr, prot, flags int) (unsafe.Pointer, error) {
		ofPool := flags&unix.MAP_HUGETLB != 0
		m, err := unix.MmapPtr(fd, off, addr, n, prot, flags&^(unix.MAP_HUGETLB|unix.MAP_HUGE_2MB))
		if ofPool {
			p.mapped, p.size = m, n
		}
		return m, err
	})
	replace(t, &sysMunmap, func(m unsafe.Pointer, n uintptr) error {
		if m == p.mapped && n == p.size {
			p.unmapped, p.mapped = m, nil
		}
		return unix.MunmapPtr(m, n)
	})
	replace(t, &sysMadvise, func(b []byte, advice int) error {
		at := uintptr(unsafe.Pointer(unsafe.SliceData(b))) - uintptr(p.mapped)
		if advice != unix.MADV_POPULATE_WRITE || p.mapped == nil || at >= p.size {
			return unix.Madvise(b, advice)
		}
		mode, _, _ := getPolicy(unsafe.Pointer(unsafe.SliceData(b)))
		p.policies.Store(mode, true)
		if touch != nil {
			return touch
		}
		return unix.Madvise(b, advice)
	})
	return p
}

// Pages that the pool has but does not give are not used: the arena goes on
// without.
func TestPoolGivesNothing(t *testing.T) {
	needPolicies(t)
	for _, err := range []error{unix.EFAULT, unix.EINVAL} { // the latter where one can not know
		for _, nodes := range [][]int{nil, {0}} {
			p := newPool(t, err)
			r := new(region)
			cfg := Config{NUMANodes: nodes}
			require.NoError(t, cfg.mapMemory(t.Context(), r, 4<<20, 0))
			require.NotNil(t, p.unmapped)
			require.Nil(t, p.mapped)
			require.NotEqual(t, backHugeTLB, r.backing)
			require.NoError(t, prefaultAll(t.Context(), cfg, []*region{r}))
			require.NoError(t, r.unmap())
		}
	}
}

// Pages of the pool are touched when they are mapped, and come from the nodes
// that are asked for.
func TestPoolIsTouched(t *testing.T) {
	needPolicies(t)
	p := newPool(t, nil)
	r := new(region)
	cfg := Config{NUMANodes: []int{0}}
	require.NoError(t, cfg.mapMemory(t.Context(), r, 4<<20, 0))
	require.Equal(t, backHugeTLB, r.backing)
	require.Contains(t, vma(t, &r.mem[0]), "Rss:                4096 kB")
	var modes []any
	p.policies.Range(func(mode, _ any) bool {
		modes = append(modes, mode)
		return true
	})
	require.Equal(t, []any{int32(mpolBind)}, modes)
	require.NoError(t, r.unmap())
	require.ErrorIs(t, cfg.mapMemory(ended(), new(region), 4<<20, 0), context.Canceled)
	require.Nil(t, p.mapped)
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
