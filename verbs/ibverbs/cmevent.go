//go:build ibverbs && linux && cgo

package ibverbs

import (
	"errors"

	"golang.org/x/sys/unix"

	"github.com/argonaut-rdma/argonaut/verbs/driver"
	"github.com/argonaut-rdma/argonaut/verbs/ibverbs/internal/cverbs"
)

// cmLoop runs until Close, which closes the descriptor.
func (d *device) cmLoop() {
	_ = d.cmFile.wait(func(uintptr) bool {
		for {
			e, err := d.cm.GetEvent()
			switch {
			case errors.Is(err, unix.EINTR):
				continue
			case errors.Is(err, unix.EAGAIN):
				return false
			case err != nil:
				d.log.Error("connection events have ended", "device", d.caps.Name, "error", err)
				d.events.push(driver.Event{Type: driver.EventDeviceFatal})
				return true
			}
			key := e.ID
			if e.Type == cverbs.CMConnectRequest {
				key = e.ListenID
			}
			d.mu.Lock()
			id := d.ids[key]
			d.mu.Unlock()
			e.Ack() // only now: until then the identifier can not be destroyed, and its address not be another's
			d.handleCM(id, e)
		}
	})
}

// handleCM does not block. id is nil for one that is being destroyed.
func (d *device) handleCM(id *cmID, e cverbs.CMEvent) {
	switch {
	case e.Type == cverbs.CMConnectRequest:
		d.handleRequest(id, e)
	case id == nil, e.Type == cverbs.CMTimewaitExit, e.Type == cverbs.CMAddrChange:
	case e.Type == cverbs.CMDisconnected, e.Type == cverbs.CMRejected, e.Type == cverbs.CMConnectError, e.Type == cverbs.CMUnreachable:
		id.handleDisconnected(e)
	case e.Type == cverbs.CMDeviceRemoval:
		id.handleRemoval(e)
	case e.Type == cverbs.CMEstablished, e.Type == cverbs.CMConnectResponse:
		id.handleEstablished(e)
	default:
		id.deliver(e)
	}
}

// handleEstablished records the connection before who makes it hears of it: on
// iWARP it is the only word that the QP is in RTS, and what the peer sends may be
// polled, and answered, by then.
func (id *cmID) handleEstablished(e cverbs.CMEvent) {
	id.mu.Lock()
	id.established = true
	q := id.qp
	id.mu.Unlock()
	if q != nil && e.Type == cverbs.CMEstablished {
		q.inRTS()
	}
	id.deliver(e)
}

// deliver hands an event to whoever makes the connection.
func (id *cmID) deliver(e cverbs.CMEvent) {
	select {
	case id.events <- e:
	default:
		id.dev.log.Warn("connection event nobody waits for", "device", id.dev.caps.Name, "event", cverbs.CMEventName(e.Type))
	}
}

// handleDisconnected answers the peer, ends the QP, so that everything
// outstanding completes, and reports it. Before the connection is established it is
// for whoever makes it. Afterwards a rejection is the end, too: for an acceptor that
// dies before the dialer's RTU has come, Linux sends a REJ in place of the DREQ.
func (id *cmID) handleDisconnected(e cverbs.CMEvent) {
	id.mu.Lock()
	established, q := id.established, id.qp
	id.mu.Unlock()
	if !established || q == nil {
		id.deliver(e)
		return
	}
	if !id.dev.iwarp() {
		_ = id.disconnect()
	}
	q.connMu.Lock()
	err := q.toErr()
	q.connMu.Unlock()
	if !errors.Is(err, driver.ErrClosed) {
		id.dev.events.push(driver.Event{Type: driver.EventDisconnected, QP: q})
	}
}

// handleRemoval reports the end of the device, which is the end of its queue
// pairs and listeners, too: the kernel gets rid of it when everybody has let go
// of it, and says so to identifiers only. Who makes a connection is told at once.
func (id *cmID) handleRemoval(e cverbs.CMEvent) {
	id.mu.Lock()
	established, q := id.established, id.qp
	id.mu.Unlock()
	id.dev.events.push(driver.Event{Type: driver.EventDeviceFatal})
	if id.listener == nil && (!established || q == nil) {
		id.deliver(e)
	}
}

// handleRequest queues a request, or refuses it: the listener may be closing, or
// listen on the addresses of other devices, too.
func (d *device) handleRequest(listenID *cmID, e cverbs.CMEvent) {
	if listenID != nil && e.ID.Device() == d.caps.Name {
		id := d.newID(e.ID)
		if listenID.listener.push(&connRequest{id: id, param: e.Conn}) {
			return
		}
		_ = id.do("rdma_reject", func(c cverbs.ID) error { return c.Reject(nil) })
		_ = id.destroy()
		return
	}
	_ = e.ID.Reject(nil)
	_ = e.ID.Destroy()
}
