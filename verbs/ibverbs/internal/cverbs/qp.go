//go:build ibverbs && linux && cgo

package cverbs

/*
#include "shim.h"
#cgo noescape av_post_send
#cgo nocallback av_post_send
#cgo noescape av_post_recv
#cgo nocallback av_post_recv
#cgo noescape av_post_srq_recv
#cgo nocallback av_post_srq_recv
*/
import "C"

import (
	"math/bits"
	"unsafe"

	"golang.org/x/sys/unix"
)

// MaxBatch is the largest number of work requests or completions of one call.
const MaxBatch = C.AV_MAX_BATCH

// Operations of SendWR.
const (
	OpWrite        = C.IBV_WR_RDMA_WRITE
	OpWriteWithImm = C.IBV_WR_RDMA_WRITE_WITH_IMM
	OpSend         = C.IBV_WR_SEND
	OpSendWithImm  = C.IBV_WR_SEND_WITH_IMM
	OpRead         = C.IBV_WR_RDMA_READ
	OpCompareSwap  = C.IBV_WR_ATOMIC_CMP_AND_SWP
	OpFetchAdd     = C.IBV_WR_ATOMIC_FETCH_AND_ADD
	OpLocalInv     = C.IBV_WR_LOCAL_INV
	OpBindMW       = C.IBV_WR_BIND_MW
	OpSendWithInv  = C.IBV_WR_SEND_WITH_INV
)

// SGE has the layout of struct ibv_sge.
type SGE struct {
	Addr   uint64
	Length uint32
	LKey   uint32
}

// SendWR is a request of PostSend.
type SendWR struct {
	WRID, RemoteAddr, CompareAdd, Swap uint64
	MW, MR, BindAddr, BindLength       uint64 // MW and MR: Handle
	Opcode, Flags, NumSGE, RKey        uint32
	Imm                                uint32 // host order
	InvalidateRKey, BindRKey           uint32
	BindAccess                         uint32
}

// RecvWR is a request of PostRecv.
type RecvWR struct {
	WRID   uint64
	NumSGE uint32
	_      uint32
}

// The compiler refuses these lines where the layouts differ.
var (
	_ [unsafe.Sizeof(SGE{})]byte                     = [C.sizeof_struct_ibv_sge]byte{}
	_ [unsafe.Offsetof(SGE{}.LKey)]byte              = [unsafe.Offsetof(C.struct_ibv_sge{}.lkey)]byte{}
	_ [unsafe.Sizeof(SendWR{})]byte                  = [C.sizeof_struct_av_send_wr]byte{}
	_ [unsafe.Offsetof(SendWR{}.BindLength)]byte     = [unsafe.Offsetof(C.struct_av_send_wr{}.bind_length)]byte{}
	_ [unsafe.Offsetof(SendWR{}.RKey)]byte           = [unsafe.Offsetof(C.struct_av_send_wr{}.rkey)]byte{}
	_ [unsafe.Offsetof(SendWR{}.BindAccess)]byte     = [unsafe.Offsetof(C.struct_av_send_wr{}.bind_access)]byte{}
	_ [unsafe.Sizeof(RecvWR{})]byte                  = [C.sizeof_struct_av_recv_wr]byte{}
	_ [unsafe.Offsetof(RecvWR{}.NumSGE)]byte         = [unsafe.Offsetof(C.struct_av_recv_wr{}.num_sge)]byte{}
	_ [unsafe.Offsetof(SendWR{}.CompareAdd)]byte     = [unsafe.Offsetof(C.struct_av_send_wr{}.compare_add)]byte{}
	_ [unsafe.Offsetof(SendWR{}.InvalidateRKey)]byte = [unsafe.Offsetof(C.struct_av_send_wr{}.invalidate_rkey)]byte{}
)

// QP is a struct ibv_qp.
type QP struct{ c *C.struct_ibv_qp }

// QPInitAttr is what is used of ibv_qp_init_attr.
type QPInitAttr struct {
	SendCQ, RecvCQ         CQ
	SRQ                    SRQ // zero: none
	MaxSendWR, MaxRecvWR   int
	MaxSendSGE, MaxRecvSGE int
	MaxInline              int
}

