//go:build ibverbs && linux && cgo

package ibverbs

import (
	"fmt"
	"math/bits"
	"sync"

	"github.com/argonaut-rdma/argonaut/verbs/driver"
	"github.com/argonaut-rdma/argonaut/verbs/ibverbs/internal/cverbs"
)

// cq is a completion queue.
type cq struct {
	dev *device
	c   cverbs.CQ
	ch  *compChannel // nil: none

	unacked int // events got from the channel and not acknowledged; under ch.mu

	mu        sync.Mutex
	destroyed bool
	wcs       [cverbs.MaxBatch]cverbs.WC // what one crossing fills
}

var _ driver.ArmPoller = (*cq)(nil)

func (d *device) CreateCQ(depth int, ch driver.CompChannel, vector int) (driver.CQ, error) {
	q := &cq{dev: d}
	var channel cverbs.CompChannel
	if ch != nil {
		var ok bool
		if q.ch, ok = ch.(*compChannel); !ok || q.ch.dev != d {
			return nil, fmt.Errorf("ibv_create_cq: completion channel of another device: %w", driver.ErrInvalid)
		}
		channel = q.ch.c
	}
	if depth <= 0 || vector < 0 {
		return nil, fmt.Errorf("ibv_create_cq: depth %d, vector %d: %w", depth, vector, driver.ErrInvalid)
	}
	if n := d.ctx.NumCompVectors(); n > 0 {
		vector %= n
	}
	room := depth
	if most := d.caps.MaxCQE; d.siw() && depth < most {
		// A READ that siw is about to send when its queue pair goes to ERR completes
		// twice, as queued and as sent (siw_sq_flush of Linux 6.1): at most one in each
		// send queue. So does one that was cut in two (see fitSIW). The core drops the
		// second; without room for it the queue would overrun, with all that it serves.
		room = min(3*depth, most)
	}
	var err error
	if q.c, err = d.ctx.CreateCQ(room, channel, vector); err != nil {
		return nil, createErr("ibv_create_cq", err)
	}
	if q.ch != nil {
		q.ch.add(q)
	}
	d.mu.Lock()
	d.cqs[q.c] = q
	d.mu.Unlock()
	return q, nil
}

// Poll crosses into C once for every 64 completions.
func (q *cq) Poll(wcs []driver.WC) (int, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.destroyed {
		return 0, driver.ErrClosed
	}
	n := 0
	for n < len(wcs) {
		batch := q.wcs[:min(len(wcs)-n, len(q.wcs))]
		got := q.c.Poll(batch)
		if err := q.take(wcs[n:], got); err != nil {
			return n, err
		}
		n += got
		if got < len(batch) {
			break
		}
	}
	return n, nil
}

// PollArm crosses once.
func (q *cq) PollArm(wcs []driver.WC) (int, bool, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.destroyed {
		return 0, false, driver.ErrClosed
	}
	n, armed, err := q.c.PollArm(q.wcs[:min(len(wcs), len(q.wcs))])
	if err != nil {
		return 0, false, opErr("ibv_req_notify_cq", err)
	}
	if err := q.take(wcs, n); err != nil {
		return 0, armed, err
	}
	return n, armed, nil
}

// take translates the n completions in q.wcs, or a failure to get any.
func (q *cq) take(wcs []driver.WC, n int) error {
	if n < 0 {
		return fmt.Errorf("ibv_poll_cq: %d: %w", n, driver.ErrDeviceLost)
	}
	for i := range q.wcs[:n] {
		convert(&wcs[i], &q.wcs[i], q.dev.wcInv)
		q.dev.halved.whole(&wcs[i])
	}
	return nil
}

// wcOpcode maps ibv_wc_opcode; requests with and without immediate data or
// invalidation complete alike.
var wcOpcode = map[uint32]driver.Opcode{
	cverbs.WCSend:     driver.OpSend,
	cverbs.WCWrite:    driver.OpWrite,
	cverbs.WCRead:     driver.OpRead,
	cverbs.WCCompSwap: driver.OpCompareSwap,
	cverbs.WCFetchAdd: driver.OpFetchAdd,
	cverbs.WCBindMW:   driver.OpBindMW,
	cverbs.WCLocalInv: driver.OpLocalInvalidate,
	cverbs.WCRecv:     driver.OpRecv,
	cverbs.WCRecvImm:  driver.OpRecvWriteImm,
}

// convert translates one completion; wcInv are the flags that say that a key was
// invalidated.
func convert(to *driver.WC, from *cverbs.WC, wcInv uint32) {
	*to = driver.WC{
		WRID:      from.WRID,
		Status:    driver.WCStatus(from.Status), // the values are those of ibv_wc_status
		QPN:       from.QPN,
		VendorErr: from.VendorErr,
	}
	if to.Status != driver.StatusSuccess {
		return
	}
	to.Opcode = wcOpcode[from.Opcode]
	to.ByteLen = from.ByteLen
	switch {
	case from.Flags&cverbs.WCFlagImm != 0:
		to.HasImm = true
		to.Imm = bits.ReverseBytes32(from.ImmOrRKey)
	case from.Flags&wcInv != 0:
		to.HasInv = true
		to.InvalidatedRKey = from.ImmOrRKey
	}
}

func (q *cq) ReqNotify(solicitedOnly bool) error {
	solicitedOnly = solicitedOnly && q.dev.caps.Solicited // else it would never be announced
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.destroyed {
		return driver.ErrClosed
	}
	return opErr("ibv_req_notify_cq", q.c.ReqNotify(solicitedOnly))
}

func (q *cq) Destroy() error {
	q.mu.Lock()
	q.destroyed = true
	q.mu.Unlock()
	q.dev.mu.Lock()
	delete(q.dev.cqs, q.c)
	q.dev.mu.Unlock()
	if q.ch != nil {
		q.ch.remove(q)
	}
	if err := q.c.Destroy(); err != nil {
		// The queue is still there, with a QP on it.
		q.dev.mu.Lock()
		q.dev.cqs[q.c] = q
		q.dev.mu.Unlock()
		if q.ch != nil {
			q.ch.add(q)
		}
		q.mu.Lock()
		q.destroyed = false
		q.mu.Unlock()
		return opErr("ibv_destroy_cq", err)
	}
	return nil
}
