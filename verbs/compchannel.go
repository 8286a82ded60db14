package verbs

import "context"

// CompChannel announces completions of the CQs made on it.
type CompChannel struct{}

// Device returns the device.
func (c *CompChannel) Device() *Device { return nil }

// Wait blocks until a CQ that was armed by ReqNotify has an announcement and
// returns that CQ, or nil and nil after Wake. One caller at a time. It ends with
// ctx's error, or with ErrClosed by Close.
func (c *CompChannel) Wait(ctx context.Context) (*CQ, error) { return nil, ErrNotSupported }

// Wake ends the current Wait, or the next one when none is waiting.
func (c *CompChannel) Wake() {}

// Close closes the channel. With live CQs on it it returns *BusyError and
// changes nothing.
func (c *CompChannel) Close() error { return ErrNotSupported }
