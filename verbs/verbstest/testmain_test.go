package verbstest

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/argonaut-rdma/argonaut/verbs"
	"github.com/argonaut-rdma/argonaut/verbs/iwarp"
)

func TestMain(m *testing.M) { Main(m) }

// recorder is a testing.TB that fails nobody.
type recorder struct {
	testing.TB
	errs     []string
	cleanups []func()
}

func (r *recorder) Errorf(format string, args ...any) {
	r.errs = append(r.errs, fmt.Sprintf(format, args...))
}
func (r *recorder) Cleanup(f func()) { r.cleanups = append(r.cleanups, f) }

func (r *recorder) end() []string {
	for _, f := range r.cleanups {
		f()
	}
	return r.errs
}

func open(t *testing.T) *verbs.Device {
	d, err := iwarp.Open(iwarp.Config{})
	require.NoError(t, err)
	return d
}

func TestNoLeaksTellsWhatIsLeft(t *testing.T) {
	old := open(t)
	before, err := old.AllocPD()
	require.NoError(t, err)

	r := &recorder{TB: t}
	NoLeaks(r)
	d := open(t)
	pd, err := d.AllocPD()
	require.NoError(t, err)
	mr, err := before.RegMR(make([]byte, 1), 0)
	require.NoError(t, err)
	errs := r.end()
	require.Len(t, errs, 3)
	require.Contains(t, errs[0], "MR #2")
	require.Contains(t, errs[1], "device iwarp was not closed")
	require.Contains(t, errs[2], "PD #1")
	require.Contains(t, errs[2], "TestNoLeaksTellsWhatIsLeft")
	s := left(nil)
	require.Contains(t, s, "goroutines are left")
	require.Contains(t, s, "device iwarp was not closed")
	require.Contains(t, s, "TestNoLeaksTellsWhatIsLeft")

	r = &recorder{TB: t}
	NoLeaks(r)
	require.NoError(t, mr.Deregister())
	require.NoError(t, pd.Close())
	require.NoError(t, d.Close())
	require.Empty(t, r.end())
	require.NoError(t, before.Close())
	require.NoError(t, old.Close())
	require.Empty(t, left(nil))
}

func TestFailKth(t *testing.T) {
	s := FailKth(1, verbs.ErrLimit, func(o Op) bool { return o == CallAllocPD })
	d, err := iwarp.OpenDriver(iwarp.Config{})
	require.NoError(t, err)
	f := NewFaulty(d, s)
	a, err := f.AllocPD()
	require.NoError(t, err)
	_, err = f.AllocPD()
	require.ErrorIs(t, err, verbs.ErrLimit)
	require.ErrorContains(t, err, "AllocPD failed by script")
	require.Equal(t, 1, s.Fired())
	require.Equal(t, 2, s.Calls(CallAllocPD))
	b, err := f.AllocPD()
	require.NoError(t, err)
	require.NoError(t, a.Dealloc())
	require.NoError(t, b.Dealloc())
	require.NoError(t, f.Close())
}

func TestFailEachEnds(t *testing.T) {
	var failed []string
	FailEach(t, verbs.ErrLimit, nil, func(t *testing.T, s *Script) {
		d, err := iwarp.OpenDriver(iwarp.Config{})
		require.NoError(t, err)
		f := NewFaulty(d, s)
		pd, err := f.AllocPD()
		if err != nil {
			failed = append(failed, "AllocPD")
		} else if err := pd.Dealloc(); err != nil {
			failed = append(failed, "DeallocPD")
			require.NoError(t, pd.Dealloc())
		}
		if err := f.Close(); err != nil {
			failed = append(failed, "Close")
			require.NoError(t, f.Close())
		}
	})
	require.Equal(t, []string{"AllocPD", "DeallocPD", "Close"}, failed)
}

func TestOpNames(t *testing.T) {
	seen := map[string]bool{}
	for o := range opCount {
		require.NotEmpty(t, o.String())
		require.False(t, seen[o.String()])
		seen[o.String()] = true
	}
	require.Equal(t, "200", Op(200).String())
}
