package verbs

import (
	"context"
	"log/slog"
	"time"

	"github.com/argonaut-rdma/argonaut/verbs/driver"
)

// Config is how the core treats a device. The zero value is the default.
type Config struct {
	// Logger gets what no caller can be told: stale completions, destructors
	// that return late. nil: silent.
	Logger *slog.Logger
	// TraceStacks keeps the creation stack of every object for Resources.
	// It costs microseconds per creation.
	TraceStacks bool
	// CloseTimeout is how long a Close waits for the device's destructor
	// before it returns *StuckError. Default 5 s; negative: for ever.
	CloseTimeout time.Duration
}

// Device is an open RDMA device.
type Device struct{}

// NewDevice makes a Device over a provider's driver; providers call it. It
// takes d: Device.Close closes it. On error d stays the caller's.
func NewDevice(d driver.Device, cfg Config) (*Device, error) { return nil, ErrNotSupported }

// Devices returns the devices that are open in this process.
func Devices() []*Device { return nil }

// Name is Caps().Name.
func (d *Device) Name() string { return "" }

// Caps returns what the device has.
func (d *Device) Caps() Caps { return Caps{} }

// Driver returns the provider's device, for conformance tests. Objects made
// through it are unknown to the core.
func (d *Device) Driver() driver.Device { return nil }

// AllocPD makes a protection domain.
func (d *Device) AllocPD() (*PD, error) { return nil, ErrNotSupported }

// CreateCompChannel makes a completion channel.
func (d *Device) CreateCompChannel() (*CompChannel, error) { return nil, ErrNotSupported }

// CreateCQ makes a completion queue.
func (d *Device) CreateCQ(c CQConfig) (*CQ, error) { return nil, ErrNotSupported }

// Listen accepts connection requests on addr, "host:port" with port 0 for any.
func (d *Device) Listen(ctx context.Context, addr string) (*Listener, error) {
	return nil, ErrNotSupported
}

// NextEvent waits for the next asynchronous event. Events come in order;
// repeats of one kind on one object that nobody has read yet are one event with
// their Count. Several readers share the events. It ends with ErrClosed when
// the device is closed and its events are read, or with ctx's error.
func (d *Device) NextEvent(ctx context.Context) (Event, error) { return Event{}, ErrNotSupported }

// Resources lists every live object of the device, parents before children.
func (d *Device) Resources() []Resource { return nil }

// SetTraceStacks switches the recording of creation stacks on or off.
func (d *Device) SetTraceStacks(on bool) {}

// Stats returns the device's counters.
func (d *Device) Stats() Stats { return Stats{} }

// Close closes the device. With live objects it returns *BusyError and changes
// nothing. Afterwards no callback runs.
func (d *Device) Close() error { return ErrNotSupported }
