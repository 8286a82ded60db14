//go:build ibverbs && linux && cgo

package cverbs

/*
#cgo LDFLAGS: -libverbs -lrdmacm
#include "shim.h"
*/
import "C"

import (
	"errors"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Values of enums that callers compare with.
const (
	TransportIB    = C.IBV_TRANSPORT_IB
	TransportIWARP = C.IBV_TRANSPORT_IWARP

	LinkLayerEthernet = C.IBV_LINK_LAYER_ETHERNET

	PortActive = C.IBV_PORT_ACTIVE

	CapMWType2A         = C.IBV_DEVICE_MEM_WINDOW_TYPE_2A
	CapMWType2B         = C.IBV_DEVICE_MEM_WINDOW_TYPE_2B
	CapMemMgtExtensions = C.IBV_DEVICE_MEM_MGT_EXTENSIONS

	AtomicNone = C.IBV_ATOMIC_NONE

	ODPSupport      = C.IBV_ODP_SUPPORT
	ODPSupportSend  = C.IBV_ODP_SUPPORT_SEND
	ODPSupportRecv  = C.IBV_ODP_SUPPORT_RECV
	ODPSupportWrite = C.IBV_ODP_SUPPORT_WRITE
	ODPSupportRead  = C.IBV_ODP_SUPPORT_READ
)

// errnoOf is rc, as the functions of libibverbs return it (0, errno, or -errno
// in some providers; -1 with errno set), as an error.
func errnoOf(rc C.int, errno error) error {
	switch {
	case rc == 0:
		return nil
	case rc == -1:
		return fallback(errno)
	case rc < 0:
		return unix.Errno(-rc)
	default:
		return unix.Errno(rc)
	}
}

// ErrUnknown stands for an errno that the library did not set.
var ErrUnknown = errors.New("the library gives no reason")

func fallback(errno error) error {
	if errno == nil {
		return ErrUnknown
	}
	return errno
}

// ForkInit calls ibv_fork_init unless ibv_is_fork_initialized says that the
// kernel needs none. To be called before the first registration.
func ForkInit() error {
	if C.ibv_is_fork_initialized() != C.IBV_FORK_DISABLED {
		return nil
	}
	HugePagesSafe()
	rc, errno := C.ibv_fork_init()
	return errnoOf(rc, errno)
}

// HugePagesSafe has ibv_fork_init allow for memory in huge pages, for which it asks
// the environment (ibv_fork_init(3)): that of the C library, which os.Setenv
// would set too, but with it that of every program that is started. It returns
// what is set, which may have been already.
func HugePagesSafe() string {
	name, on := C.CString("RDMAV_HUGEPAGES_SAFE"), C.CString("1")
	defer C.free(unsafe.Pointer(name))
	defer C.free(unsafe.Pointer(on))
	C.setenv(name, on, 0)
	return C.GoString(C.getenv(name))
}

// DeviceList is the result of ibv_get_device_list.
type DeviceList struct {
	list **C.struct_ibv_device
	n    int
}

// GetDeviceList calls ibv_get_device_list.
func GetDeviceList() (DeviceList, error) {
	var n C.int
	list, errno := C.ibv_get_device_list(&n)
	if list == nil {
		return DeviceList{}, fallback(errno)
	}
	return DeviceList{list, int(n)}, nil
}

// Free calls ibv_free_device_list.
func (l DeviceList) Free() { C.ibv_free_device_list(l.list) }

// Len is the number of devices.
func (l DeviceList) Len() int { return l.n }

func (l DeviceList) device(i int) *C.struct_ibv_device { return unsafe.Slice(l.list, l.n)[i] }

// Name is ibv_get_device_name of device i.
func (l DeviceList) Name(i int) string { return C.GoString(C.ibv_get_device_name(l.device(i))) }

// Open calls ibv_open_device.
func (l DeviceList) Open(i int) (Context, error) {
	ctx, errno := C.ibv_open_device(l.device(i))
	if ctx == nil {
		return Context{}, fallback(errno)
	}
	return Context{ctx}, nil
}

// Context is a struct ibv_context.
type Context struct{ c *C.struct_ibv_context }

// Close calls ibv_close_device.
func (c Context) Close() error {
	rc, errno := C.ibv_close_device(c.c)
	return errnoOf(rc, errno)
}

// Name is the name of the device.
func (c Context) Name() string { return C.GoString(C.ibv_get_device_name(c.c.device)) }

// Transport is the device's transport type.
func (c Context) Transport() int { return int(c.c.device.transport_type) }

// AsyncFD is the descriptor that GetAsyncEvent reads from.
func (c Context) AsyncFD() int { return int(c.c.async_fd) }

// NumCompVectors is the number of interrupt vectors for CQs.
func (c Context) NumCompVectors() int { return int(c.c.num_comp_vectors) }

// DeviceAttr is what is used of ibv_device_attr_ex.
type DeviceAttr struct {
	VendorID, VendorPartID uint32
	CapFlags               uint32
	MaxMRSize              uint64
	MaxQP, MaxQPWR         int
	MaxSGE, MaxSGERead     int
	MaxCQ, MaxCQE          int
	MaxMR, MaxPD, MaxMW    int
	MaxQPRdAtom            int // what a QP answers at a time
	MaxQPInitRdAtom        int // what a QP has outstanding at a time
	MaxSRQ, MaxSRQWR       int
	MaxSRQSGE              int
	PhysPorts              int
	AtomicCap              uint32
	ODPGeneralCaps         uint64
	ODPRCCaps              uint32
}

// QueryDevice calls ibv_query_device_ex.
func (c Context) QueryDevice() (DeviceAttr, error) {
	var ex C.struct_ibv_device_attr_ex
	rc, errno := C.ibv_query_device_ex(c.c, nil, &ex)
	if err := errnoOf(rc, errno); err != nil {
		return DeviceAttr{}, err
	}
	a := &ex.orig_attr
	return DeviceAttr{
		VendorID:        uint32(a.vendor_id),
		VendorPartID:    uint32(a.vendor_part_id),
		CapFlags:        uint32(a.device_cap_flags),
		MaxMRSize:       uint64(a.max_mr_size),
		MaxQP:           int(a.max_qp),
		MaxQPWR:         int(a.max_qp_wr),
		MaxSGE:          int(a.max_sge),
		MaxSGERead:      int(a.max_sge_rd),
		MaxCQ:           int(a.max_cq),
		MaxCQE:          int(a.max_cqe),
		MaxMR:           int(a.max_mr),
		MaxPD:           int(a.max_pd),
		MaxMW:           int(a.max_mw),
		MaxQPRdAtom:     int(a.max_qp_rd_atom),
		MaxQPInitRdAtom: int(a.max_qp_init_rd_atom),
		MaxSRQ:          int(a.max_srq),
		MaxSRQWR:        int(a.max_srq_wr),
		MaxSRQSGE:       int(a.max_srq_sge),
		PhysPorts:       int(a.phys_port_cnt),
		AtomicCap:       a.atomic_cap,
		ODPGeneralCaps:  uint64(ex.odp_caps.general_caps),
		ODPRCCaps:       uint32(ex.odp_caps.per_transport_caps.rc_odp_caps),
	}, nil
}

// PortAttr is what is used of ibv_port_attr.
type PortAttr struct {
	State     int
	LinkLayer int
	MaxMsgSz  uint32
	LID       uint16
	ActiveMTU int // bytes
}

// QueryPort calls ibv_query_port; ports count from 1.
func (c Context) QueryPort(port int) (PortAttr, error) {
	var a C.struct_ibv_port_attr
	rc, errno := C.av_query_port(c.c, C.uint8_t(port), &a)
	if err := errnoOf(rc, errno); err != nil {
		return PortAttr{}, err
	}
	return PortAttr{
		State: int(a.state), LinkLayer: int(a.link_layer), MaxMsgSz: uint32(a.max_msg_sz), LID: uint16(a.lid),
		ActiveMTU: 128 << a.active_mtu, // IBV_MTU_256 is 1
	}, nil
}

// QueryGID calls ibv_query_gid.
func (c Context) QueryGID(port, index int) ([16]byte, error) {
	var gid C.union_ibv_gid
	rc, errno := C.ibv_query_gid(c.c, C.uint8_t(port), C.int(index), &gid)
	return gid, errnoOf(rc, errno)
}

// AsyncEvent is a copy of an ibv_async_event. Which of the objects is set
// depends on Type.
type AsyncEvent struct {
	c    C.struct_ibv_async_event
	Type int
	QP   QP
	CQ   CQ
	SRQ  SRQ
	Port int
}

// GetAsyncEvent calls ibv_get_async_event; unix.EAGAIN when there is none and
// the descriptor does not block. Every event must be acknowledged.
func (c Context) GetAsyncEvent() (AsyncEvent, error) {
	var e AsyncEvent
	rc, errno := C.ibv_get_async_event(c.c, &e.c)
	if rc != 0 {
		return AsyncEvent{}, fallback(errno)
	}
	e.Type = int(e.c.event_type)
	switch e.c.event_type {
	case C.IBV_EVENT_CQ_ERR:
		e.CQ = CQ{C.av_event_cq(&e.c)}
	case C.IBV_EVENT_QP_FATAL, C.IBV_EVENT_QP_REQ_ERR, C.IBV_EVENT_QP_ACCESS_ERR, C.IBV_EVENT_COMM_EST,
		C.IBV_EVENT_SQ_DRAINED, C.IBV_EVENT_PATH_MIG, C.IBV_EVENT_PATH_MIG_ERR, C.IBV_EVENT_QP_LAST_WQE_REACHED:
		e.QP = QP{C.av_event_qp(&e.c)}
	case C.IBV_EVENT_SRQ_ERR, C.IBV_EVENT_SRQ_LIMIT_REACHED:
		e.SRQ = SRQ{C.av_event_srq(&e.c)}
	case C.IBV_EVENT_PORT_ACTIVE, C.IBV_EVENT_PORT_ERR, C.IBV_EVENT_LID_CHANGE, C.IBV_EVENT_PKEY_CHANGE,
		C.IBV_EVENT_SM_CHANGE, C.IBV_EVENT_CLIENT_REREGISTER, C.IBV_EVENT_GID_CHANGE:
		e.Port = int(C.av_event_port(&e.c))
	}
	return e, nil
}

// Ack calls ibv_ack_async_event.
func (e *AsyncEvent) Ack() { C.ibv_ack_async_event(&e.c) }
