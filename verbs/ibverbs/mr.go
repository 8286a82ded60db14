//go:build ibverbs && linux && cgo

package ibverbs

import (
	"fmt"
	"runtime"
	"unsafe"

	"github.com/argonaut-rdma/argonaut/verbs/driver"
	"github.com/argonaut-rdma/argonaut/verbs/ibverbs/internal/cverbs"
)

// pd is a protection domain.
type pd struct {
	dev *device
	c   cverbs.PD
}

var _ driver.PD = (*pd)(nil)

func (p *pd) Dealloc() error { return opErr("ibv_dealloc_pd", p.c.Dealloc()) }

// RegMR registers mem. Memory of the Go heap stays pinned by the caller.
func (p *pd) RegMR(mem []byte, acc driver.Access) (driver.MR, error) {
	if len(mem) == 0 {
		return nil, fmt.Errorf("ibv_reg_mr: no memory: %w", driver.ErrInvalid)
	}
	if acc&driver.AccessZeroBased != 0 {
		return nil, fmt.Errorf("ibv_reg_mr: zero-based addresses: %w", driver.ErrNotSupported)
	}
	addr := uintptr(unsafe.Pointer(unsafe.SliceData(mem)))
	c, err := p.c.RegMR(addr, uint64(len(mem)), uint32(acc))
	runtime.KeepAlive(mem)
	if err != nil {
		return nil, p.dev.regErr(len(mem), err)
	}
	m := &mr{c: c, addr: uint64(addr), length: uint64(len(mem))}
	if acc&driver.AccessRemote != 0 {
		m.rkey = c.RKey()
	}
	return m, nil
}

func (p *pd) RegScoped(driver.MR, uint64, uint64, driver.Access, driver.QP) (driver.MR, error) {
	return nil, fmt.Errorf("scoped keys: %w", driver.ErrNotSupported)
}

// mr is a memory region.
type mr struct {
	c            cverbs.MR
	addr, length uint64
	rkey         uint32
}

var _ driver.MR = (*mr)(nil)

func (m *mr) Addr() uint64   { return m.addr }
func (m *mr) Length() uint64 { return m.length }
func (m *mr) LKey() uint32   { return m.c.LKey() }
func (m *mr) RKey() uint32   { return m.rkey }

func (m *mr) Deregister() error { return opErr("ibv_dereg_mr", m.c.Dereg()) }
