package verbs

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/argonaut-rdma/argonaut/verbs/driver"
)

// Errors of the core and of providers, to be tested for with errors.Is. Those
// of package driver are the same values.
var (
	ErrClosed       = driver.ErrClosed
	ErrNotSupported = driver.ErrNotSupported
	ErrQueueFull    = driver.ErrQueueFull
	ErrQPState      = driver.ErrQPState
	ErrInvalid      = driver.ErrInvalid
	ErrLimit        = driver.ErrLimit
	ErrMemlock      = driver.ErrMemlock
	ErrRefused      = driver.ErrRefused
	ErrProtocol     = driver.ErrProtocol
	ErrDeviceLost   = driver.ErrDeviceLost

	// ErrBusy is what every *BusyError matches.
	ErrBusy = errors.New("in use")
	// ErrStale: the device completed a request that is not outstanding.
	ErrStale = errors.New("completion of a request that is not outstanding")
)

// RejectError is the refusal of a connection request by the peer.
type RejectError = driver.RejectError

// OpError says which operation on which object failed.
type OpError struct {
	Op     string // "post send", "register memory" ...
	Device string // Caps.Name
	QPN    uint32 // 0: not about a QP
	Err    error
}

func (e *OpError) Error() string {
	s := e.Op
	if e.Device != "" {
		s += " on " + e.Device
	}
	if e.QPN != 0 {
		s += fmt.Sprintf(" QP %d", e.QPN)
	}
	return s + ": " + e.Err.Error()
}

// Unwrap returns the cause.
func (e *OpError) Unwrap() error { return e.Err }

// BusyError says what keeps an object from being closed or deregistered. It
// matches ErrBusy. The call that returned it has changed nothing.
type BusyError struct {
	What     string         // the object: "PD", "MR 0x1234" ...
	Children []Resource     // live objects in the way: windows bound to the memory, scoped keys, QPs that were granted access
	QPs      map[uint32]int // requests posted or not yet polled that name the memory, per QPN
	SRQs     int            // the same, on shared receive queues
	Uses     []Use          // QPs and SRQs in detail
}

// Use is what the work queues of a QP, or an SRQ, have to do with memory. The
// requests counted are posted, or done with their completions not yet polled: a
// device does not say which.
type Use struct {
	Kind           Kind    // KindQP or KindSRQ
	ID             uint64  // as in Resource
	QPN            uint32  // of a QP
	State          QPState // of a QP, as known
	Send, Recv     int     // SGEs of sends and of receives that name the memory
	SendCQ, RecvCQ uint64  // IDs of the CQs whose polling retires them; of a QP
}

// String says what is there and what has to happen for it to go.
func (u Use) String() string {
	if u.Kind == KindSRQ {
		return fmt.Sprintf("%d receives on SRQ #%d: they go as messages use them up, or with SRQ.Close", u.Recv, u.ID)
	}
	s := fmt.Sprintf("%d sends and %d receives on QP %d (%v): ", u.Send, u.Recv, u.QPN, u.State)
	var poll []string
	if u.Send > 0 {
		poll = append(poll, fmt.Sprintf("#%d", u.SendCQ))
	}
	if u.Recv > 0 && (u.Send == 0 || u.RecvCQ != u.SendCQ) {
		poll = append(poll, fmt.Sprintf("#%d", u.RecvCQ))
	}
	s += "poll CQ " + strings.Join(poll, " and ")
	switch {
	case u.State == QPStateErr:
		s += ", they are flushed; or close the QP"
	case u.Recv > 0:
		s += "; receives that no message uses go with SetError or Close of the QP"
	}
	return s
}

func (e *BusyError) Error() string {
	var parts []string
	if len(e.Uses) > 0 {
		for _, u := range e.Uses {
			parts = append(parts, u.String())
		}
	} else {
		for _, q := range slices.Sorted(maps.Keys(e.QPs)) {
			parts = append(parts, fmt.Sprintf("%d requests on QP %d", e.QPs[q], q))
		}
	}
	const most = 8
	if n := len(parts); n > most {
		parts = append(parts[:most], fmt.Sprintf("%d more queues", n-most))
	}
	for i, c := range e.Children {
		if i == most {
			parts = append(parts, fmt.Sprintf("%d more", len(e.Children)-most))
			break
		}
		parts = append(parts, c.String())
	}
	return e.What + " is in use by " + strings.Join(parts, ", ")
}

// Is reports whether target is ErrBusy.
func (e *BusyError) Is(target error) bool { return target == ErrBusy }

// StuckError says that a destructor of the device did not return in time. It
// goes on in the background; a further Close waits for it again. Until it has
// returned the device may still use what the object named.
type StuckError struct {
	Call  string        // "destroy QP 17"
	Since time.Duration // how long it has been running
}

func (e *StuckError) Error() string {
	return fmt.Sprintf("%s is still running after %v", e.Call, e.Since.Round(time.Millisecond))
}

// Timeout is true: StuckError is a timeout as in package net.
func (e *StuckError) Timeout() bool { return true }

// WCError is a completion with a status other than success.
type WCError struct {
	Status    WCStatus
	Opcode    Opcode // of the request, as posted; OpRecv for a receive
	VendorErr uint32
	WRID      uint64
	QPN       uint32
}

func (e *WCError) Error() string {
	s := fmt.Sprintf("%v of request %d on QP %d failed: %v", e.Opcode, e.WRID, e.QPN, e.Status)
	if e.VendorErr != 0 {
		s += fmt.Sprintf(" (vendor error 0x%x)", e.VendorErr)
	}
	return s
}

// WCErr returns nil for a completion that succeeded, else a *WCError.
func WCErr(wc *WC) error {
	if wc.Status == StatusSuccess {
		return nil
	}
	return &WCError{wc.Status, wc.Opcode, wc.VendorErr, wc.WRID, wc.QPN}
}
