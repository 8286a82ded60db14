//go:build ibverbs && linux && cgo

package cverbs

/*
#include "shim.h"
#cgo noescape ibv_poll_cq
#cgo nocallback ibv_poll_cq
#cgo noescape av_poll_arm
#cgo nocallback av_poll_arm
#cgo noescape ibv_get_cq_event
#cgo nocallback ibv_get_cq_event
*/
import "C"

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// CompChannel is a struct ibv_comp_channel.
type CompChannel struct{ c *C.struct_ibv_comp_channel }

// CreateCompChannel calls ibv_create_comp_channel.
func (c Context) CreateCompChannel() (CompChannel, error) {
	ch, errno := C.ibv_create_comp_channel(c.c)
	if ch == nil {
		return CompChannel{}, fallback(errno)
	}
	return CompChannel{ch}, nil
}

// FD is the descriptor that GetCQEvent reads from.
func (ch CompChannel) FD() int { return int(ch.c.fd) }

// GetCQEvent calls ibv_get_cq_event; unix.EAGAIN when there is none and the
// descriptor does not block. Every event must be acknowledged.
func (ch CompChannel) GetCQEvent() (CQ, error) {
	var (
		cq  *C.struct_ibv_cq
		ctx unsafe.Pointer
	)
	rc, errno := C.ibv_get_cq_event(ch.c, &cq, &ctx)
	if rc != 0 {
		return CQ{}, fallback(errno)
	}
	return CQ{cq}, nil
}

// Destroy calls ibv_destroy_comp_channel.
func (ch CompChannel) Destroy() error {
	rc, errno := C.ibv_destroy_comp_channel(ch.c)
	return errnoOf(rc, errno)
}

// CQ is a struct ibv_cq.
type CQ struct{ c *C.struct_ibv_cq }

// CreateCQ calls ibv_create_cq. The zero CompChannel is none.
func (c Context) CreateCQ(depth int, ch CompChannel, vector int) (CQ, error) {
	cq, errno := C.ibv_create_cq(c.c, C.int(depth), nil, ch.c, C.int(vector))
	if cq == nil {
		return CQ{}, fallback(errno)
	}
	return CQ{cq}, nil
}

// ReqNotify calls ibv_req_notify_cq.
func (q CQ) ReqNotify(solicitedOnly bool) error {
	var only C.int
	if solicitedOnly {
		only = 1
	}
	rc, errno := C.ibv_req_notify_cq(q.c, only)
	return errnoOf(rc, errno)
}

// AckEvents calls ibv_ack_cq_events.
func (q CQ) AckEvents(n int) { C.ibv_ack_cq_events(q.c, C.uint(n)) }

// Destroy calls ibv_destroy_cq. It blocks until every event got from the CQ is
// acknowledged.
func (q CQ) Destroy() error {
	rc, errno := C.ibv_destroy_cq(q.c)
	return errnoOf(rc, errno)
}

// WC has the layout of struct ibv_wc.
type WC struct {
	WRID      uint64
	Status    uint32
	Opcode    uint32
	VendorErr uint32
	ByteLen   uint32
	ImmOrRKey uint32 // immediate data in network order, or the key that was invalidated
	QPN       uint32
	SrcQP     uint32
	Flags     uint32
	PKeyIndex uint16
	SLID      uint16
	SL        uint8
	DLIDPath  uint8
	_         [2]byte
}

// The compiler refuses these lines where the layouts differ.
var (
	_ [unsafe.Sizeof(WC{})]byte            = [C.sizeof_struct_ibv_wc]byte{}
	_ [unsafe.Offsetof(WC{}.Status)]byte   = [unsafe.Offsetof(C.struct_ibv_wc{}.status)]byte{}
	_ [unsafe.Offsetof(WC{}.Opcode)]byte   = [unsafe.Offsetof(C.struct_ibv_wc{}.opcode)]byte{}
	_ [unsafe.Offsetof(WC{}.ByteLen)]byte  = [unsafe.Offsetof(C.struct_ibv_wc{}.byte_len)]byte{}
	_ [unsafe.Offsetof(WC{}.QPN)]byte      = [unsafe.Offsetof(C.struct_ibv_wc{}.qp_num)]byte{}
	_ [unsafe.Offsetof(WC{}.Flags)]byte    = [unsafe.Offsetof(C.struct_ibv_wc{}.wc_flags)]byte{}
	_ [unsafe.Offsetof(WC{}.DLIDPath)]byte = [unsafe.Offsetof(C.struct_ibv_wc{}.dlid_path_bits)]byte{}
)

// Values of WC.Opcode and WC.Flags.
const (
	WCSend       = C.IBV_WC_SEND
	WCWrite      = C.IBV_WC_RDMA_WRITE
	WCRead       = C.IBV_WC_RDMA_READ
	WCCompSwap   = C.IBV_WC_COMP_SWAP
	WCFetchAdd   = C.IBV_WC_FETCH_ADD
	WCBindMW     = C.IBV_WC_BIND_MW
	WCLocalInv   = C.IBV_WC_LOCAL_INV
	WCRecv       = C.IBV_WC_RECV
	WCRecvImm    = C.IBV_WC_RECV_RDMA_WITH_IMM
	WCFlagImm    = C.IBV_WC_WITH_IMM
	WCFlagInv    = C.IBV_WC_WITH_INV
	WCFlagIPCsum = C.IBV_WC_IP_CSUM_OK
)

// Poll calls ibv_poll_cq, which returns a negative number on failure.
func (q CQ) Poll(wcs []WC) int {
	if len(wcs) == 0 {
		return 0
	}
	return int(C.ibv_poll_cq(q.c, C.int(len(wcs)), (*C.struct_ibv_wc)(unsafe.Pointer(&wcs[0]))))
}

// PollArm calls ibv_poll_cq and, when there is nothing, ibv_req_notify_cq and
// ibv_poll_cq again. n is negative when polling failed; err is of the arming.
func (q CQ) PollArm(wcs []WC) (n int, armed bool, err error) {
	if len(wcs) == 0 {
		return 0, false, nil
	}
	n = int(C.av_poll_arm(q.c, C.int(len(wcs)), (*C.struct_ibv_wc)(unsafe.Pointer(&wcs[0]))))
	switch {
	case n >= C.AV_ARM_FAILED:
		return 0, false, unix.Errno(n - C.AV_ARM_FAILED)
	case n >= C.AV_ARMED:
		return n - C.AV_ARMED, true, nil
	}
	return n, false, nil
}