// CreateQP calls ibv_create_qp for an RC queue pair and stores the depths that
// the device made of those asked for.
func (p PD) CreateQP(a *QPInitAttr) (QP, error) {
	init := C.struct_ibv_qp_init_attr{
		send_cq: a.SendCQ.c,
		recv_cq: a.RecvCQ.c,
		srq:     a.SRQ.c,
		qp_type: C.IBV_QPT_RC,
		cap: C.struct_ibv_qp_cap{
			max_send_wr:     C.uint32_t(a.MaxSendWR),
			max_recv_wr:     C.uint32_t(a.MaxRecvWR),
			max_send_sge:    C.uint32_t(a.MaxSendSGE),
			max_recv_sge:    C.uint32_t(a.MaxRecvSGE),
			max_inline_data: C.uint32_t(a.MaxInline),
		},
	}
	qp, errno := C.ibv_create_qp(p.c, &init)
	if qp == nil {
		return QP{}, fallback(errno)
	}
	a.MaxSendWR, a.MaxRecvWR = int(init.cap.max_send_wr), int(init.cap.max_recv_wr)
	a.MaxSendSGE, a.MaxRecvSGE = int(init.cap.max_send_sge), int(init.cap.max_recv_sge)
	a.MaxInline = int(init.cap.max_inline_data)
	return QP{qp}, nil
}

// QPN is the queue pair's number.
func (q QP) QPN() uint32 { return uint32(q.c.qp_num) }

// QPAttr is a struct ibv_qp_attr and the mask of the attributes that count.
type QPAttr struct {
	c    C.struct_ibv_qp_attr
	mask C.int
}

// SetState sets qp_state.
func (a *QPAttr) SetState(state int) {
	a.c.qp_state = uint32(state)
	a.mask |= C.IBV_QP_STATE
}

// SetAccess sets qp_access_flags.
func (a *QPAttr) SetAccess(access uint32) {
	a.c.qp_access_flags = C.uint(access)
	a.mask |= C.IBV_QP_ACCESS_FLAGS
}

// SetPort sets port_num and pkey_index.
func (a *QPAttr) SetPort(port, pkeyIndex int) {
	a.c.port_num = C.uint8_t(port)
	a.c.pkey_index = C.uint16_t(pkeyIndex)
	a.mask |= C.IBV_QP_PORT | C.IBV_QP_PKEY_INDEX
}

// Port is port_num.
func (a *QPAttr) Port() int { return int(a.c.port_num) }

// PKeyIndex is pkey_index.
func (a *QPAttr) PKeyIndex() int { return int(a.c.pkey_index) }

// SetMinRNRTimer sets min_rnr_timer.
func (a *QPAttr) SetMinRNRTimer(code int) {
	a.c.min_rnr_timer = C.uint8_t(code)
	a.mask |= C.IBV_QP_MIN_RNR_TIMER
}

// SetMaxDestRdAtomic sets max_dest_rd_atomic.
func (a *QPAttr) SetMaxDestRdAtomic(n int) {
	a.c.max_dest_rd_atomic = C.uint8_t(n)
	a.mask |= C.IBV_QP_MAX_DEST_RD_ATOMIC
}

// SetMaxRdAtomic sets max_rd_atomic.
func (a *QPAttr) SetMaxRdAtomic(n int) {
	a.c.max_rd_atomic = C.uint8_t(n)
	a.mask |= C.IBV_QP_MAX_QP_RD_ATOMIC
}

// SetRetry sets timeout, retry_cnt and rnr_retry.
func (a *QPAttr) SetRetry(timeout, retry, rnrRetry int) {
	a.c.timeout = C.uint8_t(timeout)
	a.c.retry_cnt = C.uint8_t(retry)
	a.c.rnr_retry = C.uint8_t(rnrRetry)
	a.mask |= C.IBV_QP_TIMEOUT | C.IBV_QP_RETRY_CNT | C.IBV_QP_RNR_RETRY
}

// SetSendPSN sets sq_psn.
func (a *QPAttr) SetSendPSN(psn uint32) {
	a.c.sq_psn = C.uint32_t(psn)
	a.mask |= C.IBV_QP_SQ_PSN
}

// SetPeer sets dest_qp_num, rq_psn and path_mtu, in bytes.
func (a *QPAttr) SetPeer(qpn, psn uint32, mtu int) {
	a.c.dest_qp_num, a.c.rq_psn = C.uint32_t(qpn), C.uint32_t(psn)
	a.c.path_mtu = uint32(bits.Len(uint(mtu)) - bits.Len(128)) // IBV_MTU_256 is 1
	a.mask |= C.IBV_QP_DEST_QPN | C.IBV_QP_RQ_PSN | C.IBV_QP_PATH_MTU
}

