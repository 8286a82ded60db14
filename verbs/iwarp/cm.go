package iwarp

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"
	"time"

	"github.com/argonaut-rdma/argonaut/verbs/driver"
	"github.com/argonaut-rdma/argonaut/verbs/iwarp/internal/wire"
)

// Connect dials addr, sends an MPA request and waits for the reply, at most HandshakeTimeout and as long as ctx.
func (q *queuePair) Connect(ctx context.Context, addr string, p driver.ConnParam) (driver.ConnParam, error) {
	if err := q.claim(); err != nil {
		return driver.ConnParam{}, err
	}
	answer, err := q.connect(ctx, addr, p)
	if err != nil {
		q.dev.stats.HandshakeFailures.Add(1)
		q.fail(failure{kind: failLocal})
		return driver.ConnParam{}, fmt.Errorf("iwarp: connect %s: %w", addr, err)
	}
	q.dev.stats.Connects.Add(1)
	return answer, nil
}

// claim makes this call the one that connects the QP.
func (q *queuePair) claim() error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if st := q.qpState(); st != driver.QPStateInit || q.taken {
		return fmt.Errorf("iwarp: connect a QP in %v: %w", st, driver.ErrQPState)
	}
	q.taken = true
	return nil
}

func (q *queuePair) connect(ctx context.Context, addr string, p driver.ConnParam) (driver.ConnParam, error) {
	d := q.dev
	ird, ord, err := d.depths(&p)
	if err != nil {
		return driver.ConnParam{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, d.cfg.HandshakeTimeout)
	defer cancel()
	rev := uint8(d.cfg.MPARevision)
	if rev == 0 {
		rev = 2
	}
	mine := &hello{frame: wire.MPAFrame{CRC: d.cfg.CRC != CRCOff, Rev: rev, Enhanced: rev == 2}, private: p.PrivateData,
		enh: wire.Enhanced{IRD: uint16(ird), ORD: uint16(ord)}, ours: !d.cfg.Strict, ext: d.offer()}
	c, peer, err := d.request(ctx, addr, mine)
	if errors.Is(err, errOldPeer) && d.cfg.MPARevision == 0 {
		mine.frame.Rev, mine.frame.Enhanced = 1, false
		c, peer, err = d.request(ctx, addr, mine)
	}
	if err != nil {
		return driver.ConnParam{}, err
	}
	par := d.negotiate(c, mine, peer, true)
	if !peer.frame.Enhanced && p.ORD == 0 {
		par.ord = 1 // the peer has not told what it can take
	}
	if peer.frame.Enhanced && int(peer.enh.ORD) > ird {
		_ = c.SetDeadline(time.Now().Add(d.cfg.Linger))
		_, _ = c.Write(encodeTerminate(&par, &wire.Terminate{Code: wire.TermMPAInsufficientIRD}))
		_ = c.Close()
		return driver.ConnParam{}, fmt.Errorf("%w: the peer wants %d READs outstanding, IRD is %d", driver.ErrProtocol, peer.enh.ORD, ird)
	}
	if !par.ours {
		err = q.pause(ctx)
	}
	if err == nil {
		err = q.start(c, par)
	}
	if err != nil {
		_ = c.Close()
		return driver.ConnParam{}, err
	}
	return driver.ConnParam{PrivateData: peer.private, IRD: int(peer.enh.ORD), ORD: par.ord}, nil
}

// foreignPause is what an acceptor of another implementation gets between its reply and our first FPDU. siw (of Linux,
// siw_cm.c) sends its reply in siw_accept before siw_qp_socket_assoc has installed the queue pair's callback of
// the socket: what comes in between lies there, unread, until more comes.
const foreignPause = 10 * time.Millisecond

// pause waits foreignPause, or until the QP is in ERR, which start says.
func (q *queuePair) pause(ctx context.Context) error {
	t := time.NewTimer(foreignPause)
	defer t.Stop()
	select {
	case <-t.C:
	case <-q.failed:
	case <-ctx.Done():
		return fmt.Errorf("MPA handshake: %w", ctx.Err())
	}
	return nil
}

// request dials and exchanges frames. The connection is closed on error.
func (d *Device) request(ctx context.Context, addr string, mine *hello) (net.Conn, *hello, error) {
	c, err := d.cfg.Dial(ctx, addr)
	if err != nil {
		if errors.Is(err, syscall.ECONNREFUSED) {
			err = fmt.Errorf("%w: %w", driver.ErrRefused, err)
		}
		return nil, nil, err
	}
	// The context's end becomes a past deadline.
	stop := context.AfterFunc(ctx, func() { _ = c.SetDeadline(past) })
	peer, err := d.exchange(c, mine)
	if !stop() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		_ = c.Close()
		if ctx.Err() != nil && errors.Is(err, os.ErrDeadlineExceeded) {
			err = fmt.Errorf("MPA handshake: %w", ctx.Err())
		}
		return nil, nil, err
	}
	return c, peer, nil
}

