//go:build ibverbs && linux && cgo

package ibverbs

import (
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/argonaut-rdma/argonaut/verbs/driver"
	"github.com/argonaut-rdma/argonaut/verbs/ibverbs/internal/cverbs"
)

const psnMask = 1<<24 - 1

// qp is a reliable connected queue pair.
type qp struct {
	dev    *device
	c      cverbs.QP
	qpn    uint32
	psn    uint32 // that Modify makes the first one of what we send
	hasSRQ bool

	// connMu guards the connection. It is held over modifications of the QP, so
	// that they can not touch one that is destroyed.
	connMu        sync.Mutex
	destroyed     bool           // Destroy has begun
	gone          bool           // ibv_destroy_qp has succeeded: c is no more
	state         driver.QPState // as the provider set it; a device may be in ERR on its own
	id            *cmID          // nil until Connect or Accept
	local, remote string

	sendMu   sync.Mutex
	sendGone bool
	wrs      [cverbs.MaxBatch]cverbs.SendWR
	ends     [cverbs.MaxBatch]int // behind which of wrs the requests of a batch end: one may be two of siw's
	sges     []cverbs.SGE

	recvMu   sync.Mutex
	recvGone bool
	scratch  recvScratch
}

var (
	_ driver.QP        = (*qp)(nil)
	_ driver.OutOfBand = (*qp)(nil)
)

// CreateQP makes a queue pair in INIT.
func (p *pd) CreateQP(a driver.QPAttr) (driver.QP, error) {
	d := p.dev
	send, ok1 := a.SendCQ.(*cq)
	recv, ok2 := a.RecvCQ.(*cq)
	if !ok1 || !ok2 || send.dev != d || recv.dev != d {
		return nil, fmt.Errorf("ibv_create_qp: CQ missing or of another device: %w", driver.ErrInvalid)
	}
	init := cverbs.QPInitAttr{
		SendCQ: send.c, RecvCQ: recv.c,
		MaxSendWR: max(a.MaxSendWR, 1), MaxRecvWR: max(a.MaxRecvWR, 1), // siw makes no QP without either queue
		MaxSendSGE: max(a.MaxSendSGE, 1), MaxRecvSGE: max(a.MaxRecvSGE, 1),
		MaxInline: a.MaxInline,
	}
	if d.siw() { // for the halves of short payload, see fitSIW
		init.MaxSendWR, init.MaxSendSGE = 2*init.MaxSendWR, max(init.MaxSendSGE, 2)
	}
	if a.SRQ != nil {
		s, ok := a.SRQ.(*srq)
		if !ok || s.dev != d {
			return nil, fmt.Errorf("ibv_create_qp: SRQ of another device: %w", driver.ErrInvalid)
		}
		init.SRQ = s.c
	}
	c, err := p.c.CreateQP(&init)
	if err != nil {
		return nil, createErr("ibv_create_qp", err)
	}
	q := &qp{dev: d, c: c, qpn: c.QPN(), psn: rand.Uint32() & psnMask, hasSRQ: a.SRQ != nil, state: driver.QPStateInit}
	q.scratch.padEmpty = d.siw()
	var attr cverbs.QPAttr
	attr.SetState(int(driver.QPStateInit))
	attr.SetAccess(d.qpAccess())
	if !d.iwarp() {
		attr.SetPort(d.port, 0)
	}
	if err := c.Modify(&attr); err != nil {
		return nil, errors.Join(opErr("ibv_modify_qp to INIT", err), opErr("ibv_destroy_qp", c.Destroy()))
	}
	d.mu.Lock()
	d.qps[c] = q
	d.mu.Unlock()
	return q, nil
}

// qpAccess is what the peer may do as far as the QP is concerned. Keys decide
// the rest.
func (d *device) qpAccess() uint32 {
	acc := driver.AccessRemoteWrite | driver.AccessRemoteRead
	if d.caps.Atomics {
		acc |= driver.AccessRemoteAtomic
	}
	return uint32(acc)
}

func (q *qp) QPN() uint32 { return q.qpn }

func (q *qp) LocalAddr() string {
	q.connMu.Lock()
	defer q.connMu.Unlock()
	return q.local
}

func (q *qp) RemoteAddr() string {
	q.connMu.Lock()
	defer q.connMu.Unlock()
	return q.remote
}

// Features are those of the device: the two ends do not negotiate them.
func (q *qp) Features() driver.Features {
	c := &q.dev.caps
	return driver.Features{Atomics: c.Atomics, Imm: c.Imm, SendInv: c.SendInv}
}

