package fabric

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"

	"github.com/argonaut-rdma/argonaut/buffer"
	"github.com/argonaut-rdma/argonaut/conn"
	"github.com/argonaut-rdma/argonaut/messenger"
	"github.com/argonaut-rdma/argonaut/verbs"
	"github.com/argonaut-rdma/argonaut/verbs/ibverbs"
	"github.com/argonaut-rdma/argonaut/verbs/iwarp"
)

// The devices that Config.Device may name.
const (
	DeviceIWARP = "iwarp" // the user-space adapter
	DeviceTCP   = "tcp"   // none: messages over a plain byte stream
	DeviceAuto  = "auto"  // what Choose finds
)

// Config says what to open.
type Config struct {
	// Name of this process among the peers of its messenger. Required.
	Name messenger.EntityName
	// Choice is the device: see Choose. With one, addresses with tcp:// work as well.
	Choice Choice
	// Arena is the budget of registered memory in bytes. Default 64 MiB.
	Arena int64
	// Pin locks the arena into memory, as an adapter does.
	Pin bool
	// Receive is how many bytes of the arena may be receive buffers of connections. Default half of Arena.
	Receive int64
	// Auth and Modes are the messenger's.
	Auth  []messenger.Auth
	Modes []messenger.Mode
	// Logger gets what no caller can be told. nil: silent.
	Logger *slog.Logger
	// Device opens the device, instead of what Choice says; for tests. nil: Choice.
	Device func() (*verbs.Device, error)
}

// A connection has credits receive buffers of recvSize bytes: a message of the object protocol fits, with its data where it
// is eager.
const (
	recvSize = 64 << 10
	credits  = 16

	defaultArena = 64 << 20
)

// MinArena is the smallest arena that Open takes.
const MinArena = 8 << 20

// ErrScheme: an address is of another kind than the device.
var ErrScheme = errors.New("the address is that of an RDMA device of the kernel")

// Fabric is what Open opened.
type Fabric struct {
	Device    *verbs.Device // nil for DeviceTCP
	Arena     *buffer.Arena
	Messenger *messenger.Messenger
}

// Open opens device, arena and messenger; on an error nothing stays open. Errors name the part that failed; an arena that
// the memlock limit forbids is a *buffer.LimitError, one that is larger than all memory ErrMemory.
func Open(cfg Config) (f *Fabric, err error) {
	if cfg.Arena == 0 {
		cfg.Arena = defaultArena
	}
	if cfg.Arena < MinArena {
		return nil, fmt.Errorf("an arena of %d bytes is too small: at least %d are needed", cfg.Arena, MinArena)
	}
	if err := MemoryLimit().CheckArena(cfg.Arena); err != nil {
		return nil, err
	}
	if cfg.Receive == 0 {
		cfg.Receive = cfg.Arena / 2
	}
	f = &Fabric{}
	defer func() {
		if err != nil {
			ctx, cancel := context.WithCancel(context.Background())
			cancel() // nothing has been used: there is nothing to wait for
			err = errors.Join(err, f.Close(ctx, func(string) {}))
			f = nil
		}
	}()
	switch {
	case cfg.Device != nil:
		f.Device, err = cfg.Device()
	case cfg.Choice.Device == DeviceIWARP:
		f.Device, err = iwarp.Open(iwarp.Config{Pin: cfg.Pin, Logger: cfg.Logger})
	case cfg.Choice.Device == DeviceTCP:
		if cfg.Pin {
			err = errors.New("pinning memory takes a device: leave --pin out or use --device iwarp")
		}
	default: // it pins what is registered
		f.Device, err = ibverbs.Open(ibverbs.Config{
			Device: cfg.Choice.Device, Addr: cfg.Choice.Addr, Core: verbs.Config{Logger: cfg.Logger},
		})
	}
	if err != nil {
		return f, fmt.Errorf("opening device %q: %w", cfg.Choice.Device, err)
	}
	var transports []messenger.Transport
	if f.Device != nil {
		transports = append(transports, messenger.Transport{Scheme: cfg.Choice.Scheme(), Open: func(c conn.Config) (*conn.Endpoint, error) {
			c.RecvSize = recvSize
			c.Credits = credits
			c.RecvBuffers = max(int(cfg.Receive/recvSize), 2*credits)
			return conn.NewEndpoint(f.Device, f.Arena, c)
		}})
	}
	if f.Arena, err = buffer.New(buffer.Config{Budget: cfg.Arena, Logger: cfg.Logger}); err != nil {
		return f, fmt.Errorf("making the arena: %w", err)
	}
	f.Messenger, err = messenger.New(messenger.Config{
		Name:       cfg.Name,
		Arena:      f.Arena,
		Transports: transports,
		Auth:       cfg.Auth,
		Modes:      cfg.Modes,
		Logger:     cfg.Logger,
	})
	if err != nil {
		return f, fmt.Errorf("starting the messenger: %w", err)
	}
	return f, nil
}

