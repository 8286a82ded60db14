package verbs

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/argonaut-rdma/argonaut/verbs/driver"
)

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
	// EventCQErr comes before the QPs of the CQ are ended for it.
	OnEvent func(Event)
}

// CQ is a completion queue.
type CQ struct {
	dev          *Device
	drv          driver.CQ
	armPoller    driver.ArmPoller // drv, if it is one
	obj          object
	ch           *CompChannel
	depth        int
	allowOverrun bool
	onEvent      func(Event)

	// Guarded by Device.mu.
	used    int          // entries taken by QPs and SRQs
	srqs    map[*SRQ]int // QPs that complete here, per SRQ
	overrun bool

	mu        sync.Mutex
	closed    bool
	then      []func() // to be called after the poll
	stash     []WC     // taken from the device by purge, to be polled first
	delivered uint64
	failed    [driver.StatusCount]uint64 // of them, errors by status
	swallowed uint64
	late      uint64
	stale     uint64
}

// CreateCQ makes a completion queue.
func (d *Device) CreateCQ(c CQConfig) (*CQ, error) {
	const op = "create CQ"
	if c.Depth <= 0 || d.caps.MaxCQE > 0 && c.Depth > d.caps.MaxCQE {
		return nil, d.opError(op, 0, fmt.Errorf("%w: depth %d is not within 1 and the device's %d", ErrInvalid, c.Depth, d.caps.MaxCQE))
	}
	q := &CQ{
		dev: d, ch: c.Channel, depth: c.Depth, allowOverrun: c.AllowOverrun, onEvent: c.OnEvent, srqs: map[*SRQ]int{},
	}
	parents := []*object{&d.obj, nil}
	var dch driver.CompChannel
	if c.Channel != nil {
		if c.Channel.dev != d {
			return nil, d.opError(op, 0, fmt.Errorf("%w: the comp channel is of another device", ErrInvalid))
		}
		parents[1], dch = &c.Channel.obj, c.Channel.drv
	}
	if err := q.obj.reserve(d, KindCQ, q, parents...); err != nil {
		return nil, d.opError(op, 0, err)
	}
	var err error
	if q.drv, err = d.drv.CreateCQ(c.Depth, dch, c.Vector); err != nil {
		q.obj.abandon()
		return nil, d.opError(op, 0, err)
	}
	q.armPoller, _ = q.drv.(driver.ArmPoller)
	if q.ch != nil {
		q.ch.mu.Lock()
		q.ch.cqs[q.drv] = q
		q.ch.mu.Unlock()
	}
	d.mu.Lock()
	d.byCQ[q.drv] = q
	q.obj.linkLocked()
	d.mu.Unlock()
	return q, nil
}

// Device returns the device.
func (c *CQ) Device() *Device { return c.dev }

// Depth is the number of entries.
func (c *CQ) Depth() int { return c.depth }

// Free is how many entries are not yet taken by QPs and SRQs.
func (c *CQ) Free() int {
	c.dev.mu.Lock()
	defer c.dev.mu.Unlock()
	return max(0, c.depth-c.used)
}

// Channel returns the completion channel or nil.
func (c *CQ) Channel() *CompChannel { return c.ch }

func (c *CQ) describe(*Resource) {}

// admitLocked takes n entries for a QP, and those of srq when it is the first
// QP of it here. Every request counts, signalled or not: a flush completes them
// all. Device.mu is held.
func (c *CQ) admitLocked(n int, srq *SRQ) error {
	if srq != nil && c.srqs[srq] == 0 {
		n += srq.maxWR
	}
	switch {
	case c.overrun:
		return fmt.Errorf("%w: the CQ has overrun", ErrInvalid)
	case c.used+n > c.depth && !c.allowOverrun:
		return fmt.Errorf("%w: the CQ has %d of %d entries left, the QP may need %d", ErrLimit, c.depth-c.used, c.depth, n)
	}
	c.used += n
	if srq != nil {
		c.srqs[srq]++
	}
	return nil
}

func (c *CQ) dismissLocked(n int, srq *SRQ) {
	if srq != nil {
		if c.srqs[srq]--; c.srqs[srq] == 0 {
			delete(c.srqs, srq)
			n += srq.maxWR
		}
	}
	c.used -= n
}

// Poll moves up to len(wcs) completions into wcs and returns how many; fewer mean
// that the CQ is empty. WRID is the caller's; Opcode is that of the
// request, also of one that failed.
// The n completions hold even with an error. Errors: ErrStale (the device
// completed what is not outstanding: that completion is dropped), ErrClosed, the
// driver's. It does not block.
func (c *CQ) Poll(wcs []WC) (int, error) {
	if len(wcs) == 0 {
		return 0, nil
	}
	n, _, err := c.pollArm(wcs, false)
	return n, err
}

// PollArm is Poll for a consumer that is about to wait on the channel: a CQ that
// is found empty is armed, as by ReqNotify(false), and looked at again, in one
// call of the device where it can do that. It reports whether the CQ was armed:
// it has been, unless there are completions or an error.
func (c *CQ) PollArm(wcs []WC) (n int, armed bool, err error) {
	if len(wcs) == 0 {
		return 0, false, nil
	}
	return c.pollArm(wcs, true)
}

