package iwarp

import (
	"fmt"
	"sync/atomic"

	"github.com/argonaut-rdma/argonaut/verbs/driver"
)

type pd struct {
	dev      *Device
	children atomic.Int64
	gone     atomic.Bool
}

var _ driver.PD = (*pd)(nil)

// AllocPD makes a protection domain.
func (d *Device) AllocPD() (driver.PD, error) {
	if err := d.take(&d.nPD, d.cfg.MaxPD, "PDs"); err != nil {
		return nil, err
	}
	return &pd{dev: d}, nil
}

func (p *pd) Dealloc() error {
	if n := p.children.Load(); n != 0 {
		return fmt.Errorf("iwarp: PD has %d children: %w", n, driver.ErrInvalid)
	}
	if p.gone.CompareAndSwap(false, true) {
		p.dev.nPD.Add(-1)
	}
	return nil
}
