package verbstest

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/argonaut-rdma/argonaut/verbs"
	"github.com/argonaut-rdma/argonaut/verbs/driver"
)

// Config says which device the suite runs on and what is expected of it.
type Config struct {
	// Open opens the device under test; required. The suite calls it once for
	// every end of a connection that it makes and closes what it returned.
	// What fails in it fails the subtest through tb.
	Open func(tb testing.TB) *verbs.Device
	// OpenPeer opens the device of the accepting end. Nil: Open.
	OpenPeer func(tb testing.TB) *verbs.Device
	// OpenLimited opens a device with small limits, which the suite exhausts.
	// Nil: Open, and limits too large to reach are left alone.
	OpenLimited func(tb testing.TB) *verbs.Device
	// OpenDriver opens the device under test without the core of package verbs,
	// so that the suite can put itself in between and lose it. Nil: subtests that
	// do that skip.
	OpenDriver func(tb testing.TB) driver.Device
	// ListenAddr is where the accepting end listens. Default "127.0.0.1:0".
	ListenAddr string
	// DialHost replaces the host of the listener's address for the dialing
	// end, for devices that have to listen on a wildcard. Default: unchanged.
	DialHost string
	// Timeout is the deadline of one subtest. Default 60 s, under the race
	// detector 180 s.
	Timeout time.Duration
	// Skips names the subtests that this device is expected to skip. Any other
	// skip fails, and so does a subtest of the list that had no reason to skip.
	Skips []string
	// SingleProcess: a second process cannot reach this device (it runs over
	// an in-memory network). The subtests that kill a process skip.
	SingleProcess bool
	// PrivateDataTrails: one end puts data of its own behind the user's private
	// data, which the other does not know how to take off.
	PrivateDataTrails bool
	// Quick shortens loops and messages as -test.short does: for the variants
	// of a device that has had a whole run.
	Quick bool

	name string // of the test that called Run
}

// subtest is one row of the suite.
type subtest struct {
	name string
	run  func(e *env)
}

func suite() []subtest {
	var all []subtest
	for _, part := range [][]subtest{
		transferTests, signalTests, doorbellTests, flushTests, notifyTests, srqTests, violationTests, localTests, deregTests,
		parentTests, peerTests, outOfBandTests, handshakeTests, limitTests, optionalTests, windowTests, stressTests, lostTests,
	} {
		all = append(all, part...)
	}
	return all
}

// Run runs the conformance suite on the device of c, each subtest on devices of
// its own, and checks after each that nothing is left: no resource of a device
// and no goroutine. It is not for use with t.Parallel. With -test.shuffle the
// subtests run in random order; with -test.short, and under the race detector,
// the largest messages are 4 MiB and loops have a tenth of their rounds.
func Run(t *testing.T, c Config) {
	t.Helper()
	require.NotNil(t, c.Open, "Config.Open is required")
	if c.OpenPeer == nil {
		c.OpenPeer = c.Open
	}
	if c.ListenAddr == "" {
		c.ListenAddr = "127.0.0.1:0"
	}
	if c.Timeout == 0 {
		c.Timeout = 60 * time.Second
		if raceEnabled {
			c.Timeout *= 3
		}
	}
	c.name = t.Name()
	if role := os.Getenv(childEnv); role != "" {
		runChild(t, &c, role) // we are the process that a subtest starts and kills
		return
	}
	all := suite()
	expected := map[string]bool{}
	for _, name := range c.Skips {
		expected[name] = true
	}
	for _, s := range all {
		delete(expected, s.name)
	}
	require.Empty(t, expected, "Config.Skips names subtests that do not exist")
	for _, name := range c.Skips {
		expected[name] = true
	}
	shuffle(t, all)
	for _, s := range all {
		t.Run(s.name, func(t *testing.T) { runOne(t, &c, s, expected[s.name]) })
	}
}

