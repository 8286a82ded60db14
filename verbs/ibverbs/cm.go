//go:build ibverbs && linux && cgo

package ibverbs

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/argonaut-rdma/argonaut/verbs/driver"
	"github.com/argonaut-rdma/argonaut/verbs/ibverbs/internal/cverbs"
)

// Defaults of driver.ConnParam. A dead peer is noticed within (retries + 1)
// times up to 4 timeouts: about 2 s.
const (
	defaultRdAtomic   = 16
	defaultRetryCnt   = 6
	defaultRNRRetry   = 6 // 7 would be for ever
	defaultAckTimeout = 67 * time.Millisecond
	// rxeAckTimeout is rxe's, which answers when it gets the processor: what it
	// takes for lost it repeats, and a repeated READ or atomic may leave a fenced
	// request waiting for ever.
	rxeAckTimeout = 250 * time.Millisecond
	// minRNRTimer is the code of 10.24 ms that a peer waits after we had no
	// receive for it. The connection manager would leave it at 0, which means
	// 655 ms.
	minRNRTimer = 20
	// resolveTimeout bounds address and route resolution where the context has
	// no deadline, in milliseconds.
	resolveTimeout = 5000
)

// Reasons of a rejection that InfiniBand's connection manager gives, of many
// (IB_CM_REJ_...).
const (
	rejInvalidServiceID = 8  // nobody listens
	rejConsumerDefined  = 28 // the peer's Reject
)

// cmID is a connection manager's identifier: of a listener, a connection
// request, or a connection.
type cmID struct {
	dev      *device
	listener *listener           // of a listening one
	events   chan cverbs.CMEvent // what the connection's maker waits for, one at a time

	gone    chan struct{} // closed when rdma_destroy_id has returned
	goneErr error         // what it returned; before gone is closed, of whoever calls it

	mu          sync.Mutex // over calls on c, so that they can not touch a destroyed one
	c           cverbs.ID
	destroyed   bool
	established bool
	qp          *qp // of a connection
}

// newID makes an identifier over c and lets the event loop know it.
func (d *device) newID(c cverbs.ID) *cmID {
	id := &cmID{dev: d, c: c, events: make(chan cverbs.CMEvent, 8), gone: make(chan struct{})}
	d.mu.Lock()
	d.ids[c] = id
	d.mu.Unlock()
	return id
}

func (d *device) createID() (*cmID, error) {
	c, err := d.cm.CreateID()
	if err != nil {
		return nil, createErr("rdma_create_id", err)
	}
	return d.newID(c), nil
}

// do calls f on the identifier unless it is destroyed.
func (id *cmID) do(call string, f func(cverbs.ID) error) error {
	id.mu.Lock()
	defer id.mu.Unlock()
	if id.destroyed {
		return driver.ErrClosed
	}
	return opErr(call, f(id.c))
}

// destroy ends the identifier and what it was doing, and waits for that.
func (id *cmID) destroy() error {
	if id.retire() {
		id.free()
	}
	<-id.gone
	return id.goneErr
}

// abandon is destroy without the waiting: siw ends a connection that is being
// made when its handshake has timed out, after 10 s. QP.Destroy waits for the
// goroutine.
func (id *cmID) abandon() {
	if id.retire() {
		go id.free()
	}
}

// retire makes the identifier unusable and reports whether it was the first to
// do so: the first calls free.
func (id *cmID) retire() bool {
	id.mu.Lock()
	defer id.mu.Unlock()
	if id.destroyed {
		return false
	}
	id.destroyed = true
	id.dev.mu.Lock()
	delete(id.dev.ids, id.c)
	id.dev.mu.Unlock()
	return true
}

// free is called without locks: it waits for the event loop.
func (id *cmID) free() {
	id.goneErr = opErr("rdma_destroy_id", id.c.Destroy())
	close(id.gone)
}

// disconnect tells the peer, or answers it. A connection that is gone already is
// no error.
func (id *cmID) disconnect() error {
	err := id.do("rdma_disconnect", cverbs.ID.Disconnect)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOTCONN) {
		return nil
	}
	return err
}