func (c *CQ) pollArm(wcs []WC, arm bool) (n int, armed bool, err error) {
	c.mu.Lock()
	if n, armed, err = c.poll(wcs, arm); arm && n == 0 && !armed && err == nil {
		// The device has no such call, or what it found was the core's own.
		if err = c.dev.opError("request notification", 0, c.drv.ReqNotify(false)); err == nil {
			armed = true
			n, _, err = c.poll(wcs, false)
		}
	}
	then := c.then
	c.then = nil
	c.mu.Unlock()
	for _, f := range then {
		f()
	}
	return n, armed, err
}

// poll is Poll or, as far as the device has it, PollArm; mu is held.
func (c *CQ) poll(wcs []WC, arm bool) (_ int, armed bool, _ error) {
	if c.closed {
		return 0, false, c.dev.opError("poll", 0, ErrClosed)
	}
	for out := 0; ; {
		room := len(wcs) - out
		n, a, err := c.raw(wcs[out:], arm && out == 0)
		armed = armed || a
		k, serr := c.settle(wcs[out : out+n])
		out += k
		if serr != nil {
			err = joinErr(serr, err)
		}
		// What was dropped or the core's own leaves room for more: a caller may
		// take less than it has room for as the end of the CQ.
		if n == 0 || err != nil || out == len(wcs) || n < room && out > 0 {
			c.delivered += uint64(out)
			return out, armed, c.dev.opError("poll", 0, err)
		}
	}
}

// raw moves completions as the device has written them.
func (c *CQ) raw(wcs []WC, arm bool) (n int, armed bool, err error) {
	done := copy(wcs, c.stash)
	c.stash = c.stash[done:]
	switch {
	case done == len(wcs):
		return done, false, nil
	case arm && done == 0 && c.armPoller != nil:
		n, armed, err = c.armPoller.PollArm(wcs)
	default:
		n, err = c.drv.Poll(wcs[done:])
	}
	return done + min(max(n, 0), len(wcs)-done), armed, err
}

// settle retires requests in the ledgers, and moves what callers are given to
// the front of wcs. The lock of a QP is kept over a run of its completions.
func (c *CQ) settle(wcs []WC) (out int, err error) {
	var held *QP
	for i := range wcs {
		wc := &wcs[i]
		kind, own, low := splitWRID(wc.WRID)
		id := wc.WRID
		o := c.dev.owners.at(own)
		if o == nil || kind == kindNone {
			err = c.staleErr(id, wc, err)
			continue
		}
		if kind == kindSRQ {
			s := o.srq.Load()
			if s == nil {
				c.late++
				continue
			}
			if !s.settle(wc, low) {
				err = c.staleErr(id, wc, err)
				continue
			}
			if wc.Status != StatusSuccess || wc.HasInv {
				if held != nil {
					held.mu.Unlock()
					held = nil
				}
				c.afterwards(c.dev.srqSideEffects(wc))
			}
			c.count(wc)
			wcs[out] = *wc
			out++
			continue
		}
		q := o.qp.Load()
		if q == nil {
			c.late++
			continue
		}
		if q != held {
			if held != nil {
				held.mu.Unlock()
			}
			q.mu.Lock()
			held = q
		}
		keep, win, v := q.settleLocked(wc, kind, low)
		if v == vStale && kind == kindSend && wc.Status == StatusWRFlushErr && !c.dev.caps.FlushCompletes {
			v = vLate // such a device may flush a request twice
		}
		switch {
		case v == vLate:
			c.late++
			continue
		case v == vStale:
			err = c.staleErr(id, wc, err)
			continue
		}
		if win.mw != nil || wc.HasInv && wc.Status == StatusSuccess {
			q.mu.Unlock()
			held = nil
			if win.mw != nil {
				c.dev.windowDone(win, wc.Status == StatusSuccess)
			} else {
				c.afterwards(c.dev.peerInvalidated(q, wc.InvalidatedRKey))
			}
		}
		if !keep {
			c.swallowed++
			continue
		}
		c.count(wc)
		wcs[out] = *wc
		out++
	}
	if held != nil {
		held.mu.Unlock()
	}
	return out, err
}

// count counts a completion that callers get, if it is an error: successes are
// the rest, and cost no more than this comparison. mu is held.
func (c *CQ) count(wc *WC) {
	if wc.Status == StatusSuccess {
		return
	}
	s := wc.Status
	if int(s) >= len(c.failed) {
		s = StatusGeneralErr
	}
	c.failed[s]++
}

func (c *CQ) staleErr(id uint64, wc *WC, before error) error {
	c.stale++
	c.dev.log.Error("verbs: stale completion", "device", c.dev.caps.Name, "wr_id", id, "status", wc.Status, "qpn", wc.QPN)
	if before != nil {
		return before
	}
	return fmt.Errorf("%w: wr_id 0x%x, status %v, QP %d", ErrStale, id, wc.Status, wc.QPN)
}