// wrOpcode maps operations to ibv_wr_opcode.
var wrOpcode = [...]uint32{
	driver.OpSend:            cverbs.OpSend,
	driver.OpSendWithImm:     cverbs.OpSendWithImm,
	driver.OpSendWithInv:     cverbs.OpSendWithInv,
	driver.OpWrite:           cverbs.OpWrite,
	driver.OpWriteWithImm:    cverbs.OpWriteWithImm,
	driver.OpRead:            cverbs.OpRead,
	driver.OpCompareSwap:     cverbs.OpCompareSwap,
	driver.OpFetchAdd:        cverbs.OpFetchAdd,
	driver.OpBindMW:          cverbs.OpBindMW,
	driver.OpLocalInvalidate: cverbs.OpLocalInv,
}

// PostSend crosses into C once for every 64 requests. How many were accepted is
// what bad_wr says, whatever the return code: siw reports a full queue with
// success, and a failed doorbell although everything is queued. In that last case
// the QP is put to ERR, so that everything completes.
func (q *qp) PostSend(wrs []driver.SendWR) (int, error) {
	q.sendMu.Lock()
	defer q.sendMu.Unlock()
	if q.sendGone {
		return 0, driver.ErrClosed
	}
	return q.send(wrs, q.c.PostSend)
}

// send is PostSend by post, which is cverbs.QP.PostSend, under sendMu.
func (q *qp) send(wrs []driver.SendWR, post func([]cverbs.SendWR, []cverbs.SGE) (int, unix.Errno)) (int, error) {
	done := 0
	for done < len(wrs) {
		packed, bad := q.pack(wrs[done:])
		if packed == 0 {
			return done, bad
		}
		most := q.ends[packed-1]
		queued, errno := post(q.wrs[:most], q.sges)
		n, end := 0, 0
		for n < packed && q.ends[n] <= queued {
			end = q.ends[n]
			n++
		}
		half := queued > end // of a request; it completes as the QP ends
		if half {
			n++
			errno = cmp.Or(errno, unix.ENOMEM)
		}
		q.bound(wrs[done : done+n])
		done += n
		if n < packed && !half {
			return done, postErr("ibv_post_send", errno)
		}
		if errno != 0 {
			q.fault(errno)
			return done, faultErr("ibv_post_send", errno, len(wrs)-done)
		}
		if bad != nil {
			return done, bad
		}
	}
	return done, nil
}

// pack translates the first of wrs, and says of how many, and what is wrong with
// the next if it can not.
func (q *qp) pack(wrs []driver.SendWR) (int, error) {
	q.sges = q.sges[:0]
	siw, k := q.dev.siw(), 0
	for i := range wrs {
		wr := &wrs[i]
		if k == len(q.wrs) || siw && k == len(q.wrs)-1 {
			return i, nil
		}
		if err := packSend(&q.wrs[k], wr); err != nil {
			return i, err
		}
		q.sges = appendSGEs(q.sges, wr.SGEs)
		if siw {
			k += q.fitSIW(k, wr)
		}
		k++
		q.ends[i] = k
	}
	return len(wrs), nil
}

// bound records the keys of the windows that the requests bind.
func (q *qp) bound(wrs []driver.SendWR) {
	for i := range wrs {
		if wrs[i].Opcode == driver.OpBindMW {
			w := wrs[i].Bind.MW.(*mw)
			w.c.SetRKey(wrs[i].Bind.RKey)
			w.rkey.Store(wrs[i].Bind.RKey)
		}
	}
}

// packSend writes all fields but the SGEs.
func packSend(to *cverbs.SendWR, from *driver.SendWR) error {
	if int(from.Opcode) >= len(wrOpcode) {
		return fmt.Errorf("ibv_post_send: opcode %v: %w", from.Opcode, driver.ErrInvalid)
	}
	*to = cverbs.SendWR{
		WRID:           from.WRID,
		Opcode:         wrOpcode[from.Opcode],
		Flags:          uint32(from.Flags),
		NumSGE:         uint32(len(from.SGEs)),
		RemoteAddr:     from.RemoteAddr,
		RKey:           from.RKey,
		Imm:            from.Imm,
		InvalidateRKey: from.InvalidateRKey,
		CompareAdd:     from.CompareAdd,
		Swap:           from.Swap,
	}
	if from.Opcode != driver.OpBindMW {
		return nil
	}
	w, ok1 := from.Bind.MW.(*mw)
	m, ok2 := from.Bind.MR.(*mr)
	if !ok1 || !ok2 {
		return fmt.Errorf("ibv_post_send: bind without window or region: %w", driver.ErrInvalid)
	}
	to.MW, to.MR = w.c.Handle(), m.c.Handle()
	to.BindAddr, to.BindLength = from.Bind.Addr, from.Bind.Length
	to.BindRKey, to.BindAccess = from.Bind.RKey, uint32(from.Bind.Access)
	return nil
}

