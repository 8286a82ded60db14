//go:build ibverbs && linux && cgo

package ibverbs

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net/netip"
	"os"
	"sync"

	"github.com/argonaut-rdma/argonaut/verbs"
	"github.com/argonaut-rdma/argonaut/verbs/driver"
	"github.com/argonaut-rdma/argonaut/verbs/ibverbs/internal/cverbs"
)

// Built says whether this program has the provider.
const Built = true

var _ driver.Device = (*device)(nil)

// device is an open device.
type device struct {
	ctx  cverbs.Context
	attr cverbs.DeviceAttr
	caps driver.Caps
	port int // that connections use, from 1
	// wcInv are the flags of a completion that say that a key was invalidated.
	wcInv  uint32
	src    cverbs.SockAddr // Config.Addr; invalid: none
	gid    int             // Config.GIDIndex
	spare  cverbs.CQ       // of siw, see reserveOffset
	halved halves          // likewise, see fitSIW
	log    *slog.Logger

	cm      cverbs.EventChannel
	cmFile  *pollFile
	asyFile *pollFile
	loops   sync.WaitGroup
	events  eventQueue

	mu    sync.Mutex
	found localGID // that QPs connected out of band speak from
	qps   map[cverbs.QP]*qp
	cqs   map[cverbs.CQ]*cq
	srqs  map[cverbs.SRQ]*srq
	ids   map[cverbs.ID]*cmID
}

// Open opens a device. Close of the *verbs.Device ends everything that it
// started. It fails with an error that matches os.ErrNotExist where there is no
// such device, and os.ErrPermission where the process may not use it.
func Open(cfg Config) (*verbs.Device, error) {
	d, err := OpenDriver(cfg)
	if err != nil {
		return nil, err
	}
	dev, err := verbs.NewDevice(d, cfg.Core)
	if err != nil {
		return nil, errors.Join(err, d.Close())
	}
	return dev, nil
}

// OpenDriver is Open without the core of package verbs above it: of cfg.Core it
// uses the Logger.
func OpenDriver(cfg Config) (driver.Device, error) {
	d, err := open(cfg)
	if err != nil {
		return nil, err
	}
	return d, nil
}

func open(cfg Config) (_ *device, err error) {
	if cfg.Port < 0 || cfg.Port > math.MaxUint8 || cfg.GIDIndex < 0 || cfg.GIDIndex > maxGIDIndex {
		return nil, fmt.Errorf("ibverbs: port %d, GID index %d, at most 255: %w", cfg.Port, cfg.GIDIndex, driver.ErrInvalid)
	}
	d := &device{
		log:  cfg.Core.Logger,
		gid:  cfg.GIDIndex,
		qps:  make(map[cverbs.QP]*qp),
		cqs:  make(map[cverbs.CQ]*cq),
		srqs: make(map[cverbs.SRQ]*srq),
		ids:  make(map[cverbs.ID]*cmID),
	}
	if d.log == nil {
		d.log = slog.New(slog.DiscardHandler)
	}
	d.events.init()
	var undo []func()
	defer func() {
		if err != nil {
			for i := len(undo) - 1; i >= 0; i-- {
				undo[i]()
			}
		}
	}()

	if err := cverbs.ForkInit(); err != nil {
		return nil, opErr("ibv_fork_init", err)
	}
	if d.cm, err = cverbs.CreateEventChannel(); err != nil {
		return nil, channelErr(err)
	}
	undo = append(undo, d.cm.Destroy)
	name := cfg.Device
	if cfg.Addr != "" {
		owner, err := d.bind(cfg.Addr)
		if err != nil {
			return nil, err
		}
		if name != "" && name != owner {
			return nil, fmt.Errorf("ibverbs: %s is an address of device %s, not of %s: %w", cfg.Addr, owner, name,
				driver.ErrInvalid)
		}
		name = owner
	}
	if cfg.Port != 0 {
		d.port = cfg.Port
	}
	if err := d.openContext(name); err != nil {
		return nil, err
	}
	undo = append(undo, func() { _ = d.ctx.Close() })
	if err := d.queryCaps(); err != nil {
		return nil, err
	}
	if err := d.reserveOffset(); err != nil {
		return nil, err
	}
	undo = append(undo, d.releaseOffset)
	if d.cmFile, err = newPollFile(d.cm.FD()); err != nil {
		return nil, err
	}
	undo = append(undo, d.cmFile.close)
	if d.asyFile, err = newPollFile(d.ctx.AsyncFD()); err != nil {
		return nil, err
	}
	d.loops.Go(d.cmLoop)
	d.loops.Go(d.asyncLoop)
	return d, nil
}

