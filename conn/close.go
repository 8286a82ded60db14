package conn

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"time"

	"github.com/argonaut-rdma/argonaut/conn/internal/wire"
	"github.com/argonaut-rdma/argonaut/verbs"
)

var (
	errDisconnected = errors.New("the connection is gone")
	errRndvTimeout  = fmt.Errorf("%w: the peer does not fetch a payload", ErrTimeout)
	errFirstTimeout = fmt.Errorf("%w: the peer's first frame has not come", ErrTimeout)
)

// destroyRetry is the pause before a queue pair that the device failed to
// destroy is tried again.
const destroyRetry = 100 * time.Millisecond

// drainStall is how long no completion has come when no more is expected.
const drainStall = 100 * time.Millisecond

func isQPState(err error) bool {
	return errors.Is(err, verbs.ErrQPState) || errors.Is(err, verbs.ErrClosed)
}

// fault is the end of a connection. Whatever else has failed, of a device that is
// lost that is the reason.
func (c *Conn) fault(k FaultKind, err error) error {
	if errors.Is(err, verbs.ErrDeviceLost) {
		k = FaultLocal
	}
	return &FaultError{Kind: k, Remote: c.remote.String(), Err: err}
}

func (c *Conn) protocol(format string, a ...any) error {
	return c.fault(FaultPeer, fmt.Errorf("%w: %s", ErrProtocol, fmt.Sprintf(format, a...)))
}

// fail ends the connection, for the first reason given. It does not block and
// needs no lock.
func (c *Conn) fail(err error) { c.end(err, false) }

// endGracefully ends the connection after both sides have said goodbye.
func (c *Conn) endGracefully() {
	c.mu.Lock()
	err := io.EOF
	if c.shut {
		err = ErrClosed
	}
	c.mu.Unlock()
	c.end(err, true)
}

func (c *Conn) end(err error, graceful bool) {
	var f, inner *FaultError
	if errors.As(err, &f) && errors.As(f.Err, &inner) {
		err = inner // c.fault of what c.fault or c.protocol has made
	}
	if !c.err.CompareAndSwap(nil, &err) {
		return
	}
	c.die()
	c.cancel()
	c.kick(mailFail)
	c.e.wg.Add(1)
	go c.reap(graceful)
}

// lost ends the connection because the QP has gone to ERR by itself.
func (c *Conn) lost() {
	if c.Err() != nil {
		return
	}
	c.mu.Lock()
	qp, shut := c.qp, c.shut && c.sentBye
	c.mu.Unlock()
	if qp != nil {
		if t, ok := qp.Cause(); ok { // the event may be on its way yet
			c.because(t, qp)
		}
	}
	err := error(nil)
	if p := c.cause.Load(); p != nil {
		err = *p
	}
	switch {
	case errors.Is(err, ErrViolation): // no goodbye makes up for it
	case shut:
		err = ErrClosed
	case c.rx.byeDone:
		err = io.EOF
	case err == nil:
		err = c.fault(FaultPath, errDisconnected)
	}
	c.fail(err)
}

// event runs on the device's event goroutine.
func (c *Conn) event(ev verbs.Event) {
	switch ev.Type {
	case verbs.EventDisconnected, verbs.EventQPReqErr, verbs.EventQPAccessErr, verbs.EventQPFatal, verbs.EventDeviceFatal:
		c.because(ev.Type, ev.QP)
		c.kick(mailGone)
	}
}

// because takes note of the cause that an event of type t of qp stands for, if
// there is none yet.
func (c *Conn) because(t verbs.EventType, qp *verbs.QP) {
	var err error
	switch t {
	case verbs.EventQPReqErr:
		err = c.fault(FaultPeer, fmt.Errorf("%v", t))
	case verbs.EventQPAccessErr:
		err = c.fault(FaultPeer, fmt.Errorf("%w: %v", ErrViolation, t))
	case verbs.EventQPFatal:
		// Some devices know whose doing it is. With others a request of ours that is
		// wrong shows as a completion, which counts more; without one, where the
		// device does not report a remote violation on the request, the peer has
		// terminated the connection over it.
		local, known := qp.LocalCause()
		if !known {
			local = c.e.caps.RemoteViolationOnWR && !c.accesses()
		}
		kind := FaultPeer
		if local {
			kind = FaultLocal
		}
		err = c.fault(kind, fmt.Errorf("%v", t))
	case verbs.EventDeviceFatal:
		err = c.fault(FaultLocal, fmt.Errorf("%s: %w", c.e.dev.Name(), verbs.ErrDeviceLost))
	default: // the connection is gone, which says nothing of why
		return
	}
	c.cause.CompareAndSwap(nil, &err)
}

