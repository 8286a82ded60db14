package verbs

import (
	"fmt"
	"slices"

	"github.com/argonaut-rdma/argonaut/verbs/driver"
)

const (
	max24 = 1<<24 - 1 // QPN, PSN
	max20 = 1<<20 - 1 // flow label
)

// Endpoint is what the peer needs in order to connect its queue pair to this one
// out of band: see Modify. Devices without Caps.OutOfBand, all of iWARP, return
// ErrNotSupported.
func (q *QP) Endpoint() (QPEndpoint, error) {
	const op = "endpoint"
	m, err := q.outOfBand()
	if err != nil {
		return QPEndpoint{}, q.dev.opError(op, q.qpn, err)
	}
	q.ctl.Lock()
	defer q.ctl.Unlock()
	if q.destroying {
		return QPEndpoint{}, q.dev.opError(op, q.qpn, ErrClosed)
	}
	ep, err := m.Endpoint()
	return ep, q.dev.opError(op, q.qpn, err)
}

// Modify connects the queue pair without a connection manager, where the device
// has Caps.OutOfBand: the two ends exchange their Endpoints by whatever way they
// have, both Modify to RTR with the other's Endpoint, and, once they know of each
// other that this is done, to RTS. Receives are posted before RTR. A new queue
// pair is in INIT; Modify to INIT changes its partition key only.
//
// Nobody watches such a connection: that the peer is gone shows when a send is
// not acknowledged (StatusRetryExcErr), and Disconnected is closed only by Close.
// It ends, on each side by itself, with SetError and Close; Disconnect returns
// ErrNotSupported. Calls of Modify, Connect and Close on one queue pair come one
// after the other; a call takes as long as the device's, microseconds to
// milliseconds.
//
// Wrong arguments are ErrInvalid, a wrong state (a queue pair of Connect or
// Accept, too) is ErrQPState; on any error the queue pair is as before.
func (q *QP) Modify(a ModifyAttr) error {
	const op = "modify"
	m, err := q.outOfBand()
	if err == nil {
		err = q.dev.checkModify(&a)
	}
	if err == nil {
		err = q.modify(m, a)
	}
	if err != nil {
		err = fmt.Errorf("to %v: %w", a.State, err)
	}
	return q.dev.opError(op, q.qpn, err)
}

func (q *QP) modify(m driver.OutOfBand, a ModifyAttr) error {
	q.ctl.Lock()
	defer q.ctl.Unlock()
	if q.destroying {
		return ErrClosed
	}
	from := QPStateInit
	if a.State == QPStateRTS {
		from = QPStateRTR
	}
	if s := q.State(); s != from || q.cancelConn != nil {
		return fmt.Errorf("%w: %v", ErrQPState, s)
	}
	if a.State == QPStateRTR { // before the device is: its first receive may be polled and answered at once
		q.state.CompareAndSwap(uint32(QPStateInit), uint32(QPStateRTR))
		q.everConnected.Store(true)
		q.noManager = true
	}
	err := m.Modify(a)
	switch {
	case err != nil && a.State == QPStateRTR:
		q.state.CompareAndSwap(uint32(QPStateRTR), uint32(QPStateInit))
		q.everConnected.Store(false)
		q.noManager = false
	case err == nil && a.State == QPStateRTS:
		q.connected()
	}
	return err
}

func (q *QP) outOfBand() (driver.OutOfBand, error) {
	m, ok := q.drv.(driver.OutOfBand)
	if !ok || !q.dev.caps.OutOfBand {
		return nil, fmt.Errorf("%w: %v needs Connect and Accept", ErrNotSupported, q.dev.caps.Transport)
	}
	return m, nil
}

// checkModify checks what the transition takes.
func (d *Device) checkModify(a *ModifyAttr) error {
	type limit struct {
		name           string
		v, least, most int
	}
	var limits []limit
	switch a.State {
	case QPStateInit:
		limits = []limit{{"PKeyIndex", a.PKeyIndex, 0, 1<<16 - 1}}
	case QPStateRTR:
		mtus := []int{256, 512, 1024, 2048, 4096}
		switch r := &a.Remote; {
		case a.MTU != 0 && !slices.Contains(mtus, a.MTU), a.MTU == 0 && !slices.Contains(mtus, r.MTU):
			return fmt.Errorf("%w: MTU %d, of the peer %d: one of %v", ErrInvalid, a.MTU, r.MTU, mtus)
		case r.LID == 0 && !r.GID.IsValid():
			return fmt.Errorf("%w: the peer has neither LID nor GID", ErrInvalid)
		}
		limits = []limit{
			{"Remote.QPN", int(a.Remote.QPN), 1, max24},
			{"Remote.PSN", int(a.Remote.PSN), 0, max24},
			{"IRD", a.IRD, 0, d.caps.MaxIRD},
			{"ServiceLevel", a.ServiceLevel, 0, 15},
			{"TrafficClass", a.TrafficClass, 0, 255},
			{"FlowLabel", int(a.FlowLabel), 0, max20},
			{"HopLimit", a.HopLimit, 0, 255},
		}
	case QPStateRTS:
		limits = []limit{
			{"ORD", a.ORD, 0, d.caps.MaxORD}, {"RetryCnt", a.RetryCnt, 0, 7}, {"RNRRetry", a.RNRRetry, 0, 6},
		}
		if a.AckTimeout < 0 {
			return fmt.Errorf("%w: AckTimeout %v", ErrInvalid, a.AckTimeout)
		}
	default:
		return fmt.Errorf("%w: INIT, RTR or RTS (SetError puts it to ERR)", ErrInvalid)
	}
	for _, l := range limits {
		if l.v < l.least || l.v > l.most {
			return fmt.Errorf("%w: %s %d is not within %d and %d", ErrInvalid, l.name, l.v, l.least, l.most)
		}
	}
	return nil
}