// wait returns the next event of the identifier if it is of one of the wanted
// types, and else what went wrong.
func (id *cmID) wait(ctx context.Context, want ...int) (cverbs.CMEvent, error) {
	select {
	case e := <-id.events:
		for _, w := range want {
			if e.Type == w {
				return e, nil
			}
		}
		return e, id.eventErr(e)
	case <-ctx.Done():
		return cverbs.CMEvent{}, ctx.Err()
	}
}

func (id *cmID) eventErr(e cverbs.CMEvent) error {
	name := cverbs.CMEventName(e.Type)
	switch e.Type {
	case cverbs.CMRejected:
		// InfiniBand reports a reason, iWARP an error number: -ECONNRESET is the
		// peer's refusal, -ECONNREFUSED that of its TCP. Whatever else the peer's
		// connection manager says, a number of a queue pair that it remembers for
		// instance, does not mean that nobody listens.
		reject, nobody := rejConsumerDefined, rejInvalidServiceID
		if id.dev.iwarp() {
			reject, nobody = -int(unix.ECONNRESET), -int(unix.ECONNREFUSED)
		}
		switch e.Status {
		case reject:
			return &driver.RejectError{PrivateData: e.Conn.PrivateData}
		case nobody:
			return fmt.Errorf("%s, status %d: %w", name, e.Status, driver.ErrRefused)
		}
	case cverbs.CMDeviceRemoval:
		return fmt.Errorf("%s: %w", name, driver.ErrDeviceLost)
	}
	if e.Status < 0 {
		return fmt.Errorf("%s: %w", name, unix.Errno(-e.Status))
	}
	return fmt.Errorf("%s, status %d", name, e.Status)
}

// connParam is p as the connection manager takes it, for our side of q.
func (q *qp) connParam(p driver.ConnParam) (*cverbs.ConnParam, error) {
	c := &q.dev.caps
	switch {
	case len(p.PrivateData) > c.MaxPrivateData:
		return nil, fmt.Errorf("private data of %d bytes, at most %d: %w", len(p.PrivateData), c.MaxPrivateData, driver.ErrInvalid)
	case p.IRD < 0 || p.IRD > c.MaxIRD || p.ORD < 0 || p.ORD > c.MaxORD:
		return nil, fmt.Errorf("IRD %d, ORD %d, at most %d and %d: %w", p.IRD, p.ORD, c.MaxIRD, c.MaxORD, driver.ErrInvalid)
	case p.RetryCnt < 0 || p.RetryCnt > 7 || p.RNRRetry < 0 || p.RNRRetry > 6 || p.AckTimeout < 0:
		return nil, fmt.Errorf("retries %d, RNR retries %d, timeout %v: %w", p.RetryCnt, p.RNRRetry, p.AckTimeout, driver.ErrInvalid)
	}
	cp := &cverbs.ConnParam{
		PrivateData:        p.PrivateData,
		ResponderResources: p.IRD,
		InitiatorDepth:     p.ORD,
		RetryCount:         p.RetryCnt,
		RNRRetryCount:      p.RNRRetry,
		SRQ:                q.hasSRQ,
		QPN:                q.qpn,
	}
	if cp.ResponderResources == 0 {
		cp.ResponderResources = min(defaultRdAtomic, c.MaxIRD)
	}
	if cp.InitiatorDepth == 0 {
		cp.InitiatorDepth = min(defaultRdAtomic, c.MaxORD)
	}
	if cp.RetryCount == 0 {
		cp.RetryCount = defaultRetryCnt
	}
	if cp.RetryCount == 7 && q.dev.rxe() {
		cp.RetryCount = 6 // to rxe, 7 is for ever
	}
	if cp.RNRRetryCount == 0 {
		cp.RNRRetryCount = defaultRNRRetry
	}
	return cp, nil
}

