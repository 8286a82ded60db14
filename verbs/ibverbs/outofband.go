//go:build ibverbs && linux && cgo

package ibverbs

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/argonaut-rdma/argonaut/verbs/driver"
	"github.com/argonaut-rdma/argonaut/verbs/ibverbs/internal/cverbs"
)

const defaultHopLimit = 64

// localGID is an entry of the port's GID table.
type localGID struct {
	index int
	addr  netip.Addr // invalid: not known
}

// Endpoint asks the device anew: LID, MTU and GID may have changed.
func (q *qp) Endpoint() (driver.QPEndpoint, error) {
	ep, _, err := q.endpoint()
	return ep, err
}

// endpoint is Endpoint, with the index of the GID.
func (q *qp) endpoint() (ep driver.QPEndpoint, gidIndex int, err error) {
	d := q.dev
	if d.iwarp() {
		return ep, 0, driver.ErrNotSupported
	}
	p, err := d.ctx.QueryPort(d.port)
	if err != nil {
		return ep, 0, opErr("ibv_query_port", err)
	}
	g, err := d.ownGID()
	if err != nil {
		return ep, 0, err
	}
	return driver.QPEndpoint{QPN: q.qpn, PSN: q.psn, LID: p.LID, GID: g.addr, MTU: p.ActiveMTU}, g.index, nil
}

// ownGID is the entry that we speak from. It is looked for again when the one
// found before has changed.
func (d *device) ownGID() (localGID, error) {
	d.mu.Lock()
	g := d.found
	d.mu.Unlock()
	if d.gid != 0 {
		g.index = d.gid
	}
	if d.gid != 0 || g.addr.IsValid() {
		raw, err := d.ctx.QueryGID(d.port, g.index)
		addr := netip.AddrFrom16(raw)
		switch {
		case d.gid != 0 && (err != nil || addr == netip.IPv6Unspecified()):
			return g, fmt.Errorf("ibverbs: entry %d of the GID table of port %d of %s is empty: %w",
				d.gid, d.port, d.caps.Name, errors.Join(driver.ErrInvalid, err))
		case d.gid != 0 || err == nil && addr == g.addr:
			g.addr = addr
			return g, nil
		}
	}
	g, err := d.findGID()
	if err != nil {
		return g, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.found = g
	return g, nil
}

// findGID reads the whole table, which takes milliseconds: the kernel shows each
// entry as a file.
func (d *device) findGID() (localGID, error) {
	devs, err := Devices()
	if err != nil {
		return localGID{}, err
	}
	addr := d.src.AddrPort.Addr()
	for i := range devs {
		for j := range devs[i].Ports {
			if p := &devs[i].Ports[j]; devs[i].Name == d.caps.Name && p.Num == d.port {
				if g, ok := p.GID(addr); ok {
					return localGID{g.Index, g.Addr}, nil
				}
			}
		}
	}
	return localGID{}, fmt.Errorf("ibverbs: port %d of %s has no GID for address %v (is its interface up?): %w",
		d.port, d.caps.Name, addr, driver.ErrInvalid)
}

// Modify calls ibv_modify_qp with the attributes of one transition.
func (q *qp) Modify(a driver.ModifyAttr) error {
	d := q.dev
	if d.iwarp() {
		return driver.ErrNotSupported
	}
	var attr cverbs.QPAttr
	attr.SetState(int(a.State))
	switch a.State {
	case driver.QPStateInit:
		attr.SetAccess(d.qpAccess())
		attr.SetPort(d.port, a.PKeyIndex)
	case driver.QPStateRTR:
		if err := q.pathTo(&attr, &a); err != nil {
			return err
		}
		attr.SetMinRNRTimer(minRNRTimer)
	}
	param, err := q.connParam(driver.ConnParam{IRD: a.IRD, ORD: a.ORD, RetryCnt: a.RetryCnt, RNRRetry: a.RNRRetry, AckTimeout: a.AckTimeout})
	if err != nil {
		return err
	}
	switch a.State {
	case driver.QPStateRTR:
		attr.SetMaxDestRdAtomic(param.ResponderResources)
	case driver.QPStateRTS:
		attr.SetMaxRdAtomic(param.InitiatorDepth)
		attr.SetRetry(d.ackTimeoutCode(a.AckTimeout), param.RetryCount, param.RNRRetryCount)
		attr.SetSendPSN(q.psn)
	}
	q.connMu.Lock()
	defer q.connMu.Unlock()
	switch {
	case q.destroyed:
		return driver.ErrClosed
	case q.id != nil:
		return fmt.Errorf("the connection manager has it: %w", driver.ErrQPState)
	}
	if err := q.c.Modify(&attr); err != nil {
		return opErr(fmt.Sprintf("ibv_modify_qp to %v", a.State), err)
	}
	q.state = a.State
	return nil
}

// pathTo sets what says where the peer is. The global header is needed on RoCE,
// and on InfiniBand between subnets.
func (q *qp) pathTo(attr *cverbs.QPAttr, a *driver.ModifyAttr) error {
	d := q.dev
	own, gidIndex, err := q.endpoint()
	if err != nil {
		return err
	}
	mtu := a.MTU
	if mtu == 0 {
		mtu = min(own.MTU, a.Remote.MTU)
	}
	if mtu > own.MTU {
		return fmt.Errorf("ibverbs: MTU %d, that of port %d is %d: %w", mtu, d.port, own.MTU, driver.ErrInvalid)
	}
	path := cverbs.AddressVector{Port: d.port, LID: a.Remote.LID, ServiceLevel: a.ServiceLevel}
	roce := d.caps.Transport == driver.TransportRoCE
	if gid := a.Remote.GID; roce && !gid.IsValid() {
		return fmt.Errorf("ibverbs: RoCE needs the peer's GID: %w", driver.ErrInvalid)
	} else if gid.IsValid() {
		path.GID = gid.As16()
		local := own.GID.As16()
		path.Global = roce || a.Remote.LID == 0 || [8]byte(local[:8]) != [8]byte(path.GID[:8])
	}
	if path.Global {
		path.SGIDIndex, path.HopLimit, path.TrafficClass, path.FlowLabel = gidIndex, a.HopLimit, a.TrafficClass, a.FlowLabel
		if path.HopLimit == 0 {
			path.HopLimit = defaultHopLimit
		}
	}
	attr.SetPath(&path)
	attr.SetPeer(a.Remote.QPN, a.Remote.PSN, mtu)
	return nil
}
