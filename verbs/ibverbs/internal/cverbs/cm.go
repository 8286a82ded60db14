//go:build ibverbs && linux && cgo

package cverbs

/*
#include "shim.h"
*/
import "C"

import (
	"net/netip"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Events of the connection manager.
const (
	CMAddrResolved    = C.RDMA_CM_EVENT_ADDR_RESOLVED
	CMAddrError       = C.RDMA_CM_EVENT_ADDR_ERROR
	CMRouteResolved   = C.RDMA_CM_EVENT_ROUTE_RESOLVED
	CMRouteError      = C.RDMA_CM_EVENT_ROUTE_ERROR
	CMConnectRequest  = C.RDMA_CM_EVENT_CONNECT_REQUEST
	CMConnectResponse = C.RDMA_CM_EVENT_CONNECT_RESPONSE
	CMConnectError    = C.RDMA_CM_EVENT_CONNECT_ERROR
	CMUnreachable     = C.RDMA_CM_EVENT_UNREACHABLE
	CMRejected        = C.RDMA_CM_EVENT_REJECTED
	CMEstablished     = C.RDMA_CM_EVENT_ESTABLISHED
	CMDisconnected    = C.RDMA_CM_EVENT_DISCONNECTED
	CMDeviceRemoval   = C.RDMA_CM_EVENT_DEVICE_REMOVAL
	CMAddrChange      = C.RDMA_CM_EVENT_ADDR_CHANGE
	CMTimewaitExit    = C.RDMA_CM_EVENT_TIMEWAIT_EXIT
)

// CMEventName is rdma_event_str.
func CMEventName(event int) string { return C.GoString(C.rdma_event_str(uint32(event))) }

// EventChannel is a struct rdma_event_channel.
type EventChannel struct{ c *C.struct_rdma_event_channel }

// CreateEventChannel calls rdma_create_event_channel.
func CreateEventChannel() (EventChannel, error) {
	ch, errno := C.rdma_create_event_channel()
	if ch == nil {
		return EventChannel{}, fallback(errno)
	}
	return EventChannel{ch}, nil
}

// FD is the descriptor that GetEvent reads from.
func (ch EventChannel) FD() int { return int(ch.c.fd) }

// Destroy calls rdma_destroy_event_channel.
func (ch EventChannel) Destroy() { C.rdma_destroy_event_channel(ch.c) }

// CMEvent is a copy of a struct rdma_cm_event.
type CMEvent struct {
	c        *C.struct_rdma_cm_event
	ID       ID
	ListenID ID // of a connect request
	Type     int
	Status   int
	Conn     ConnParam // of events with connection data
}

// ConnParam is a struct rdma_conn_param.
type ConnParam struct {
	PrivateData        []byte
	ResponderResources int
	InitiatorDepth     int
	RetryCount         int
	RNRRetryCount      int
	SRQ                bool
	QPN                uint32
}

// GetEvent calls rdma_get_cm_event; unix.EAGAIN when there is none and the
// descriptor does not block. Every event must be acknowledged; the copy stays
// valid.
func (ch EventChannel) GetEvent() (CMEvent, error) {
	var e *C.struct_rdma_cm_event
	rc, errno := C.rdma_get_cm_event(ch.c, &e)
	if rc != 0 {
		return CMEvent{}, fallback(errno)
	}
	ev := CMEvent{c: e, ID: ID{e.id}, ListenID: ID{e.listen_id}, Type: int(e.event), Status: int(e.status)}
	switch ev.Type {
	case CMConnectRequest, CMConnectResponse, CMEstablished, CMRejected, CMDisconnected:
		p := C.av_event_conn(e)
		ev.Conn = ConnParam{
			ResponderResources: int(p.responder_resources),
			InitiatorDepth:     int(p.initiator_depth),
			RetryCount:         int(p.retry_count),
			RNRRetryCount:      int(p.rnr_retry_count),
			SRQ:                p.srq != 0,
			QPN:                uint32(p.qp_num),
		}
		if p.private_data != nil && p.private_data_len > 0 {
			ev.Conn.PrivateData = C.GoBytes(p.private_data, C.int(p.private_data_len))
		}
	}
	return ev, nil
}

// Ack calls rdma_ack_cm_event.
func (e *CMEvent) Ack() {
	C.rdma_ack_cm_event(e.c)
	e.c = nil
}

// ID is a struct rdma_cm_id.
type ID struct{ c *C.struct_rdma_cm_id }

// CreateID calls rdma_create_id for RDMA_PS_TCP.
func (ch EventChannel) CreateID() (ID, error) {
	var id *C.struct_rdma_cm_id
	rc, errno := C.rdma_create_id(ch.c, &id, nil, C.RDMA_PS_TCP)
	if rc != 0 {
		return ID{}, fallback(errno)
	}
	return ID{id}, nil
}

// Destroy calls rdma_destroy_id. It blocks until every event of the identifier
// is acknowledged.
func (id ID) Destroy() error {
	rc, errno := C.rdma_destroy_id(id.c)
	return errnoOf(rc, errno)
}

// SockAddr is an IP address, port and, for link-local IPv6, interface.
type SockAddr struct {
	netip.AddrPort
	Scope uint32
}

// raw stores a as a struct sockaddr.
func (a SockAddr) raw(s *unix.RawSockaddrAny) *C.struct_sockaddr {
	port := a.Port()
	be := [2]byte{byte(port >> 8), byte(port)}
	if a.Addr().Is4() || a.Addr().Is4In6() {
		in := (*unix.RawSockaddrInet4)(unsafe.Pointer(s))
		in.Family = unix.AF_INET
		*(*[2]byte)(unsafe.Pointer(&in.Port)) = be
		in.Addr = a.Addr().As4()
	} else {
		in := (*unix.RawSockaddrInet6)(unsafe.Pointer(s))
		in.Family = unix.AF_INET6
		*(*[2]byte)(unsafe.Pointer(&in.Port)) = be
		in.Addr = a.Addr().As16()
		in.Scope_id = a.Scope
	}
	return (*C.struct_sockaddr)(unsafe.Pointer(s))
}

func sockAddr(sa *C.struct_sockaddr) SockAddr {
	if sa == nil {
		return SockAddr{}
	}
	switch sa.sa_family {
	case unix.AF_INET:
		in := (*unix.RawSockaddrInet4)(unsafe.Pointer(sa))
		be := *(*[2]byte)(unsafe.Pointer(&in.Port))
		return SockAddr{AddrPort: netip.AddrPortFrom(netip.AddrFrom4(in.Addr), uint16(be[0])<<8|uint16(be[1]))}
	case unix.AF_INET6:
		in := (*unix.RawSockaddrInet6)(unsafe.Pointer(sa))
		be := *(*[2]byte)(unsafe.Pointer(&in.Port))
		return SockAddr{netip.AddrPortFrom(netip.AddrFrom16(in.Addr), uint16(be[0])<<8|uint16(be[1])), in.Scope_id}
	}
	return SockAddr{}
}

// LocalAddr is rdma_get_local_addr.
func (id ID) LocalAddr() SockAddr { return sockAddr(C.rdma_get_local_addr(id.c)) }

// PeerAddr is rdma_get_peer_addr.
func (id ID) PeerAddr() SockAddr { return sockAddr(C.rdma_get_peer_addr(id.c)) }

// Device is the name of the device that the identifier is bound to, "" if none.
func (id ID) Device() string {
	if id.c.verbs == nil {
		return ""
	}
	return C.GoString(C.ibv_get_device_name(id.c.verbs.device))
}

// Port is the port that the identifier is bound to.
func (id ID) Port() int { return int(id.c.port_num) }

// BindAddr calls rdma_bind_addr.
func (id ID) BindAddr(a SockAddr) error {
	var s unix.RawSockaddrAny
	rc, errno := C.rdma_bind_addr(id.c, a.raw(&s))
	return errnoOf(rc, errno)
}

// Listen calls rdma_listen.
func (id ID) Listen(backlog int) error {
	rc, errno := C.rdma_listen(id.c, C.int(backlog))
	return errnoOf(rc, errno)
}

// ResolveAddr calls rdma_resolve_addr; src with an invalid address is none.
func (id ID) ResolveAddr(src, dst SockAddr, timeoutMS int) error {
	var (
		s, d unix.RawSockaddrAny
		from *C.struct_sockaddr
	)
	if src.Addr().IsValid() {
		from = src.raw(&s)
	}
	rc, errno := C.rdma_resolve_addr(id.c, from, dst.raw(&d), C.int(timeoutMS))
	return errnoOf(rc, errno)
}

// ResolveRoute calls rdma_resolve_route.
func (id ID) ResolveRoute(timeoutMS int) error {
	rc, errno := C.rdma_resolve_route(id.c, C.int(timeoutMS))
	return errnoOf(rc, errno)
}

// InitQPAttr calls rdma_init_qp_attr for the transition to state.
func (id ID) InitQPAttr(state int) (QPAttr, error) {
	var a QPAttr
	a.c.qp_state = uint32(state)
	rc, errno := C.rdma_init_qp_attr(id.c, &a.c, &a.mask)
	return a, errnoOf(rc, errno)
}

// with calls f with p as a struct rdma_conn_param in C memory.
func (p *ConnParam) with(f func(*C.struct_rdma_conn_param) error) error {
	c := C.struct_rdma_conn_param{
		private_data_len:    C.uint8_t(len(p.PrivateData)),
		responder_resources: C.uint8_t(p.ResponderResources),
		initiator_depth:     C.uint8_t(p.InitiatorDepth),
		retry_count:         C.uint8_t(p.RetryCount),
		rnr_retry_count:     C.uint8_t(p.RNRRetryCount),
		qp_num:              C.uint32_t(p.QPN),
	}
	if p.SRQ {
		c.srq = 1
	}
	if len(p.PrivateData) > 0 {
		data := C.CBytes(p.PrivateData)
		defer C.free(data)
		c.private_data = data
	}
	return f(&c)
}

// Connect calls rdma_connect.
func (id ID) Connect(p *ConnParam) error {
	return p.with(func(c *C.struct_rdma_conn_param) error {
		rc, errno := C.rdma_connect(id.c, c)
		return errnoOf(rc, errno)
	})
}

// Accept calls rdma_accept.
func (id ID) Accept(p *ConnParam) error {
	return p.with(func(c *C.struct_rdma_conn_param) error {
		rc, errno := C.rdma_accept(id.c, c)
		return errnoOf(rc, errno)
	})
}

// Establish calls rdma_establish.
func (id ID) Establish() error {
	rc, errno := C.rdma_establish(id.c)
	return errnoOf(rc, errno)
}

// Reject calls rdma_reject.
func (id ID) Reject(private []byte) error {
	data := C.CBytes(private)
	defer C.free(data)
	rc, errno := C.rdma_reject(id.c, data, C.uint8_t(len(private)))
	return errnoOf(rc, errno)
}

// Disconnect calls rdma_disconnect.
func (id ID) Disconnect() error {
	rc, errno := C.rdma_disconnect(id.c)
	return errnoOf(rc, errno)
}
