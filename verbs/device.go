package verbs

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/argonaut-rdma/argonaut/verbs/driver"
	"github.com/argonaut-rdma/argonaut/verbs/histogram"
)

// Config is how the core treats a device. The zero value is the default.
type Config struct {
	// Logger gets what no caller can be told: stale completions, destructors
	// that return late. nil: silent.
	Logger *slog.Logger
	// TraceStacks keeps the creation stack of every object for Resources.
	// It costs microseconds per creation. See SetTraceStacks.
	TraceStacks bool
	// CloseTimeout is how long a Close waits for the device's destructor
	// before it returns *StuckError. Default 5 s; negative: for ever.
	CloseTimeout time.Duration
}

const defaultCloseTimeout = 5 * time.Second

// Device is an open RDMA device.
type Device struct {
	drv          driver.Device
	caps         Caps
	log          *slog.Logger
	closeTimeout time.Duration
	trace        atomic.Bool
	stuck        atomic.Int64 // closers that gave up on a destructor that is still running
	owners       owners
	events       eventQueue
	there        context.Context // ends when the device is lost
	lose         context.CancelFunc
	obj          object // parent of all
	closeMu      sync.Mutex
	registering  histogram.Counter

	mu          sync.Mutex
	lastID      uint64
	oldest      *object // all live objects, in order of creation
	newest      *object
	liveObjects [kindDevice + 1]int
	byQP        map[driver.QP]*QP
	byCQ        map[driver.CQ]*CQ
	bySRQ       map[driver.SRQ]*SRQ
	byQPN       map[uint32]*QP
	registered  uint64 // bytes, live
	total       Stats  // counters of objects that are gone
}

// registry holds the open devices of the process, for leak checks.
var registry struct {
	mu      sync.Mutex
	devices []*Device
}

var traceByDefault atomic.Bool

// TraceStacksByDefault makes devices that are opened later record creation
// stacks, whatever their Config says; for tests and for finding a leak.
func TraceStacksByDefault(on bool) { traceByDefault.Store(on) }

// NewDevice makes a Device over a provider's driver; providers call it. It
// takes d: Device.Close closes it. On error d stays the caller's.
func NewDevice(d driver.Device, cfg Config) (*Device, error) {
	if d == nil {
		return nil, errors.New("verbs: no driver")
	}
	dev := &Device{
		drv: d, caps: d.Caps(), log: cfg.Logger, closeTimeout: cfg.CloseTimeout,
		byQP: map[driver.QP]*QP{}, byCQ: map[driver.CQ]*CQ{}, bySRQ: map[driver.SRQ]*SRQ{}, byQPN: map[uint32]*QP{},
	}
	if dev.log == nil {
		dev.log = slog.New(slog.DiscardHandler)
	}
	if dev.closeTimeout == 0 {
		dev.closeTimeout = defaultCloseTimeout
	}
	dev.there, dev.lose = context.WithCancel(context.Background())
	dev.trace.Store(cfg.TraceStacks || traceByDefault.Load())
	dev.obj = object{dev: dev, kind: kindDevice, self: dev, born: time.Now(), phase: phaseLive}
	dev.events.start(dev)

	registry.mu.Lock()
	registry.devices = append(registry.devices, dev)
	registry.mu.Unlock()
	return dev, nil
}

// Devices returns the devices that are open in this process.
func Devices() []*Device {
	registry.mu.Lock()
	defer registry.mu.Unlock()
	return slices.Clone(registry.devices)
}

// Name is Caps().Name.
func (d *Device) Name() string { return d.caps.Name }

// Caps returns what the device has.
func (d *Device) Caps() Caps { return d.caps }

// Driver returns the provider's device, for conformance tests. Objects made
// through it are unknown to the core.
func (d *Device) Driver() driver.Device { return d.drv }

// SetTraceStacks switches the recording of creation stacks on or off.
func (d *Device) SetTraceStacks(on bool) { d.trace.Store(on) }

