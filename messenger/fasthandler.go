package messenger

import "slices"

// fastHandle tells who wants to know of the new transport before its first message
// is read: it runs where that will be.
func (c *Connection) fastHandle(accepted bool) {
	if !slices.ContainsFunc(c.m.dispatchers(), func(d Dispatcher) bool { _, ok := d.(FastHandler); return ok }) {
		return
	}
	c.recvMu.Lock() // the transport before may be in FastDispatch
	defer c.recvMu.Unlock()
	c.mu.Lock()
	down := c.down
	c.mu.Unlock()
	if !down {
		c.runFastHandlers(c.m.mark, accepted)
	}
}

//go:noinline
func (c *Connection) runFastHandlers(_ handlerMark, accepted bool) {
	defer func() {
		if r := recover(); r != nil {
			c.panicked(r, false)
		}
	}()
	for _, d := range c.m.dispatchers() {
		f, ok := d.(FastHandler)
		switch {
		case !ok:
		case accepted:
			f.FastHandleAccept(c)
		default:
			f.FastHandleConnect(c)
		}
	}
}