// shuffle does for the subtests what -test.shuffle does for tests.
func shuffle(t *testing.T, all []subtest) {
	f := flag.Lookup("test.shuffle")
	if f == nil || f.Value.String() == "off" {
		return
	}
	seed, err := strconv.ParseUint(f.Value.String(), 10, 64)
	if err != nil {
		seed = uint64(time.Now().UnixNano())
	}
	t.Logf("subtests shuffled with -test.shuffle %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	r.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
}

func runOne(t *testing.T, c *Config, s subtest, skipExpected bool) {
	e := newEnv(t, c)
	e.skipExpected = skipExpected
	s.run(e)
	if skipExpected {
		t.Error("listed in Config.Skips, but the device has all it needs")
	}
}

// need skips the subtest, with the reason, unless ok.
func (e *env) need(ok bool, reason string) {
	e.Helper()
	switch {
	case ok:
	case e.skipExpected:
		e.Skipf("skipped as expected: %s", reason)
	default:
		e.Fatalf("unexpected skip: %s", reason)
	}
}

// mergeCaps is what a has and b has too, for what a subtest uses on both ends.
func mergeCaps(a, b driver.Caps) driver.Caps {
	for _, l := range []struct{ x, y *int }{
		{&a.MaxQP, &b.MaxQP}, {&a.MaxCQE, &b.MaxCQE}, {&a.MaxQPWR, &b.MaxQPWR}, {&a.MaxSRQWR, &b.MaxSRQWR}, {&a.MaxSGE, &b.MaxSGE},
		{&a.MaxReadSGE, &b.MaxReadSGE}, {&a.MaxSRQSGE, &b.MaxSRQSGE}, {&a.MaxInline, &b.MaxInline}, {&a.MaxIRD, &b.MaxIRD},
		{&a.MaxORD, &b.MaxORD}, {&a.MaxPrivateData, &b.MaxPrivateData},
	} {
		*l.x = min(*l.x, *l.y)
	}
	a.MaxMRSize, a.MaxMsgSize = min(a.MaxMRSize, b.MaxMRSize), min(a.MaxMsgSize, b.MaxMsgSize)
	for _, l := range []struct{ x, y *bool }{
		{&a.MW2, &b.MW2}, {&a.MWConfines, &b.MWConfines}, {&a.ScopedKeys, &b.ScopedKeys}, {&a.Atomics, &b.Atomics}, {&a.Imm, &b.Imm},
		{&a.SendInv, &b.SendInv}, {&a.SRQ, &b.SRQ}, {&a.SRQLimit, &b.SRQLimit}, {&a.Inline, &b.Inline}, {&a.RNRRetry, &b.RNRRetry},
		{&a.DeregBarrier, &b.DeregBarrier}, {&a.InOrderCompletions, &b.InOrderCompletions}, {&a.FlushCompletes, &b.FlushCompletes},
		{&a.RemoteViolationOnWR, &b.RemoteViolationOnWR}, {&a.Solicited, &b.Solicited}, {&a.OutOfBand, &b.OutOfBand}, {&a.RemoteReadChecked, &b.RemoteReadChecked},
		{&a.Doorbell, &b.Doorbell},
	} {
		*l.x = *l.x && *l.y
	}
	a.ReadSinkNeedsRemoteWrite = a.ReadSinkNeedsRemoteWrite || b.ReadSinkNeedsRemoteWrite
	return a
}

// guard ends the process with all stacks when a subtest is stuck in a call that
// takes no context. It returns the function that disarms it.
func guard(name string, d time.Duration) func() bool {
	return time.AfterFunc(d, func() {
		debug.SetTraceback("all")
		buf := make([]byte, 1<<20)
		buf = buf[:runtime.Stack(buf, true)]
		panic(fmt.Sprintf("verbstest: %s is stuck %v after its start:\n%s", name, d, buf))
	}).Stop
}

// quick says whether loops and messages are short.
func (e *env) quick() bool { return testing.Short() || e.cfg.Quick || raceEnabled }

// short is n, or its tenth (at least 1) where it is to be quick.
func (e *env) short(n int) int {
	if e.quick() {
		return max(n/10, 1)
	}
	return n
}
