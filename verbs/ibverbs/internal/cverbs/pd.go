//go:build ibverbs && linux && cgo

package cverbs

/*
#include "shim.h"
*/
import "C"

import "unsafe"

// PD is a struct ibv_pd.
type PD struct{ c *C.struct_ibv_pd }

// AllocPD calls ibv_alloc_pd.
func (c Context) AllocPD() (PD, error) {
	pd, errno := C.ibv_alloc_pd(c.c)
	if pd == nil {
		return PD{}, fallback(errno)
	}
	return PD{pd}, nil
}

// Dealloc calls ibv_dealloc_pd.
func (p PD) Dealloc() error {
	rc, errno := C.ibv_dealloc_pd(p.c)
	return errnoOf(rc, errno)
}

// MR is a struct ibv_mr.
type MR struct{ c *C.struct_ibv_mr }

// RegMR calls ibv_reg_mr. The memory stays mapped, and does not move, until
// DeregMR.
func (p PD) RegMR(addr uintptr, length uint64, access uint32) (MR, error) {
	mr, errno := C.av_reg_mr(p.c, C.uintptr_t(addr), C.size_t(length), C.int(access))
	if mr == nil {
		return MR{}, fallback(errno)
	}
	return MR{mr}, nil
}

// LKey is the local key.
func (m MR) LKey() uint32 { return uint32(m.c.lkey) }

// RKey is the remote key.
func (m MR) RKey() uint32 { return uint32(m.c.rkey) }

// Handle is the C pointer as SendWR takes it.
func (m MR) Handle() uint64 { return uint64(uintptr(unsafe.Pointer(m.c))) }

// Dereg calls ibv_dereg_mr.
func (m MR) Dereg() error {
	rc, errno := C.ibv_dereg_mr(m.c)
	return errnoOf(rc, errno)
}

// MW is a struct ibv_mw.
type MW struct{ c *C.struct_ibv_mw }

// AllocMW calls ibv_alloc_mw with IBV_MW_TYPE_2.
func (p PD) AllocMW() (MW, error) {
	mw, errno := C.ibv_alloc_mw(p.c, C.IBV_MW_TYPE_2)
	if mw == nil {
		return MW{}, fallback(errno)
	}
	return MW{mw}, nil
}

// RKey is the remote key.
func (w MW) RKey() uint32 { return uint32(w.c.rkey) }

// SetRKey records the key of the bind that was posted last: ibv_post_send leaves
// that to its caller, and names the window by it.
func (w MW) SetRKey(rkey uint32) { w.c.rkey = C.uint32_t(rkey) }

// Handle is the C pointer as SendWR takes it.
func (w MW) Handle() uint64 { return uint64(uintptr(unsafe.Pointer(w.c))) }

// Dealloc calls ibv_dealloc_mw.
func (w MW) Dealloc() error {
	rc, errno := C.ibv_dealloc_mw(w.c)
	return errnoOf(rc, errno)
}