// ParseAddrs parses a comma-separated list of addresses. One without a scheme, host:port, gets that of the choice. With the
// adapter in software those of RDMA devices are ErrScheme, unless the user has named that adapter: he means iWARP devices
// of the kernel then, which it can talk to.
func (c Choice) ParseAddrs(s string) (messenger.AddrVec, error) {
	parts := strings.Split(s, ",")
	for i, p := range parts {
		parts[i] = strings.TrimSpace(p)
		if !strings.Contains(p, "://") {
			parts[i] = c.Scheme() + "://" + parts[i]
		}
		hostport, ok := strings.CutPrefix(parts[i], messenger.SchemeRDMA+"://")
		if ok && c.Device == DeviceIWARP && !c.named {
			return nil, fmt.Errorf("%s: %w, and the device is the one in software (%s): name the device (--device NAME, doctor lists them), "+
				"or write iwarp://%s on both sides; --device iwarp reaches iWARP devices of the kernel", parts[i], ErrScheme, c.Why, hostport)
		}
	}
	return messenger.ParseAddrs(strings.Join(parts, ","))
}

// Lost is closed when the device is lost: it was removed, or has failed. Without a device it never is.
func (f *Fabric) Lost() <-chan struct{} {
	if f.Device == nil {
		return nil
	}
	return f.Device.Lost()
}

// QueuePairs counts the queue pairs of the device.
func (f *Fabric) QueuePairs() int {
	if f.Device == nil {
		return 0
	}
	n := 0
	for _, r := range f.Device.Resources() {
		if r.Kind == verbs.KindQP {
			n++
		}
	}
	return n
}

// CloseMessenger is the first half of Close, for who has to end something between messenger and arena.
func (f *Fabric) CloseMessenger(ctx context.Context, step func(string)) error {
	if f.Messenger == nil {
		return nil
	}
	m := f.Messenger
	f.Messenger = nil
	step("messenger: stop listening, flush, say goodbye, drain and destroy the queue pairs")
	if err := m.Shutdown(ctx); err != nil {
		return fmt.Errorf("messenger: %w", err)
	}
	return nil
}

// Close closes messenger, arena and device, in this order, and calls step as the turn of each comes. ctx bounds the
// waiting for peers and for buffers that are still held. What could not be released is named in the error, and the parts
// below it are closed nevertheless.
func (f *Fabric) Close(ctx context.Context, step func(string)) error {
	errs := []error{f.CloseMessenger(ctx, step)}
	if f.Arena != nil {
		step("arena: " + Account(f.Arena.Account()))
		step("arena: deregister and unmap")
		if err := f.Arena.Close(ctx); err != nil {
			errs = append(errs, fmt.Errorf("arena: %w", err))
		}
	}
	if f.Device != nil {
		step("device: close")
		if err := f.Device.Close(); err != nil {
			errs = append(errs, fmt.Errorf("device: %w", err))
		}
	}
	return errors.Join(errs...)
}

// Account is an arena's account in words.
func Account(a buffer.Account) string {
	return fmt.Sprintf("posted %d, held %d, free %d, total %d bytes", a.Posted, a.Held, a.Free, a.Total)
}