// Resources lists every live object of the device in order of creation, so that
// parents come before children.
func (d *Device) Resources() []Resource {
	d.mu.Lock()
	inFlight := map[*MR]int{}
	for _, q := range d.byQP {
		q.mu.Lock()
		q.uses.addTo(inFlight)
		q.mu.Unlock()
	}
	for _, s := range d.bySRQ {
		s.mu.Lock()
		s.uses.addTo(inFlight)
		s.mu.Unlock()
	}
	var rs []Resource
	var stacks [][]uintptr
	now := time.Now()
	for o := d.oldest; o != nil; o = o.next {
		r := o.describeLocked(now)
		if m, ok := o.self.(*MR); ok {
			r.Posted = inFlight[m]
		}
		rs = append(rs, r)
		stacks = append(stacks, o.stack)
	}
	d.mu.Unlock()
	for i := range rs {
		rs[i].Stack = formatStack(stacks[i]) // slow
	}
	return rs
}

// Lost is closed when the device is lost: it was removed, or has failed. From
// then on its QPs are in ERR and their OnEvent has got EventDeviceFatal, Accept
// of its listeners has ended, and what would make an object fails, all with
// ErrDeviceLost. What there is can, and has to, be closed as ever.
func (d *Device) Lost() <-chan struct{} { return d.there.Done() }

func (d *Device) isLost() bool { return d.there.Err() != nil }

// untilLost returns a context that ends with ctx, or when the device is lost.
func (d *Device) untilLost(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(d.there, cancel)
	return ctx, func() { stop(); cancel() }
}

// lostErr is err, with ErrDeviceLost if the device is lost, which then is why.
func (d *Device) lostErr(err error) error {
	if err == nil || isLost(err) || !d.isLost() {
		return err
	}
	return fmt.Errorf("%w: %w", ErrDeviceLost, err)
}

// Close closes the device. With live objects it returns *BusyError and changes
// nothing. Afterwards no callback runs. It must not be called from a callback.
func (d *Device) Close() error {
	d.closeMu.Lock()
	defer d.closeMu.Unlock()
	d.mu.Lock()
	if d.obj.phase == phaseGone {
		d.mu.Unlock()
		return nil
	}
	if d.oldest != nil || d.obj.children > 0 {
		var rs []Resource
		now := time.Now()
		for o := d.oldest; o != nil; o = o.next {
			rs = append(rs, o.describeLocked(now))
		}
		d.mu.Unlock()
		return d.opError("close", 0, &BusyError{What: "device", Children: rs})
	}
	d.obj.phase = phaseClosing
	d.mu.Unlock()

	err := d.drv.Close()
	d.mu.Lock()
	if err != nil && !isLost(err) {
		d.obj.phase = phaseLive
		d.mu.Unlock()
		return d.opError("close", 0, err)
	}
	d.obj.phase = phaseGone
	d.mu.Unlock()
	d.events.cancel()
	<-d.events.done
	d.events.end()

	registry.mu.Lock()
	registry.devices = slices.DeleteFunc(registry.devices, func(o *Device) bool { return o == d })
	registry.mu.Unlock()
	return d.opError("close", 0, err)
}

// NextEvent waits for the next asynchronous event. Events come in order;
// repeats of one kind on one object that nobody has read yet are one event with
// their Count, and events of an object that has been closed are withdrawn, so
// that a device whose events nobody reads holds a bounded number. Several
// readers share the events. It ends with ErrClosed when the device is closed, or
// with ctx's error.
func (d *Device) NextEvent(ctx context.Context) (Event, error) {
	e, err := d.events.next(ctx)
	if err != nil {
		return Event{}, d.opError("next event", 0, err)
	}
	return e, nil
}

func (d *Device) describe(*Resource) {}

// opError wraps err unless it is nil or wrapped already.
func (d *Device) opError(op string, qpn uint32, err error) error {
	if err == nil {
		return nil
	}
	var wrapped *OpError
	if errors.As(err, &wrapped) {
		return err
	}
	return &OpError{Op: op, Device: d.caps.Name, QPN: qpn, Err: err}
}

// isLost reports that a destructor failed because there is no device any more:
// its object is gone.
func isLost(err error) bool { return errors.Is(err, ErrDeviceLost) }
