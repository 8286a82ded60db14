package messenger

import (
	"sync"
	"time"
)

// delays is the messages of one connection that have been received and whose
// delivery is held back (Inject.DeliveryDelays), and what came behind them. One
// goroutine at a time, which is there while they are, hands them on in order. It
// counts as a handler that is due, so that Drain and Shutdown wait.
type delays struct {
	c *Connection

	mu      sync.Mutex
	waiting ring[delayed]
	running bool // the goroutine is there: whatever comes has to wait
}

// delayed is a message, or another event of the connection.
type delayed struct {
	event
	due           time.Time
	flagged, told bool // see dispatch
}

// newDelays is nil where nothing is held back.
func (c *Connection) newDelays() *delays {
	i := c.m.inject
	if i == nil || i.DeliveryDelays <= 0 || (i.DelayType != 0 && i.DelayType != c.peerType) {
		return nil
	}
	return &delays{c: c}
}

// take holds a message back, which it then takes. false: it is to be dispatched
// now. Connection.recvMu is held. d may be nil.
func (d *delays) take(m *Message, since int64, flagged, told bool) bool {
	if d == nil {
		return false
	}
	hold := d.c.m.inject.delay()
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.running && hold == 0 {
		return false
	}
	d.waiting.push(delayed{event{eventMessage, m, since}, time.Now().Add(hold), flagged, told})
	if !d.running {
		d.running = true
		d.c.strand.ex.hold()
		d.c.m.wg.Add(1)
		go d.run() // ends when nothing waits
	}
	return true
}

// behind has an event wait for the messages before it. false: there are none. d
// may be nil.
func (d *delays) behind(e event) bool {
	if d == nil {
		return false
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.running {
		d.waiting.push(delayed{event: e})
	}
	return d.running
}

// waitingSince is how many wait, and since when the first message does. d may be
// nil.
func (d *delays) waitingSince() (n int, since int64) {
	if d == nil {
		return 0, 0
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for i := range d.waiting.n {
		if x := d.waiting.at(i); x.m != nil {
			since = x.since
			break
		}
	}
	return d.waiting.n, since
}

func (d *delays) run() {
	c := d.c
	defer c.m.wg.Done()
	defer c.strand.ex.unhold()
	for {
		d.mu.Lock()
		x, ok := d.waiting.pop()
		d.running = ok
		d.mu.Unlock()
		if !ok {
			return
		}
		if x.m == nil {
			c.strand.pushNow(x.event)
			continue
		}
		t := time.NewTimer(time.Until(x.due))
		select {
		case <-t.C:
		case <-c.ctx.Done():
		}
		t.Stop()
		c.mu.Lock()
		down := c.down
		c.mu.Unlock()
		if down {
			x.m.Release()
			continue
		}
		c.dispatch(x.m, x.since, x.flagged, x.told)
	}
}
