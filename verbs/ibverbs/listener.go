//go:build ibverbs && linux && cgo

package ibverbs

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/argonaut-rdma/argonaut/verbs/driver"
	"github.com/argonaut-rdma/argonaut/verbs/ibverbs/internal/cverbs"
)

// Connection requests that may wait: in the kernel, and in a listener. More are
// refused.
const (
	kernelBacklog = 128
	backlog       = 1024
)

// listener hands out connection requests.
type listener struct {
	id    *cmID
	addr  string
	ready chan struct{} // has a token when queue may be non-empty
	done  chan struct{} // closed by Close

	mu     sync.Mutex
	queue  []*connRequest
	closed bool
}

var _ driver.Listener = (*listener)(nil)

// freePortTries bounds how often a port that rdma_cm has chosen is another one's: siw shares the ports with TCP, of which
// rdma_cm knows nothing.
const freePortTries = 16

func (d *device) Listen(ctx context.Context, addr string) (driver.Listener, error) {
	a, err := resolve(ctx, addr)
	if err != nil {
		return nil, fmt.Errorf("ibverbs: listen on %s: %w", addr, err)
	}
	for tries := 1; ; tries++ {
		l, err := d.listenOn(addr, a)
		if err == nil {
			return l, nil
		}
		if a.Port() != 0 || tries == freePortTries || !errors.Is(err, unix.EADDRINUSE) {
			return nil, err
		}
	}
}

func (d *device) listenOn(addr string, a cverbs.SockAddr) (*listener, error) {
	id, err := d.createID()
	if err != nil {
		return nil, err
	}
	l := &listener{id: id, ready: make(chan struct{}, 1), done: make(chan struct{})}
	id.listener = l // before rdma_listen: no event before
	err = id.do("rdma_bind_addr", func(c cverbs.ID) error { return c.BindAddr(a) })
	if err == nil {
		err = id.do("rdma_listen", func(c cverbs.ID) error {
			if name := c.Device(); name != "" && name != d.caps.Name {
				return fmt.Errorf("it is an address of device %s, not of %s: %w", name, d.caps.Name, driver.ErrInvalid)
			}
			return c.Listen(kernelBacklog)
		})
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("ibverbs: listen on %s: %w", addr, err), id.destroy())
	}
	l.addr, _ = id.addrs()
	return l, nil
}

func (l *listener) Addr() string { return l.addr }

// push queues a request, which the caller keeps if it returns false.
func (l *listener) push(r *connRequest) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed || len(l.queue) >= backlog {
		return false
	}
	l.queue = append(l.queue, r)
	select {
	case l.ready <- struct{}{}:
	default:
	}
	return true
}

func (l *listener) pop() *connRequest {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed || len(l.queue) == 0 {
		return nil
	}
	r := l.queue[0]
	l.queue = l.queue[1:]
	if len(l.queue) > 0 { // for another Accept
		select {
		case l.ready <- struct{}{}:
		default:
		}
	}
	return r
}

func (l *listener) Accept(ctx context.Context) (driver.ConnRequest, error) {
	for {
		if r := l.pop(); r != nil {
			return r, nil
		}
		select {
		case <-l.ready:
		case <-l.done:
			return nil, driver.ErrClosed
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

func (l *listener) Close() error {
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return nil
	}
	l.closed = true
	queue := l.queue
	l.queue = nil
	close(l.done)
	l.mu.Unlock()
	err := l.id.destroy()
	for _, r := range queue { // a peer that has given up can not be told
		_ = r.id.do("rdma_reject", func(c cverbs.ID) error { return c.Reject(nil) })
		err = errors.Join(err, r.id.destroy())
	}
	return err
}

// connRequest is a peer that asks for a connection.
type connRequest struct {
	id    *cmID
	param cverbs.ConnParam
}

var _ driver.ConnRequest = (*connRequest)(nil)

func (r *connRequest) Param() driver.ConnParam {
	return driver.ConnParam{
		PrivateData: r.param.PrivateData,
		IRD:         r.param.ResponderResources,
		ORD:         r.param.InitiatorDepth,
		RetryCnt:    r.param.RetryCount,
		RNRRetry:    r.param.RNRRetryCount,
	}
}

func (r *connRequest) LocalAddr() string {
	local, _ := r.id.addrs()
	return local
}

func (r *connRequest) RemoteAddr() string {
	_, remote := r.id.addrs()
	return remote
}

func (r *connRequest) Accept(ctx context.Context, dq driver.QP, p driver.ConnParam) error {
	q, ok := dq.(*qp)
	if !ok || q.dev != r.id.dev {
		return errors.Join(fmt.Errorf("ibverbs: accept: QP of another device: %w", driver.ErrInvalid), r.Reject(nil))
	}
	if err := q.start(r.id); err != nil {
		return errors.Join(err, r.Reject(nil))
	}
	remote := r.RemoteAddr()
	if err := r.accept(ctx, q, p); err != nil {
		return fmt.Errorf("ibverbs: accept %s: %w", remote, q.fail(r.id, err))
	}
	q.connected(r.id)
	return nil
}

func (r *connRequest) accept(ctx context.Context, q *qp, p driver.ConnParam) error {
	cp, err := q.connParam(p)
	if err != nil {
		return err
	}
	// The peer reads no more of us than it asked for, and we no more of it than
	// it answers.
	if p.IRD == 0 {
		cp.ResponderResources = min(r.param.ResponderResources, q.dev.caps.MaxIRD)
	}
	cp.InitiatorDepth = min(cp.InitiatorDepth, r.param.InitiatorDepth)
	if !q.dev.iwarp() {
		if err := q.toRTS(r.id, cp, p.AckTimeout, true); err != nil {
			return err
		}
	}
	if err := r.id.do("rdma_accept", func(c cverbs.ID) error { return c.Accept(cp) }); err != nil {
		return err
	}
	_, err = r.id.wait(ctx, cverbs.CMEstablished)
	return err
}

func (r *connRequest) Reject(private []byte) error {
	if len(private) > r.id.dev.caps.MaxPrivateData {
		return errors.Join(fmt.Errorf("ibverbs: reject: private data of %d bytes, at most %d: %w", len(private),
			r.id.dev.caps.MaxPrivateData, driver.ErrInvalid), r.id.destroy())
	}
	err := r.id.do("rdma_reject", func(c cverbs.ID) error { return c.Reject(private) })
	return errors.Join(err, r.id.destroy())
}
