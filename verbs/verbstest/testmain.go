package verbstest

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/argonaut-rdma/argonaut/verbs"
)

// Main is the TestMain of a package that uses verbs:
//
//	func TestMain(m *testing.M) { verbstest.Main(m) }
//
// It runs the tests with creation stacks recorded, and fails the run when a
// goroutine or a live verbs object is left afterwards, with the place where it
// was made. opts are of goleak, for goroutines of other packages.
func Main(m *testing.M, opts ...goleak.Option) {
	verbs.TraceStacksByDefault(true)
	code := m.Run()
	if code == 0 {
		if s := left(opts); s != "" {
			_, _ = os.Stderr.WriteString(s)
			code = 1
		}
	}
	os.Exit(code)
}

// left describes what is left, or is empty.
func left(opts []goleak.Option) string {
	var b strings.Builder
	for _, d := range verbs.Devices() {
		fmt.Fprintf(&b, "device %s was not closed\n", d.Name())
		for _, r := range d.Resources() {
			fmt.Fprintf(&b, "  %v is left, made by\n%s", r, r.Stack)
		}
	}
	if err := goleak.Find(opts...); err != nil {
		fmt.Fprintf(&b, "goroutines are left: %v\n", err)
	}
	return b.String()
}

// NoLeaks fails the test if, when it ends, a device that was opened since is
// still open, or one that was open before has objects that it had not. Call it
// first, so that its check comes after the test's own cleanup.
func NoLeaks(t testing.TB) {
	before := map[*verbs.Device]uint64{}
	for _, d := range verbs.Devices() {
		before[d] = 0
		for _, r := range d.Resources() {
			before[d] = max(before[d], r.ID)
		}
	}
	t.Cleanup(func() {
		for _, d := range verbs.Devices() {
			last, old := before[d]
			if !old {
				t.Errorf("device %s was not closed", d.Name())
			}
			for _, r := range d.Resources() {
				if r.ID > last {
					t.Errorf("%v is left on %s, made by\n%s", r, d.Name(), r.Stack)
				}
			}
		}
	})
}
