//go:build ibverbs && linux && cgo

package ibverbs

import (
	"fmt"
	"sync/atomic"

	"github.com/argonaut-rdma/argonaut/verbs/driver"
	"github.com/argonaut-rdma/argonaut/verbs/ibverbs/internal/cverbs"
)

// mw is a type 2 memory window.
type mw struct {
	c    cverbs.MW
	rkey atomic.Uint32
}

var _ driver.MW = (*mw)(nil)

func (p *pd) AllocMW() (driver.MW, error) {
	if !p.dev.caps.MW2 {
		return nil, fmt.Errorf("memory windows: %w", driver.ErrNotSupported)
	}
	c, err := p.c.AllocMW()
	if err != nil {
		return nil, createErr("ibv_alloc_mw", err)
	}
	w := &mw{c: c}
	w.rkey.Store(c.RKey())
	return w, nil
}

// RKey is the key of the last bind that was posted.
func (w *mw) RKey() uint32 { return w.rkey.Load() }

func (w *mw) Dealloc() error { return opErr("ibv_dealloc_mw", w.c.Dealloc()) }