// accesses reports whether requests of ours for the peer's memory are under way,
// or were when the QP went down.
func (c *Conn) accesses() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ops.posted+c.ops.failed > 0
}

// reap takes the queue pair down. Its goroutine is started by end and ends when
// the queue pair is destroyed; Endpoint.wg counts it.
func (c *Conn) reap(graceful bool) {
	defer c.e.wg.Done()
	<-c.setUp // c.qp is known from here on
	c.kick(mailFail)
	c.note(slog.LevelDebug, "connection ended", "err", c.Err())
	if c.first != nil {
		c.first.Stop()
	}
	if c.qp == nil {
		c.kick(mailReaped)
		return
	}
	switch {
	case graceful:
		c.disconnect()
	case errors.Is(c.Err(), ErrClosed):
		c.sayClose()
	}
	// To ERR first: a peer that is in the middle of a transfer sees the
	// connection go, not its key.
	if err := c.qp.SetError(); err != nil {
		c.note(slog.LevelWarn, "set QP to ERR", "err", err)
	}
	c.withdraw(false)
	c.drain()
	// The poller does it: one that always has something to do, or spins for long,
	// lets nobody take its turn.
	c.kick(mailHide)
	<-c.hidden
	for {
		orphans, err := c.qp.Close()
		c.e.stats.orphans.Add(uint64(len(orphans)))
		c.l.orphaned(orphans)
		if err == nil {
			break
		}
		// Until it is destroyed the device may use the buffers: they stay
		// referenced, and Endpoint.Shutdown names the connection.
		c.note(slog.LevelWarn, "destroy QP", "err", err)
		time.Sleep(destroyRetry)
		c.withdraw(false)
	}
	c.withdraw(true)
	c.kick(mailReaped)
}

// disconnect ends the connection, and waits for that, once what was posted has
// been sent: the connection managers of the kernel do not wait for it.
func (c *Conn) disconnect() {
	t := time.NewTimer(c.e.cfg.DrainTimeout)
	defer t.Stop()
	for !c.allSent() {
		select {
		case <-c.progress:
			continue
		case <-c.cut:
		case <-t.C:
		}
		return
	}
	if c.qp.Disconnect() != nil {
		return
	}
	select {
	case <-c.qp.Disconnected():
	case <-c.cut:
	case <-t.C:
	}
}

// closeGrace bounds the wait for a peer to be told that the connection is closed,
// and that of a Dial that has failed.
const closeGrace = 500 * time.Millisecond

// sayClose tells the peer that the connection is being closed, and waits until it
// has closed its end, too, or does not.
func (c *Conn) sayClose() {
	i := c.postClose()
	if i < 0 {
		return
	}
	t := time.NewTimer(min(closeGrace, c.e.cfg.DrainTimeout)) // Shutdown waits for a multiple of the latter
	defer t.Stop()
	for c.saying(i) {
		select {
		case <-c.progress:
		case <-c.qp.Disconnected():
			return
		case <-t.C:
			return
		}
	}
	if c.qp.Disconnect() != nil {
		return
	}
	select {
	case <-c.qp.Disconnected():
	case <-t.C:
	}
}

// postClose posts a CLOSE, in a control slot that it returns. -1: it can not, or the
// peer is not to be waited for: one that the application does not know yet
// (Promote) takes the place of others meanwhile.
func (c *Conn) postClose() int {
	c.e.mu.Lock()
	closing := c.e.closing
	c.e.mu.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	i := slices.Index(c.tx.controlBusy[:], false)
	if !c.open || c.sentBye || c.staged.Load() && !c.known.Load() || c.credits == 0 || c.peer.Features&wire.FeatureClose == 0 || i < 0 {
		return -1
	}
	why := uint64(wire.CloseConn)
	if closing {
		why = wire.CloseEndpoint
	}
	s := &c.tx.control[i]
	s.start()
	wire.Record{Type: wire.Close, Payload: why}.Put(s.grow(wire.RecordLen))
	c.putHeader(s)
	c.tx.wrs[0] = verbs.SendWR{WRID: wrControl | uint64(i), Opcode: verbs.OpSend, Flags: verbs.SendSignaled, SGEs: s.sges}
	if n, _ := c.post(c.tx.wrs[:1]); n == 0 {
		return -1 // it has gone to ERR meanwhile
	}
	c.tx.controlBusy[i] = true
	c.credits--
	c.stats.packetsSent.Add(1)
	return i
}

