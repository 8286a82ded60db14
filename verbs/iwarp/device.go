package iwarp

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	crand "crypto/rand"

	"github.com/argonaut-rdma/argonaut/verbs/driver"
)

// Device is a software RNIC.
type Device struct {
	cfg   Config
	log   *slog.Logger
	stags *stagTable
	pins  pinner
	stats counters

	nPD, nQP, nCQ, nMR, nMW, nSRQ, nChannel, nListener, nRequest atomic.Int64
	pages                                                        atomic.Int64

	bulk    freelist[[]byte]   // receivers' bulk buffers, bulkSize bytes each
	batches freelist[*txBatch] // senders' work

	wg sync.WaitGroup // every goroutine of the device

	events eventQueue

	mu      sync.Mutex
	closed  bool
	dying   map[net.Conn]struct{} // connections of QPs in ERR, until they are closed
	qps     map[uint32]*queuePair
	nextQPN uint32
}

var _ driver.Device = (*Device)(nil)

// OpenDriver opens a software RNIC without the core of package verbs above it. It costs nothing until used: no socket,
// no goroutine.
func OpenDriver(cfg Config) (*Device, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	var seed [2]byte
	_, _ = crand.Read(seed[:]) // never fails
	d := &Device{
		cfg:     cfg,
		log:     cfg.Logger,
		stags:   newStagTable(max(cfg.MaxMR, 1)),
		dying:   make(map[net.Conn]struct{}),
		qps:     make(map[uint32]*queuePair),
		nextQPN: uint32(seed[0])<<8 | uint32(seed[1]) | 1,
	}
	d.bulk.make = func() []byte { return make([]byte, bulkSize) }
	d.batches.make = newTxBatch
	d.events.init()
	return d, nil
}

// Caps returns what the device has.
func (d *Device) Caps() driver.Caps {
	c := &d.cfg
	return driver.Caps{
		Name:      c.Name,
		Provider:  "iwarp",
		Transport: driver.TransportIWARP,

		MaxQP: c.MaxQP, MaxCQ: c.MaxCQ, MaxMR: c.MaxMR, MaxMW: c.MaxMW, MaxSRQ: c.MaxSRQ, MaxPD: c.MaxPD,
		MaxCQE: c.MaxCQE, MaxQPWR: c.MaxQPWR, MaxSRQWR: c.MaxSRQWR,
		MaxSGE: c.MaxSGE, MaxReadSGE: 1, MaxSRQSGE: c.MaxSGE, MaxInline: c.MaxInline,
		MaxIRD: c.MaxIRD, MaxORD: c.MaxORD,
		MaxPrivateData: maxPrivate,
		MaxMRSize:      uint64(c.MaxMRSize), MaxMsgSize: uint64(c.MaxMsgSize), MaxPages: uint64(c.MaxPages), PageSize: pageSize,

		MW2: c.MaxMW > 0, MWConfines: c.MaxMW > 0, ScopedKeys: true,
		Atomics: !c.Strict, Imm: !c.Strict, SendInv: true,
		SRQ: c.MaxSRQ > 0, SRQLimit: c.MaxSRQ > 0, Inline: c.MaxInline > 0,
		DeregBarrier: true, Pins: c.Pin,
		Solicited: true, RemoteReadChecked: true, Doorbell: true,
		InOrderCompletions: true, FlushCompletes: true, ErrPostCompletesSQ: true, ErrPostCompletesRQ: true,
	}
}

// take counts one more object of a kind, unless that is one too many.
func (d *Device) take(n *atomic.Int64, limit int, what string) error {
	if n.Add(1) > int64(limit) {
		n.Add(-1)
		return fmt.Errorf("iwarp: %d %s: %w", limit, what, driver.ErrLimit)
	}
	return nil
}

// addQP gives q its number.
func (d *Device) addQP(q *queuePair) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for {
		n := d.nextQPN
		d.nextQPN = (d.nextQPN + 1) & (1<<24 - 1)
		if n != 0 && d.qps[n] == nil {
			q.qpn = n
			d.qps[n] = q
			return
		}
	}
}

func (d *Device) removeQP(q *queuePair) {
	d.mu.Lock()
	delete(d.qps, q.qpn)
	d.mu.Unlock()
}

// NextEvent waits for the next asynchronous event. Repeats of one kind on one object that nobody has taken coalesce.
func (d *Device) NextEvent(ctx context.Context) (driver.Event, error) { return d.events.next(ctx) }

func (d *Device) raise(e driver.Event) { d.events.put(e) }

func (d *Device) dropEvents(match func(driver.Event) bool) { d.events.drop(match) }

// goRun runs f on a goroutine that Close waits for; f ends when its QP is in ERR. False when the device is closed.
func (d *Device) goRun(f func()) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return false
	}
	d.wg.Go(f)
	return true
}

// past is a deadline that brings a goroutine back from the network.
var past = time.Unix(1, 0)

// bury notes that c is on its way out; dig, that it is closed.
func (d *Device) bury(c net.Conn) {
	d.mu.Lock()
	d.dying[c] = struct{}{}
	d.mu.Unlock()
}

func (d *Device) dig(c net.Conn) {
	d.mu.Lock()
	delete(d.dying, c)
	d.mu.Unlock()
}

// linger sets one of a dying connection's deadlines, unless the device is being closed.
func (d *Device) linger(set func(time.Time) error) {
	d.mu.Lock()
	if !d.closed {
		_ = set(time.Now().Add(d.cfg.Linger))
	}
	d.mu.Unlock()
}

// Close ends what still lingers of dead connections and waits for every goroutine. It is refused, and changes nothing,
// while objects are live.
func (d *Device) Close() error {
	d.mu.Lock()
	if d.closed {
		d.mu.Unlock()
		return nil
	}
	for _, k := range []struct {
		n    *atomic.Int64
		what string
	}{{&d.nPD, "PDs"}, {&d.nQP, "QPs"}, {&d.nCQ, "CQs"}, {&d.nMR, "MRs"}, {&d.nMW, "MWs"}, {&d.nSRQ, "SRQs"},
		{&d.nChannel, "completion channels"}, {&d.nListener, "listeners"}, {&d.nRequest, "connection requests"}} {
		if n := k.n.Load(); n != 0 {
			d.mu.Unlock()
			return fmt.Errorf("iwarp: device has %d %s: %w", n, k.what, driver.ErrInvalid)
		}
	}
	d.closed = true
	for c := range d.dying {
		_ = c.SetDeadline(past)
	}
	d.mu.Unlock()
	d.wg.Wait()
	d.events.close()
	return nil
}

// freelist lends objects that are costly to make. It keeps at most freelistMax of them; unlike a sync.Pool it does not
// lose them to the garbage collector, so that a steady data path allocates nothing.
type freelist[T any] struct {
	make func() T

	mu   sync.Mutex
	free []T
}

const freelistMax = 64

func (f *freelist[T]) get() T {
	f.mu.Lock()
	if n := len(f.free); n > 0 {
		x := f.free[n-1]
		var zero T
		f.free[n-1] = zero
		f.free = f.free[:n-1]
		f.mu.Unlock()
		return x
	}
	f.mu.Unlock()
	return f.make()
}

func (f *freelist[T]) put(x T) {
	f.mu.Lock()
	if len(f.free) < freelistMax {
		f.free = append(f.free, x)
	}
	f.mu.Unlock()
}
