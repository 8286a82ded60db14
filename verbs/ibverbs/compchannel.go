//go:build ibverbs && linux && cgo

package ibverbs

import (
	"context"
	"errors"
	"os"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/argonaut-rdma/argonaut/verbs/driver"
	"github.com/argonaut-rdma/argonaut/verbs/ibverbs/internal/cverbs"
)

// ackBatch is how many events of one CQ are acknowledged at a time: each
// acknowledgement takes a lock that every event takes, too.
const ackBatch = 64

// compChannel is a completion channel. Whoever wants to end a Wait sets a flag
// first and kicks the file then; Wait, after a kick, unkicks first and reads the
// flags then: so no wish is lost.
type compChannel struct {
	dev    *device
	c      cverbs.CompChannel
	file   *pollFile
	woken  atomic.Bool
	closed atomic.Bool

	waitMu sync.Mutex // one Wait at a time
	try    func(uintptr) bool
	got    *cq             // what try found
	err    error           // why it failed
	done   <-chan struct{} // of the context that stop belongs to
	stop   func() bool     // ends the watch over that context

	mu  sync.Mutex
	cqs map[cverbs.CQ]*cq
}

var _ driver.CompChannel = (*compChannel)(nil)

func (d *device) CreateCompChannel() (driver.CompChannel, error) {
	c, err := d.ctx.CreateCompChannel()
	if err != nil {
		return nil, createErr("ibv_create_comp_channel", err)
	}
	file, err := newPollFile(c.FD())
	if err != nil {
		return nil, errors.Join(err, opErr("ibv_destroy_comp_channel", c.Destroy()))
	}
	ch := &compChannel{dev: d, c: c, file: file, cqs: make(map[cverbs.CQ]*cq)}
	ch.try = ch.get
	return ch, nil
}

func (ch *compChannel) add(q *cq) {
	ch.mu.Lock()
	ch.cqs[q.c] = q
	ch.mu.Unlock()
}

// remove acknowledges what is left: the CQ can be destroyed.
func (ch *compChannel) remove(q *cq) {
	ch.mu.Lock()
	delete(ch.cqs, q.c)
	if q.unacked > 0 {
		q.c.AckEvents(q.unacked)
		q.unacked = 0
	}
	ch.mu.Unlock()
}

// get takes one event and reports whether there was one, or an error.
func (ch *compChannel) get(uintptr) bool {
	ch.mu.Lock() // over the call: an event that has been got is counted before its CQ is removed
	defer ch.mu.Unlock()
	for {
		h, err := ch.c.GetCQEvent()
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EAGAIN):
			return false
		case err != nil:
			ch.err = opErr("ibv_get_cq_event", err)
			return true
		}
		q, ok := ch.cqs[h]
		if !ok { // being destroyed, which waits for this
			h.AckEvents(1)
			continue
		}
		if q.unacked++; q.unacked == ackBatch {
			h.AckEvents(ackBatch)
			q.unacked = 0
		}
		ch.got = q
		return true
	}
}

// Wait allocates only for a context other than that of the call before.
func (ch *compChannel) Wait(ctx context.Context) (driver.CQ, error) {
	ch.waitMu.Lock()
	defer ch.waitMu.Unlock()
	ch.watch(ctx)
	for {
		if ch.closed.Load() {
			return nil, driver.ErrClosed
		}
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if ch.woken.CompareAndSwap(true, false) {
			return nil, nil
		}
		ch.got, ch.err = nil, nil
		err := ch.file.wait(ch.try)
		switch {
		case err == nil && ch.err == nil:
			return ch.got, nil
		case err == nil:
			return nil, ch.err
		case errors.Is(err, os.ErrDeadlineExceeded):
			ch.file.unkick()
		default: // the file is closed last of all, under waitMu
			return nil, driver.ErrClosed
		}
	}
}

// watch has the end of ctx kick the file. The watch over the context of the call
// before is kept if it is the same: a poller waits with one context for ever.
func (ch *compChannel) watch(ctx context.Context) {
	if ch.done == ctx.Done() {
		return
	}
	if ch.stop != nil {
		ch.stop()
		ch.stop = nil
	}
	if ch.done = ctx.Done(); ch.done != nil {
		ch.stop = context.AfterFunc(ctx, ch.file.kick)
	}
}

func (ch *compChannel) Wake() {
	ch.woken.Store(true)
	ch.file.kick()
}

func (ch *compChannel) Close() error {
	ch.closed.Store(true)
	ch.file.kick()
	ch.waitMu.Lock()
	defer ch.waitMu.Unlock()
	if ch.stop != nil {
		ch.stop()
	}
	ch.file.close()
	return opErr("ibv_destroy_comp_channel", ch.c.Destroy())
}