// ackTimeoutCode is the exponent n of the timeout 4.096 us * 2^n that is at
// least t; 0 is the default.
func (d *device) ackTimeoutCode(t time.Duration) int {
	switch {
	case t != 0:
	case d.rxe():
		t = rxeAckTimeout
	default:
		t = defaultAckTimeout
	}
	code := math.Ceil(math.Log2(float64(t) / 4096))
	return int(min(max(code, 1), 31))
}

// start ties the QP to a connection that is to be made, once.
func (q *qp) start(id *cmID) error {
	q.connMu.Lock()
	defer q.connMu.Unlock()
	switch {
	case q.destroyed:
		return driver.ErrClosed
	case q.id != nil || q.state != driver.QPStateInit:
		return fmt.Errorf("connect in state %v: %w", q.state, driver.ErrQPState)
	}
	q.id = id
	id.mu.Lock()
	id.qp = q
	id.mu.Unlock()
	return nil
}

// fail ends a connection that could not be made, puts the QP to ERR and returns
// why: err, unless the connection had come and gone meanwhile. Then the kernel
// refuses the next step with EINVAL, which is no argument of the caller's.
func (q *qp) fail(id *cmID, err error) error {
	id.abandon()
	q.connMu.Lock()
	defer q.connMu.Unlock()
	if errors.Is(err, driver.ErrInvalid) && (q.state == driver.QPStateErr || id.lost()) {
		err = fmt.Errorf("%w while connecting (%s)", unix.ECONNRESET, err.Error()) // without the class of err
	}
	_ = q.toErr()
	return err
}

// lost says whether the end of the connection is among the events that nobody has
// waited for.
func (id *cmID) lost() bool {
	for {
		select {
		case e := <-id.events:
			switch e.Type {
			case cverbs.CMDisconnected, cverbs.CMRejected, cverbs.CMConnectError, cverbs.CMUnreachable:
				return true
			}
		default:
			return false
		}
	}
}

// connected records the end of the making.
func (q *qp) connected(id *cmID) {
	local, remote := id.addrs()
	q.connMu.Lock()
	q.local, q.remote = local, remote
	q.connMu.Unlock()
	q.inRTS()
}

// inRTS records that the QP is in RTS, unless it has been lost already.
func (q *qp) inRTS() {
	q.connMu.Lock()
	defer q.connMu.Unlock()
	if q.state == driver.QPStateInit {
		q.state = driver.QPStateRTS
	}
}

// toRTS moves a QP of RoCE or InfiniBand from INIT to RTS, as the connection
// manager says, but with our own retries and timers. rdAtomic sets IRD and ORD,
// too: on the side that accepts, the connection manager does not know them yet.
func (q *qp) toRTS(id *cmID, cp *cverbs.ConnParam, ackTimeout time.Duration, rdAtomic bool) error {
	q.connMu.Lock()
	defer q.connMu.Unlock()
	if q.destroyed {
		return driver.ErrClosed
	}
	for _, state := range []driver.QPState{driver.QPStateInit, driver.QPStateRTR, driver.QPStateRTS} {
		var attr cverbs.QPAttr
		err := id.do("rdma_init_qp_attr", func(c cverbs.ID) (err error) {
			attr, err = c.InitQPAttr(int(state))
			return err
		})
		if err != nil {
			return err
		}
		switch state {
		case driver.QPStateInit:
			if attr.Port() == q.dev.port && attr.PKeyIndex() == 0 {
				continue // as CreateQP left it
			}
			attr.SetAccess(q.dev.qpAccess())
		case driver.QPStateRTR:
			attr.SetMinRNRTimer(minRNRTimer)
			if rdAtomic {
				attr.SetMaxDestRdAtomic(cp.ResponderResources)
			}
		case driver.QPStateRTS:
			attr.SetRetry(q.dev.ackTimeoutCode(ackTimeout), cp.RetryCount, cp.RNRRetryCount)
			if rdAtomic {
				attr.SetMaxRdAtomic(cp.InitiatorDepth)
			}
		}
		if err := q.c.Modify(&attr); err != nil {
			return opErr(fmt.Sprintf("ibv_modify_qp to %v", state), err)
		}
	}
	return nil
}