// fault ends a QP that the device no longer serves.
func (q *qp) fault(cause error) {
	q.dev.log.Error("queue pair faulted", "device", q.dev.caps.Name, "qpn", q.qpn, "error", cause)
	_ = q.SetState(driver.QPStateErr)
	q.dev.events.push(driver.Event{Type: driver.EventQPFatal, QP: q})
}

func (q *qp) PostRecv(wrs []driver.RecvWR) (int, error) {
	q.recvMu.Lock()
	defer q.recvMu.Unlock()
	if q.recvGone {
		return 0, driver.ErrClosed
	}
	if q.hasSRQ {
		return 0, fmt.Errorf("ibv_post_recv: the QP receives from an SRQ: %w", driver.ErrInvalid)
	}
	n, errno, err := q.scratch.post(wrs, "ibv_post_recv", q.c.PostRecv)
	if errno != 0 {
		q.fault(errno)
	}
	return n, err
}

// SetState moves the QP to ERR and, on RoCE and InfiniBand, tells the peer,
// which would not notice before it sends; iWARP closes the connection by itself.
func (q *qp) SetState(s driver.QPState) error {
	if s != driver.QPStateErr {
		return fmt.Errorf("set state %v: %w", s, driver.ErrNotSupported)
	}
	q.connMu.Lock()
	defer q.connMu.Unlock()
	if err := q.toErr(); err != nil {
		return err
	}
	if q.id != nil && !q.dev.iwarp() {
		_ = q.id.disconnect() // a peer that can not be told notices when it sends
	}
	return nil
}

// toErr moves the QP to ERR, under connMu.
func (q *qp) toErr() error {
	if q.destroyed {
		return driver.ErrClosed
	}
	var attr cverbs.QPAttr
	attr.SetState(int(driver.QPStateErr))
	if err := q.c.Modify(&attr); err != nil {
		return opErr("ibv_modify_qp to ERR", err)
	}
	q.state = driver.QPStateErr
	return nil
}

// State asks the device, except on iWARP: siw does not tell. There the QP is in RTS
// from when the connection manager's event has been read.
func (q *qp) State() (driver.QPState, error) {
	q.connMu.Lock()
	defer q.connMu.Unlock()
	if q.destroyed {
		return driver.QPStateReset, driver.ErrClosed
	}
	if q.dev.iwarp() {
		return q.state, nil
	}
	s, err := q.c.QueryState()
	return driver.QPState(s), opErr("ibv_query_qp", err)
}

// Disconnect tells the peer. Devices do not wait for the send queue first.
func (q *qp) Disconnect() error {
	q.connMu.Lock()
	defer q.connMu.Unlock()
	if q.destroyed {
		return driver.ErrClosed
	}
	if q.id == nil {
		return fmt.Errorf("rdma_disconnect: not connected: %w", driver.ErrQPState)
	}
	return q.id.disconnect()
}

// Destroy is called by one at a time. An identifier of the connection that can
// not be destroyed is logged: without its queue pair it gives no access.
func (q *qp) Destroy() error {
	q.connMu.Lock()
	if q.gone {
		q.connMu.Unlock()
		return nil
	}
	_ = q.toErr() // a device that can not do even that gets destroyed all the same
	q.destroyed = true
	id := q.id
	q.id = nil
	q.connMu.Unlock()
	q.sendMu.Lock()
	q.sendGone = true
	q.sendMu.Unlock()
	q.recvMu.Lock()
	q.recvGone = true
	q.recvMu.Unlock()
	q.dev.mu.Lock()
	delete(q.dev.qps, q.c)
	q.dev.mu.Unlock()
	q.dev.halved.forgetAll(q.qpn)
	var idErr error
	if id != nil {
		idErr = id.destroy()
	}
	if err := q.c.Destroy(); err != nil {
		return errors.Join(idErr, opErr("ibv_destroy_qp", err))
	}
	q.connMu.Lock()
	q.gone = true
	q.connMu.Unlock()
	if errors.Is(idErr, driver.ErrDeviceLost) {
		return idErr
	}
	if idErr != nil {
		q.dev.log.Warn("identifier of a connection is left behind", "device", q.dev.caps.Name, "qpn", q.qpn, "error", idErr)
	}
	return nil
}