// AddressVector is what is used of ibv_ah_attr.
type AddressVector struct {
	Port         int
	LID          uint16
	ServiceLevel int

	Global       bool // the rest counts
	GID          [16]byte
	SGIDIndex    int
	HopLimit     int
	TrafficClass int
	FlowLabel    uint32
}

// SetPath sets ah_attr.
func (a *QPAttr) SetPath(v *AddressVector) {
	h := &a.c.ah_attr
	h.port_num, h.dlid, h.sl = C.uint8_t(v.Port), C.uint16_t(v.LID), C.uint8_t(v.ServiceLevel)
	if v.Global {
		h.is_global = 1
		h.grh.dgid = v.GID
		h.grh.sgid_index, h.grh.hop_limit = C.uint8_t(v.SGIDIndex), C.uint8_t(v.HopLimit)
		h.grh.traffic_class, h.grh.flow_label = C.uint8_t(v.TrafficClass), C.uint32_t(v.FlowLabel)
	}
	a.mask |= C.IBV_QP_AV
}

// Modify calls ibv_modify_qp.
func (q QP) Modify(a *QPAttr) error {
	rc, errno := C.ibv_modify_qp(q.c, &a.c, a.mask)
	return errnoOf(rc, errno)
}

// QueryState calls ibv_query_qp and returns qp_state.
func (q QP) QueryState() (int, error) {
	var (
		attr C.struct_ibv_qp_attr
		init C.struct_ibv_qp_init_attr
	)
	rc, errno := C.ibv_query_qp(q.c, &attr, C.IBV_QP_STATE, &init)
	return int(attr.qp_state), errnoOf(rc, errno)
}

// Destroy calls ibv_destroy_qp. It blocks until every event of the QP is
// acknowledged, and on some devices much longer.
func (q QP) Destroy() error {
	rc, errno := C.ibv_destroy_qp(q.c)
	return errnoOf(rc, errno)
}

// posted unpacks av_posted.
func posted(r C.int64_t) (int, unix.Errno) { return int(r >> 32), unix.Errno(uint32(r)) }

// first is the address of s[0], or nil.
func first(s []SGE) *C.struct_ibv_sge {
	return (*C.struct_ibv_sge)(unsafe.Pointer(unsafe.SliceData(s)))
}

// PostSend calls ibv_post_send for at least one and at most MaxBatch requests,
// whose SGEs follow each other in sges. It returns how many are in the queue,
// by bad_wr alone, and the error number, which may come with all of them.
func (q QP) PostSend(wrs []SendWR, sges []SGE) (int, unix.Errno) {
	return posted(C.av_post_send(q.c, (*C.struct_av_send_wr)(unsafe.Pointer(&wrs[0])), first(sges), C.int(len(wrs))))
}

// PostRecv calls ibv_post_recv, as PostSend.
func (q QP) PostRecv(wrs []RecvWR, sges []SGE) (int, unix.Errno) {
	return posted(C.av_post_recv(q.c, (*C.struct_av_recv_wr)(unsafe.Pointer(&wrs[0])), first(sges), C.int(len(wrs))))
}

// SRQ is a struct ibv_srq.
type SRQ struct{ c *C.struct_ibv_srq }

// CreateSRQ calls ibv_create_srq.
func (p PD) CreateSRQ(maxWR, maxSGE int) (SRQ, error) {
	init := C.struct_ibv_srq_init_attr{
		attr: C.struct_ibv_srq_attr{max_wr: C.uint32_t(maxWR), max_sge: C.uint32_t(maxSGE)},
	}
	srq, errno := C.ibv_create_srq(p.c, &init)
	if srq == nil {
		return SRQ{}, fallback(errno)
	}
	return SRQ{srq}, nil
}

// SetLimit calls ibv_modify_srq with IBV_SRQ_LIMIT.
func (s SRQ) SetLimit(n int) error {
	attr := C.struct_ibv_srq_attr{srq_limit: C.uint32_t(n)}
	rc, errno := C.ibv_modify_srq(s.c, &attr, C.IBV_SRQ_LIMIT)
	return errnoOf(rc, errno)
}

// PostRecv calls ibv_post_srq_recv, as QP.PostSend.
func (s SRQ) PostRecv(wrs []RecvWR, sges []SGE) (int, unix.Errno) {
	return posted(C.av_post_srq_recv(s.c, (*C.struct_av_recv_wr)(unsafe.Pointer(&wrs[0])), first(sges), C.int(len(wrs))))
}

// Destroy calls ibv_destroy_srq.
func (s SRQ) Destroy() error {
	rc, errno := C.ibv_destroy_srq(s.c)
	return errnoOf(rc, errno)
}