// Connect resolves addr, asks and waits for the answer.
func (q *qp) Connect(ctx context.Context, addr string, p driver.ConnParam) (driver.ConnParam, error) {
	id, err := q.dev.createID()
	if err != nil {
		return driver.ConnParam{}, err
	}
	if err := q.start(id); err != nil {
		return driver.ConnParam{}, errors.Join(err, id.destroy())
	}
	answer, err := q.connect(ctx, id, addr, p)
	for tries := 1; tries < freePortTries && q.dev.siw() && errors.Is(err, unix.EADDRINUSE); tries++ {
		if id, err = q.another(id); err == nil {
			answer, err = q.connect(ctx, id, addr, p)
		}
	}
	if err != nil {
		return driver.ConnParam{}, fmt.Errorf("ibverbs: connect to %s: %w", addr, q.fail(id, err))
	}
	q.connected(id)
	return answer, nil
}

// another ties the QP to an identifier in place of id, whose port is not free: siw
// shares the ports with TCP, of which rdma_cm knows nothing. On error it may be id.
func (q *qp) another(id *cmID) (*cmID, error) {
	next, err := q.dev.createID()
	if err != nil {
		return id, err
	}
	q.connMu.Lock()
	if q.id == id {
		q.id = nil
	}
	q.connMu.Unlock()
	if err := q.start(next); err != nil {
		return next, errors.Join(err, id.destroy())
	}
	return next, id.destroy()
}

func (q *qp) connect(ctx context.Context, id *cmID, addr string, p driver.ConnParam) (driver.ConnParam, error) {
	d := q.dev
	cp, err := q.connParam(p)
	if err != nil {
		return driver.ConnParam{}, err
	}
	dst, err := resolve(ctx, addr)
	if err != nil {
		return driver.ConnParam{}, err
	}
	timeout := resolveTimeout
	if deadline, ok := ctx.Deadline(); ok {
		timeout = int(max(time.Until(deadline).Milliseconds(), 1))
	}
	err = id.do("rdma_resolve_addr", func(c cverbs.ID) error { return c.ResolveAddr(d.src, dst, timeout) })
	if err != nil {
		return driver.ConnParam{}, err
	}
	if _, err := id.wait(ctx, cverbs.CMAddrResolved); err != nil {
		return driver.ConnParam{}, err
	}
	err = id.do("rdma_resolve_route", func(c cverbs.ID) error {
		if name := c.Device(); name != d.caps.Name {
			return fmt.Errorf("the route leads to device %q, not %q: %w", name, d.caps.Name, unix.EHOSTUNREACH)
		}
		return c.ResolveRoute(timeout)
	})
	if err != nil {
		return driver.ConnParam{}, err
	}
	if _, err := id.wait(ctx, cverbs.CMRouteResolved); err != nil {
		return driver.ConnParam{}, err
	}
	if err := id.do("rdma_connect", func(c cverbs.ID) error { return c.Connect(cp) }); err != nil {
		return driver.ConnParam{}, err
	}
	if d.iwarp() {
		e, err := id.wait(ctx, cverbs.CMEstablished)
		if err != nil {
			return driver.ConnParam{}, err
		}
		// Here the event has our own IRD and ORD, the other way round than elsewhere.
		return driver.ConnParam{PrivateData: e.Conn.PrivateData, IRD: e.Conn.InitiatorDepth, ORD: e.Conn.ResponderResources}, nil
	}
	e, err := id.wait(ctx, cverbs.CMConnectResponse)
	if err != nil {
		return driver.ConnParam{}, err
	}
	if err := q.toRTS(id, cp, p.AckTimeout, false); err != nil {
		return driver.ConnParam{}, err
	}
	if err := id.do("rdma_establish", cverbs.ID.Establish); err != nil {
		return driver.ConnParam{}, err
	}
	return driver.ConnParam{PrivateData: e.Conn.PrivateData, IRD: e.Conn.ResponderResources, ORD: e.Conn.InitiatorDepth}, nil
}