// srqSideEffects is for the rare completions of SRQ entries that say something
// about their QP.
func (d *Device) srqSideEffects(wc *WC) (then func()) {
	d.mu.Lock()
	q := d.byQPN[wc.QPN]
	d.mu.Unlock()
	switch {
	case q == nil:
	case wc.Status != StatusSuccess:
		q.setKnownError()
	default:
		return d.peerInvalidated(q, wc.InvalidatedRKey)
	}
	return nil
}

// afterwards has then called when the poll is over.
func (c *CQ) afterwards(then func()) {
	if then != nil {
		c.then = append(c.then, then)
	}
}

// purge takes the completions of a QP that is being closed out of the CQ, as
// kernel drivers do: afterwards its number may be used again and its entries are
// free. Requests of an SRQ that it had taken become orphans. Others are dropped
// once it is destroyed: the ledger makes orphans of them.
func (c *CQ) purge(q *QP, destroyed bool, orphans []Orphan) []Orphan {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return orphans
	}
	all := slices.Clone(c.stash)
	var buf [64]WC
	for most := len(all) + 2*c.depth + len(buf); len(all) < most; { // other QPs go on completing
		n, err := c.drv.Poll(buf[:])
		if n > 0 {
			all = append(all, buf[:min(n, len(buf))]...)
		}
		if n <= 0 || err != nil {
			break
		}
	}
	kept := all[:0]
	for i := range all {
		wc := &all[i]
		kind, own, low := splitWRID(wc.WRID)
		switch {
		case kind == kindSRQ && q.srq != nil && own == q.srq.owner && wc.QPN == q.qpn:
			if q.srq.settle(wc, low) {
				orphans = append(orphans, Orphan{wc.WRID, true})
			} else {
				c.stale++
			}
		case destroyed && own == q.owner && (kind == kindSend || kind == kindRecv):
			c.late++
		default:
			kept = append(kept, *wc)
		}
	}
	c.stash = kept
	return orphans
}

// ReqNotify asks for one announcement on the channel when the next completion
// (or solicited or failed one) is added. Those added before are not announced:
// poll once more after it.
func (c *CQ) ReqNotify(solicitedOnly bool) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return c.dev.opError("request notification", 0, ErrClosed)
	}
	return c.dev.opError("request notification", 0, c.drv.ReqNotify(solicitedOnly))
}

// Drain polls, calling f for each completion, until no request of the CQ's QPs
// is outstanding, or ctx ends. Only where no poller owns the CQ. Requests of an
// SRQ are not counted. f may be nil.
func (c *CQ) Drain(ctx context.Context, f func(WC)) error {
	const (
		spins = 64                     // empty polls with a yield, before
		pause = 500 * time.Microsecond // the pause between polls: there may be no channel to wait on
	)
	t := time.NewTimer(time.Hour)
	defer t.Stop()
	var wcs [64]WC
	for idle := 0; ; {
		n, err := c.Poll(wcs[:])
		for i := range n {
			if f != nil {
				f(wcs[i])
			}
		}
		if err != nil && !errors.Is(err, ErrStale) {
			return err
		}
		if n > 0 {
			idle = 0
			continue
		}
		left := c.outstanding()
		if left == 0 {
			return nil
		}
		if ctx.Err() != nil {
			return c.dev.opError("drain CQ", 0, fmt.Errorf("%d requests outstanding: %w", left, ctx.Err()))
		}
		if idle++; idle < spins {
			runtime.Gosched()
			continue
		}
		t.Reset(pause)
		select {
		case <-t.C:
		case <-ctx.Done():
		}
	}
}

// outstanding counts the requests that will complete here.
func (c *CQ) outstanding() (n int) {
	d := c.dev
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, q := range d.byQP {
		q.mu.Lock()
		if q.sendCQ == c {
			n += q.sq.live
		}
		if q.recvCQ == c {
			n += q.rq.live
		}
		q.mu.Unlock()
	}
	return n
}

// Close destroys the CQ. With live QPs on it it returns *BusyError and changes
// nothing. Completions not yet polled are dropped.
func (c *CQ) Close() error {
	return c.obj.shut("close", "CQ", nil, func() error {
		c.mu.Lock()
		c.closed = true // no poll while it is destroyed
		c.mu.Unlock()
		err := c.drv.Destroy()
		if err != nil && !isLost(err) {
			c.mu.Lock()
			c.closed = false
			c.mu.Unlock()
			return err
		}
		if c.ch != nil {
			c.ch.mu.Lock()
			delete(c.ch.cqs, c.drv)
			c.ch.mu.Unlock()
		}
		return err
	}, func() {
		d := c.dev
		delete(d.byCQ, c.drv)
		d.events.withdraw(func(e *Event) bool { return e.CQ == c && e.QP == nil })
		c.mu.Lock()
		c.stash = nil
		c.addStats(&d.total)
		c.mu.Unlock()
	})
}