func (d *Device) exchange(c net.Conn, mine *hello) (*hello, error) {
	if _, err := c.Write(appendHello(mine)); err != nil {
		if closedByPeer(err) { // before it has read all of our request
			err = errNoReply(err)
		}
		return nil, err
	}
	peer, err := d.readHello(c, true)
	if err != nil {
		return nil, err
	}
	if peer.frame.Reject {
		if peer.frame.Rev < mine.frame.Rev {
			return nil, errOldPeer
		}
		return nil, &driver.RejectError{PrivateData: peer.private}
	}
	if peer.frame.Rev > mine.frame.Rev {
		return nil, fmt.Errorf("%w: MPA reply of revision %d to a request of %d", driver.ErrProtocol, peer.frame.Rev, mine.frame.Rev)
	}
	return peer, nil
}

// start makes the handshaken connection the QP's and moves it to RTS. On error the connection stays the caller's, who
// puts the QP to ERR.
func (q *queuePair) start(c net.Conn, par connParams) error {
	_ = c.SetDeadline(time.Time{})
	if t, ok := c.(*net.TCPConn); ok {
		_ = t.SetNoDelay(true)
		q.dev.watch(t)
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if st := q.qpState(); st != driver.QPStateInit {
		return fmt.Errorf("QP went to %v: %w", st, driver.ErrQPState)
	}
	q.conn, q.raw, q.par = c, rawConn(c), par
	q.local, q.remote = c.LocalAddr().String(), c.RemoteAddr().String()
	q.sq.await = make([]uint64, par.ord)
	q.tx.responses.ring = make([]response, 2*par.ird)
	q.tx.open.Store(par.initiator)
	q.tx.rtr = par.initiator && par.ours
	if q.raw != nil {
		q.tx.inline, q.tx.parked = q.sendInline, q.sendParked
	} else {
		q.tx.bounce = make([]byte, bounceSize)
	}
	q.rx.begin(rxHeader, int(par.framing)+wire.TaggedLen)
	q.sq.mu.Lock()
	q.state.Store(uint32(driver.QPStateRTS)) // before anything can be received, which may be answered at once
	q.sq.mu.Unlock()
	if !q.dev.goRun(q.senderLoop) {
		return driver.ErrClosed
	}
	q.dev.wg.Go(q.receiverLoop) // Close waits for the sender, so it has not returned
	q.running = true
	if q.tx.rtr {
		q.tx.signal()
	}
	return nil
}

// watch has TCP notice a peer that is gone: keepalive probes when nothing is under way, and on Linux a limit on how long
// data may wait for its acknowledgement.
func (d *Device) watch(c *net.TCPConn) {
	t := d.cfg.PeerTimeout
	if t < 0 {
		return
	}
	const probes = 3
	_ = c.SetKeepAliveConfig(net.KeepAliveConfig{Enable: true, Idle: max(t/2, time.Second), Interval: max(t/2/probes, time.Second), Count: probes})
	userTimeout(c, t)
}

// connRequest is a valid MPA request that waits for an answer.
type connRequest struct {
	dev    *Device
	l      *listener
	c      net.Conn
	peer   *hello
	answer chan struct{} // one token: the right to answer
}

var _ driver.ConnRequest = (*connRequest)(nil)

func (r *connRequest) Param() driver.ConnParam {
	return driver.ConnParam{PrivateData: bytes.Clone(r.peer.private), IRD: int(r.peer.enh.ORD), ORD: int(r.peer.enh.IRD)}
}

func (r *connRequest) RemoteAddr() string { return r.c.RemoteAddr().String() }
func (r *connRequest) LocalAddr() string  { return r.c.LocalAddr().String() }

// take makes this call the one that answers.
func (r *connRequest) take() error {
	select {
	case <-r.answer:
		return nil
	default:
		return fmt.Errorf("iwarp: connection request already answered: %w", driver.ErrInvalid)
	}
}

// Accept sends the MPA reply and connects qp.
func (r *connRequest) Accept(ctx context.Context, qp driver.QP, p driver.ConnParam) error {
	q, ok := qp.(*queuePair)
	if !ok || q.dev != r.dev {
		return fmt.Errorf("iwarp: accept with a QP of another device: %w", driver.ErrInvalid)
	}
	if err := r.take(); err != nil {
		return err
	}
	defer r.dev.nRequest.Add(-1)
	err := q.claim()
	if err == nil {
		if err = r.accept(ctx, q, p); err != nil {
			q.fail(failure{kind: failLocal})
		}
	}
	if err != nil {
		_ = r.c.Close()
		r.dev.stats.HandshakeFailures.Add(1)
		return fmt.Errorf("iwarp: accept %s: %w", r.RemoteAddr(), err)
	}
	r.dev.stats.Accepts.Add(1)
	return nil
}

func (r *connRequest) accept(ctx context.Context, q *queuePair, p driver.ConnParam) error {
	d := r.dev
	ird, ord, err := d.depths(&p)
	if err != nil {
		return err
	}
	enh := wire.Enhanced{IRD: uint16(ird), ORD: uint16(ord)}
	if r.peer.frame.Enhanced {
		enh.ORD = min(enh.ORD, max(r.peer.enh.IRD, 1))
		if p.IRD == 0 { // as many as the peer wants, within the device's limit
			enh.IRD = max(min(enh.IRD, r.peer.enh.ORD), 1)
		}
		if r.peer.enh.PeerToPeer {
			// The ready-to-receive message: an empty WRITE if offered, else an empty READ.
			enh.PeerToPeer = true
			enh.RTRWrite = r.peer.enh.RTRWrite
			enh.RTRRead = r.peer.enh.RTRRead && !enh.RTRWrite
		}
	}
	mine := &hello{frame: wire.MPAFrame{Reply: true, CRC: d.cfg.CRC != CRCOff, Rev: r.peer.frame.Rev, Enhanced: r.peer.frame.Enhanced}, private: p.PrivateData,
		enh: enh, ours: r.peer.ours, ext: d.offer()}
	stop := context.AfterFunc(ctx, func() { _ = r.c.SetDeadline(past) })
	_ = r.c.SetDeadline(time.Now().Add(d.cfg.HandshakeTimeout))
	_, err = r.c.Write(appendHello(mine))
	if !stop() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		return err
	}
	par := d.negotiate(r.c, mine, r.peer, false)
	if !r.peer.frame.Enhanced && p.ORD == 0 {
		par.ord = 1
	}
	return q.start(r.c, par)
}

// Reject sends an MPA reply that refuses, and closes the connection.
func (r *connRequest) Reject(private []byte) error {
	if len(private) > maxPrivate {
		return fmt.Errorf("iwarp: private data of %d bytes: %w: at most %d", len(private), driver.ErrInvalid, maxPrivate)
	}
	if err := r.take(); err != nil {
		return err
	}
	defer r.dev.nRequest.Add(-1)
	mine := &hello{frame: wire.MPAFrame{Reply: true, Reject: true, Rev: r.peer.frame.Rev, Enhanced: r.peer.frame.Enhanced}, private: private,
		enh: wire.Enhanced{IRD: r.peer.enh.ORD, ORD: r.peer.enh.IRD}}
	_ = r.c.SetDeadline(time.Now().Add(r.dev.cfg.HandshakeTimeout))
	_, err := r.c.Write(appendHello(mine))
	if cerr := r.c.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return fmt.Errorf("iwarp: reject %s: %w", r.RemoteAddr(), err)
	}
	return nil
}