// bind finds the device and port that serve a local address.
func (d *device) bind(addr string) (string, error) {
	ip, err := netip.ParseAddr(addr)
	if err != nil {
		return "", fmt.Errorf("ibverbs: %w: %w", err, driver.ErrInvalid)
	}
	if d.src, err = sockAddr(netip.AddrPortFrom(ip, 0)); err != nil {
		return "", err
	}
	id, err := d.cm.CreateID()
	if err != nil {
		return "", opErr("rdma_create_id", err)
	}
	defer func() { _ = id.Destroy() }()
	if err := id.BindAddr(d.src); err != nil {
		return "", fmt.Errorf("ibverbs: no RDMA device serves %s (`rdma link show` lists devices and their interfaces): "+
			"%w: %w", addr, opErr("rdma_bind_addr", err), os.ErrNotExist)
	}
	if d.port = id.Port(); id.Device() == "" {
		return "", fmt.Errorf("ibverbs: %s is not the address of one device: %w", addr, driver.ErrInvalid)
	}
	return id.Device(), nil
}

// openContext opens the device by that name; "" is the first with an active
// port. It sets d.port where that is not set yet.
func (d *device) openContext(name string) error {
	list, err := cverbs.GetDeviceList()
	if err != nil {
		return opErr("ibv_get_device_list", err)
	}
	defer list.Free()
	for i := range list.Len() {
		if name != "" && list.Name(i) != name {
			continue
		}
		ctx, err := list.Open(i)
		if err != nil {
			return fmt.Errorf("ibverbs: device %s: %w", list.Name(i), opErr("ibv_open_device", err))
		}
		port, err := activePort(ctx)
		if err == nil && (port != 0 || name != "") {
			d.ctx = ctx
			if d.port == 0 {
				d.port = max(port, 1)
			}
			return nil
		}
		if cerr := ctx.Close(); err != nil || cerr != nil {
			return errors.Join(err, cerr)
		}
	}
	what := "device " + name
	if name == "" {
		what = "device with an active port"
	}
	return fmt.Errorf("ibverbs: no RDMA %s among the %d of this machine (`rdma link show` lists them; without an adapter, "+
		"`rdma link add rxe0 type rxe netdev ...` makes one in software): %w", what, list.Len(), os.ErrNotExist)
}

// activePort returns the first active port, 0 if there is none.
func activePort(ctx cverbs.Context) (int, error) {
	attr, err := ctx.QueryDevice()
	if err != nil {
		return 0, opErr("ibv_query_device_ex", err)
	}
	for port := 1; port <= attr.PhysPorts; port++ {
		p, err := ctx.QueryPort(port)
		if err != nil {
			return 0, opErr("ibv_query_port", err)
		}
		if p.State == cverbs.PortActive {
			return port, nil
		}
	}
	return 0, nil
}

func (d *device) Caps() driver.Caps { return d.caps }

func (d *device) iwarp() bool { return d.caps.Transport == driver.TransportIWARP }
func (d *device) siw() bool   { return d.attr.VendorID == vendorSIW }
func (d *device) rxe() bool   { return d.attr.VendorID == vendorRXE }

func (d *device) AllocPD() (driver.PD, error) {
	c, err := d.ctx.AllocPD()
	if err != nil {
		return nil, createErr("ibv_alloc_pd", err)
	}
	return &pd{dev: d, c: c}, nil
}

func (d *device) NextEvent(ctx context.Context) (driver.Event, error) { return d.events.next(ctx) }

func (d *device) Close() error {
	d.events.close()
	d.cmFile.close()
	d.asyFile.close()
	d.loops.Wait()
	d.cm.Destroy()
	d.releaseOffset()
	return opErr("ibv_close_device", d.ctx.Close())
}
