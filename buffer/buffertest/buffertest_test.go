package buffertest

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/argonaut-rdma/argonaut/buffer"
)

// record is a test that can fail without failing this one.
type record struct {
	testing.TB
	errs     []string
	cleanups []func()
}

func (r *record) Helper()                   {}
func (r *record) Cleanup(f func())          { r.cleanups = append(r.cleanups, f) }
func (r *record) Errorf(f string, a ...any) { r.errs = append(r.errs, fmt.Sprintf(f, a...)) }
func (r *record) Failed() bool              { return true } // do not wait
func (r *record) end() {
	for _, f := range r.cleanups {
		f()
	}
}

func TestLeakIsFound(t *testing.T) {
	a := New(t, buffer.Config{Budget: 8 << 20})
	old, err := a.Get(context.Background(), 100, buffer.Anonymous)
	require.NoError(t, err)
	r := &record{TB: t}
	NoLeaks(r, a)
	r.end()
	require.Empty(t, r.errs)

	NoLeaks(r, a)
	b, err := a.Get(context.Background(), 100, a.Owner("thief", 0))
	require.NoError(t, err)
	r.end()
	require.Len(t, r.errs, 2, "both cleanups")
	require.Contains(t, r.errs[0], `leaked: "thief" holds 4096 bytes`)
	require.Contains(t, r.errs[0], "TestLeakIsFound")
	b.Release()
	old.Release()
}
