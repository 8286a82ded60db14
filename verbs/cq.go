package verbs

import "context"

// CQConfig is what a completion queue is made of.
type CQConfig struct {
	// Depth is the number of entries. The depths of the QPs and SRQs on the CQ
	// may not add up to more, unless AllowOverrun.
	Depth int
	// Channel announces completions; nil: the CQ is only polled.
	Channel *CompChannel
	// Vector chooses the interrupt of the device, modulo those it has.
	Vector int
	// AllowOverrun admits any QP. An overrun loses completions. For tests.
	AllowOverrun bool
	// OnEvent is called on the device's event goroutine and must not block.
	OnEvent func(Event)
}

// CQ is a completion queue.
type CQ struct{}

// Device returns the device.
func (c *CQ) Device() *Device { return nil }

// Depth is the number of entries.
func (c *CQ) Depth() int { return 0 }

// Free is how many entries are not yet taken by QPs and SRQs.
func (c *CQ) Free() int { return 0 }

// Channel returns the completion channel or nil.
func (c *CQ) Channel() *CompChannel { return nil }

// Poll moves up to len(wcs) completions into wcs and returns how many; 0 means
// that the CQ is empty. WRID is the caller's. The n completions hold even with
// an error. Errors: ErrStale (the device completed what is not outstanding: the
// completion is dropped), ErrClosed, the driver's. It does not block.
func (c *CQ) Poll(wcs []WC) (int, error) { return 0, ErrNotSupported }

// ReqNotify asks for one announcement on the channel when the next completion
// (or solicited or failed one) is added. Those added before are not announced:
// poll once more after it.
func (c *CQ) ReqNotify(solicitedOnly bool) error { return ErrNotSupported }

// Drain polls, calling f for each completion, until no request of the CQ's QPs
// is outstanding, or ctx ends. Only where no poller owns the CQ.
func (c *CQ) Drain(ctx context.Context, f func(WC)) error { return ErrNotSupported }

// Close destroys the CQ. With live QPs on it it returns *BusyError and changes
// nothing. Completions not yet polled are dropped.
func (c *CQ) Close() error { return ErrNotSupported }