// saying reports whether the packet in control slot i has not been sent yet.
func (c *Conn) saying(i int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.tx.controlBusy[i]
}

// closedBy is the end of a connection that the peer has closed.
func closedBy(why uint64) error {
	if why == wire.CloseEndpoint {
		return fmt.Errorf("%w, with its endpoint", ErrPeerClosed)
	}
	return ErrPeerClosed
}

// allSent reports whether every completion that is due for sends has come. The
// last of a connection, the goodbye, is due one.
func (c *Conn) allSent() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, busy := range c.tx.controlBusy {
		if busy {
			return false
		}
	}
	return c.tx.signaled == 0 && c.ops.posted == 0
}

// drain waits for the completions that a QP in ERR is to give: it collects them,
// destroying the QP is what ends the device's access. Devices differ in what
// they complete, so it ends too when none has come for a while.
func (c *Conn) drain() {
	end := time.NewTimer(c.e.cfg.DrainTimeout)
	defer end.Stop()
	stall := time.NewTimer(drainStall)
	defer stall.Stop()
	for !c.drained() {
		select {
		case <-c.progress:
			stall.Reset(drainStall)
		case <-stall.C:
			return
		case <-end.C:
			return
		}
	}
}

// drained reports whether no completion is to come. Sends that were not
// signalled may have succeeded without one.
func (c *Conn) drained() bool {
	return (c.l.rq != nil || c.rq.posted() == 0) && c.allSent()
}

// drainProgress tells drain that completions have come.
func (c *Conn) drainProgress() {
	select {
	case c.progress <- struct{}{}:
	default:
	}
}

// isSetUp reports whether the handshake is over, one way or the other.
func (c *Conn) isSetUp() bool {
	select {
	case <-c.setUp:
		return true
	default:
		return false
	}
}

// faultOnce runs on the poller when err is set: no callback but OnFault from
// here on.
func (c *Conn) faultOnce() {
	c.rx.dead = true
	c.mu.Lock()
	call := c.handed && !c.faulted
	first := !c.faulted
	c.faulted = true
	c.mu.Unlock()
	err := c.Err()
	var f *FaultError
	if first && errors.As(err, &f) {
		c.e.stats.faults[f.Kind].Add(1)
	}
	if call && c.e.cfg.OnFault != nil {
		c.e.cfg.OnFault(c, err)
	}
}

// buried runs on the poller when the QP is destroyed, so that no completion of
// it comes any more: everything is given back.
func (c *Conn) buried() {
	c.l.leave(c, c.rx.waiting)
	c.p.mu.Lock()
	c.rx.reaped = true
	bufs, list := c.rx.bufs, c.rx.gotList
	c.rx.bufs, c.rx.gotList = nil, nil
	c.p.mu.Unlock()
	for _, b := range bufs {
		b.Release()
	}
	if list != nil {
		list.Release()
	}
	if c.rx.list != nil {
		c.rx.list.Release()
		c.rx.list = nil
	}

	c.mu.Lock()
	if c.out.list != nil {
		c.out.list.Release()
		if c.out.sent != nil {
			c.out.sent()
		}
		c.out = outgoing{}
	}
	c.releaseOps()
	c.tx.release()
	c.mu.Unlock()

	for c.rx.in.head != nil {
		c.unref(c.rx.in.pop())
	}
	c.rx.short.drop()
	for !c.rx.entries.empty() {
		e := *c.rx.entries.front()
		c.rx.entries.pop()
		if e.payload != nil {
			e.payload.Release()
		}
		c.unref(e.pkt)
	}
	if c.l.rq == nil {
		c.rq.releaseAll()
	} else if err := c.l.rq.flush(); err != nil {
		c.l.failAll(err)
	}
	c.e.forget(c)
	close(c.done)
}
