package verbs

import (
	"context"
	"fmt"
	"sync/atomic"

	"github.com/argonaut-rdma/argonaut/verbs/driver"
)

// Connect asks the listener at addr for a connection and returns the peer's
// answer, private data included. It blocks until then, until ctx ends, until
// the QP is closed, or until the device is lost (ErrDeviceLost). On error the QP is in ERR and can only be closed, except
// that wrong arguments and a wrong state change nothing. A peer's refusal is a
// *RejectError.
func (q *QP) Connect(ctx context.Context, addr string, p ConnParam) (ConnParam, error) {
	const op = "connect"
	if err := q.dev.checkConnParam(p); err != nil {
		return ConnParam{}, q.dev.opError(op, q.qpn, err)
	}
	ctx, err := q.beginConnect(ctx)
	if err != nil {
		return ConnParam{}, q.dev.opError(op, q.qpn, err)
	}
	answer, err := q.drv.Connect(ctx, addr, p)
	if err = q.endConnect(err); err != nil {
		return ConnParam{}, q.dev.opError(op, q.qpn, fmt.Errorf("%s: %w", addr, err))
	}
	return answer, nil
}

func (d *Device) checkConnParam(p ConnParam) error {
	c := &d.caps
	if len(p.PrivateData) > c.MaxPrivateData {
		return fmt.Errorf("%w: %d bytes of private data, the device takes %d", ErrInvalid, len(p.PrivateData), c.MaxPrivateData)
	}
	for _, l := range []struct {
		name    string
		v, most int
	}{{"IRD", p.IRD, c.MaxIRD}, {"ORD", p.ORD, c.MaxORD}, {"RetryCnt", p.RetryCnt, 7}, {"RNRRetry", p.RNRRetry, 6}} {
		if err := within(l.name, l.v, 0, l.most); err != nil {
			return err
		}
	}
	if p.AckTimeout < 0 {
		return fmt.Errorf("%w: AckTimeout %v", ErrInvalid, p.AckTimeout)
	}
	return nil
}

// Listener hands out connection requests.
type Listener struct {
	dev *Device
	drv driver.Listener
	obj object
}

// Listen accepts connection requests on addr, "host:port" with port 0 for any.
func (d *Device) Listen(ctx context.Context, addr string) (*Listener, error) {
	const op = "listen"
	l := &Listener{dev: d}
	if err := l.obj.reserve(d, KindListener, l, &d.obj); err != nil {
		return nil, d.opError(op, 0, err)
	}
	var err error
	if l.drv, err = d.drv.Listen(ctx, addr); err != nil {
		l.obj.abandon()
		return nil, d.opError(op, 0, fmt.Errorf("%s: %w", addr, err))
	}
	d.mu.Lock()
	l.obj.linkLocked()
	d.mu.Unlock()
	return l, nil
}

// Addr is "host:port", with the port that was bound.
func (l *Listener) Addr() string { return l.drv.Addr() }

func (l *Listener) describe(*Resource) {}

// Accept waits for the next request. It ends with ErrClosed by Close, with
// ErrDeviceLost, or with ctx's error.
func (l *Listener) Accept(ctx context.Context) (*ConnRequest, error) {
	const op = "accept"
	d := l.dev
	wait, done := d.untilLost(ctx)
	defer done()
	drv, err := l.drv.Accept(wait)
	if err != nil {
		return nil, d.opError(op, 0, d.lostErr(err))
	}
	r := &ConnRequest{dev: d, drv: drv}
	if err := r.obj.reserve(d, KindConnRequest, r, &d.obj); err != nil {
		_ = drv.Reject(nil) // the device has been closed behind the listener, or is lost
		return nil, d.opError(op, 0, err)
	}
	r.param = r.drv.Param()
	d.mu.Lock()
	r.obj.linkLocked()
	d.mu.Unlock()
	return r, nil
}

// Close stops listening and refuses the requests not yet accepted. Requests
// handed out live on.
func (l *Listener) Close() error {
	return l.obj.shut("close", "listener", nil, l.drv.Close, nil)
}

// ConnRequest is a peer that asks for a connection. Exactly one call of Accept
// or Reject ends it; others return ErrClosed.
type ConnRequest struct {
	dev   *Device
	drv   driver.ConnRequest
	obj   object
	param ConnParam
	ended atomic.Bool
}

// Param is what the peer sent: private data (the request's own), and its IRD
// and ORD as ours have to be at least and at most.
func (r *ConnRequest) Param() ConnParam { return r.param }

// PrivateData is Param().PrivateData.
func (r *ConnRequest) PrivateData() []byte { return r.param.PrivateData }

// LocalAddr is our address, "host:port".
func (r *ConnRequest) LocalAddr() string { return r.drv.LocalAddr() }

// RemoteAddr is the peer's address, "host:port".
func (r *ConnRequest) RemoteAddr() string { return r.drv.RemoteAddr() }

func (r *ConnRequest) describe(*Resource) {}

// end takes the request out of the device.
func (r *ConnRequest) end() {
	r.dev.mu.Lock()
	r.obj.unlinkLocked()
	r.dev.mu.Unlock()
}

// Accept connects qp, made for this request, with receives posted. It blocks
// until the connection is made, until ctx ends, until the QP is closed, or until
// the device is lost (ErrDeviceLost). On error qp is in ERR and can only be closed. Wrong arguments and a wrong state
// of qp change nothing: the request can still be accepted or rejected.
func (r *ConnRequest) Accept(ctx context.Context, qp *QP, p ConnParam) error {
	const op = "accept"
	d := r.dev
	if qp.dev != d {
		return d.opError(op, qp.qpn, fmt.Errorf("%w: the QP is of another device", ErrInvalid))
	}
	if err := d.checkConnParam(p); err != nil {
		return d.opError(op, qp.qpn, err)
	}
	if !r.ended.CompareAndSwap(false, true) {
		return d.opError(op, qp.qpn, ErrClosed)
	}
	ctx, err := qp.beginConnect(ctx)
	if err != nil {
		r.ended.Store(false)
		return d.opError(op, qp.qpn, err)
	}
	err = qp.endConnect(r.drv.Accept(ctx, qp.drv, p))
	r.end()
	return d.opError(op, qp.qpn, err)
}

// Reject refuses the request; the peer gets private, at most
// Caps.MaxPrivateData bytes. The request is ended even on error.
func (r *ConnRequest) Reject(private []byte) error {
	const op = "reject"
	d := r.dev
	if err := d.checkConnParam(ConnParam{PrivateData: private}); err != nil {
		return d.opError(op, 0, err)
	}
	if !r.ended.CompareAndSwap(false, true) {
		return d.opError(op, 0, ErrClosed)
	}
	err := r.drv.Reject(private)
	r.end()
	return d.opError(op, 0, err)
}
