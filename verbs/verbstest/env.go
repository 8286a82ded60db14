package verbstest

import (
	"context"
	"net"
	"runtime"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/argonaut-rdma/argonaut/verbs"
	"github.com/argonaut-rdma/argonaut/verbs/driver"
)

// phase is when something is closed at the end of a subtest: users before what
// they use. Windows go before QPs, because destroying a QP with a bound window
// takes some kernels 50 s.
type phase int

const (
	phaseListener phase = iota
	phaseWindow
	phaseQP
	phaseSRQ
	phaseMR
	phaseCQ
	phaseChannel
	phasePD
	phases
)

// env is what one subtest runs in. It closes everything the subtest made and
// then checks that nothing is left.
type env struct {
	*testing.T
	cfg          *Config
	ctx          context.Context // ends at the subtest's deadline: every wait is under it
	skipExpected bool
	closers      [phases][]func() error
	devices      []*verbs.Device
	sides        [2]*verbs.Device
}

func newEnv(t *testing.T, c *Config) *env {
	before := goleak.IgnoreCurrent()
	disarm := guard(t.Name(), c.Timeout+30*time.Second)
	ctx, cancel := context.WithTimeout(context.Background(), c.Timeout)
	e := &env{T: t, cfg: c, ctx: ctx}
	t.Cleanup(func() {
		e.close()
		cancel()
		if !t.Failed() {
			if err := goleak.Find(before); err != nil {
				t.Errorf("goroutines are left: %v", err)
			}
		}
		disarm()
	})
	return e
}

// later closes something at the end, if the subtest has not done so itself: a
// second Close returns nil.
func (e *env) later(p phase, f func() error) { e.closers[p] = append(e.closers[p], f) }

func (e *env) close() {
	for p := range e.closers {
		for _, f := range e.closers[p] {
			if err := f(); err != nil {
				e.Errorf("closing: %v", err)
			}
		}
	}
	for _, d := range e.devices {
		for _, r := range d.Resources() {
			e.Errorf("left on %s: %+v", d.Caps().Name, r)
		}
		if err := d.Close(); err != nil {
			e.Errorf("closing the device: %v", err)
		}
	}
}

// open opens a device that is closed at the end.
func (e *env) open(f func(testing.TB) *verbs.Device) *verbs.Device {
	d := f(e.T)
	require.NotNil(e, d)
	e.devices = append(e.devices, d)
	return d
}

// dialer and acceptor are the devices of the two ends, opened when first asked
// for.
func (e *env) dialer() *verbs.Device   { return e.side(&e.sides[0], e.cfg.Open) }
func (e *env) acceptor() *verbs.Device { return e.side(&e.sides[1], e.cfg.OpenPeer) }

func (e *env) side(d **verbs.Device, open func(testing.TB) *verbs.Device) *verbs.Device {
	e.Helper()
	if *d == nil {
		*d = e.open(open)
	}
	return *d
}

// caps is what both ends have.
func (e *env) caps() verbs.Caps {
	return mergeCaps(e.dialer().Caps(), e.acceptor().Caps())
}

// listen listens on d; the address is the one to dial.
func (e *env) listen(d *verbs.Device) (*verbs.Listener, string) {
	e.Helper()
	l, err := d.Listen(e.ctx, e.cfg.ListenAddr)
	require.NoError(e, err)
	e.later(phaseListener, l.Close)
	return l, e.cfg.dialAddr(e.T, l.Addr())
}

func (c *Config) dialAddr(tb testing.TB, addr string) string {
	if c.DialHost == "" {
		return addr
	}
	_, port, err := net.SplitHostPort(addr)
	require.NoError(tb, err)
	return net.JoinHostPort(c.DialHost, port)
}

func (e *env) allocPD(d *verbs.Device) *verbs.PD {
	e.Helper()
	pd, err := d.AllocPD()
	require.NoError(e, err)
	e.later(phasePD, pd.Close)
	return pd
}

// reg registers n zero bytes.
func (e *env) reg(pd *verbs.PD, n int, acc verbs.Access) *memory {
	e.Helper()
	return e.regBytes(pd, make([]byte, n), acc)
}

func (e *env) regBytes(pd *verbs.PD, b []byte, acc verbs.Access) *memory {
	e.Helper()
	mr, err := pd.RegMR(b, acc)
	require.NoError(e, err)
	e.later(phaseMR, mr.Deregister)
	return &memory{mr: mr, b: b}
}

// memory is a region and the bytes in it.
type memory struct {
	mr *verbs.MR
	b  []byte
}

// sge names [off, off+n).
func (m *memory) sge(off, n int) verbs.SGE {
	return verbs.SGE{MR: m.mr, Offset: uint64(off), Length: uint32(n)}
}

// peek reads a byte that the device may be writing: a wait for traffic to have
// begun is the one place where that is no mistake.
//
//go:norace
func (m *memory) peek(i int) byte { return *(*byte)(unsafe.Pointer(&m.b[i])) }

// yield is one round of a loop that waits for what has no event.
func (e *env) yield() {
	e.Helper()
	require.NoError(e, e.ctx.Err(), "waited in vain")
	runtime.Gosched()
}

// addr is the remote address of off.
func (m *memory) addr(off int) uint64 { return m.mr.Addr() + uint64(off) }

const (
	accLocal  = driver.AccessLocalWrite
	accWrite  = driver.AccessLocalWrite | driver.AccessRemoteWrite
	accRead   = driver.AccessRemoteRead
	accRemote = driver.AccessLocalWrite | driver.AccessRemoteWrite | driver.AccessRemoteRead
)

// sinkAccess is what the sink of a READ needs on this device.
func sinkAccess(c verbs.Caps) verbs.Access {
	if c.ReadSinkNeedsRemoteWrite {
		return accWrite
	}
	return accLocal
}
