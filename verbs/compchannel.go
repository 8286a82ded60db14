package verbs

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/argonaut-rdma/argonaut/verbs/driver"
)

// CompChannel announces completions of the CQs made on it.
type CompChannel struct {
	dev    *Device
	drv    driver.CompChannel
	obj    object
	closed atomic.Bool

	mu  sync.Mutex // of this channel, so that channels do not meet in the device's
	cqs map[driver.CQ]*CQ
}

// CreateCompChannel makes a completion channel.
func (d *Device) CreateCompChannel() (*CompChannel, error) {
	const op = "create comp channel"
	c := &CompChannel{dev: d, cqs: map[driver.CQ]*CQ{}}
	if err := c.obj.reserve(d, KindCompChannel, c, &d.obj); err != nil {
		return nil, d.opError(op, 0, err)
	}
	var err error
	if c.drv, err = d.drv.CreateCompChannel(); err != nil {
		c.obj.abandon()
		return nil, d.opError(op, 0, err)
	}
	d.mu.Lock()
	c.obj.linkLocked()
	d.mu.Unlock()
	return c, nil
}

// Device returns the device.
func (c *CompChannel) Device() *Device { return c.dev }

func (c *CompChannel) describe(*Resource) {}

// Wait blocks until a CQ that was armed by ReqNotify has an announcement and
// returns that CQ, or nil and nil after Wake. One caller at a time. It ends with
// ctx's error, or with ErrClosed by Close.
func (c *CompChannel) Wait(ctx context.Context) (*CQ, error) {
	const op = "wait for completions"
	for {
		if c.closed.Load() {
			return nil, c.dev.opError(op, 0, ErrClosed)
		}
		dcq, err := c.drv.Wait(ctx)
		if err != nil {
			return nil, c.dev.opError(op, 0, err)
		}
		if dcq == nil {
			return nil, nil
		}
		c.mu.Lock()
		cq := c.cqs[dcq]
		c.mu.Unlock()
		if cq != nil {
			return cq, nil
		}
		// An announcement of a CQ that has been closed.
	}
}

// SetUpcall has f called when a CQ that was armed has an announcement, on the
// goroutine of the device that has completed something, so that no other one has
// to be woken; when f returns false, or the device has no goroutine to lend just
// then, the announcement goes to Wait. It has to be called before CQs are made on
// the channel, and reports whether the device can do it at all. f is called by
// several goroutines at a time, also while another is in Wait. It must neither
// block nor close queue pairs: while it runs, some queue pair receives nothing.
func (c *CompChannel) SetUpcall(f func(*CQ) bool) bool {
	u, ok := c.drv.(driver.Upcaller)
	if !ok {
		return false
	}
	return u.SetUpcall(func(dcq driver.CQ) bool {
		c.mu.Lock()
		cq := c.cqs[dcq]
		c.mu.Unlock()
		return cq != nil && f(cq)
	})
}

// Wake ends the current Wait, or the next one when none is waiting.
func (c *CompChannel) Wake() { c.drv.Wake() }

// Close closes the channel. With live CQs on it it returns *BusyError and
// changes nothing.
func (c *CompChannel) Close() error {
	return c.obj.shut("close", "comp channel", nil, func() error {
		err := c.drv.Close()
		if err == nil || isLost(err) {
			c.closed.Store(true)
		}
		return err
	}, nil)
}
