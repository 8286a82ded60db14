package verbs

import (
	"errors"
	"fmt"

	"github.com/argonaut-rdma/argonaut/verbs/driver"
)

// Parents of a window.
const (
	mwParentPD = iota
	mwParentMR // while bound
	mwParentQP // while bound
)

// MW is a type 2 memory window.
type MW struct {
	pd  *PD
	drv driver.MW
	obj object

	// Guarded by Device.mu.
	rkey    uint32
	qp      *QP // bound or being bound to, or nil
	mr      *MR
	pending int  // binds and invalidations that are outstanding
	bound   bool // a bind completed

	invalidated func() // see OnInvalidate
}

// windowOp is a bind or invalidation in the ledger of a QP.
type windowOp struct {
	mw   *MW
	bind bool
}

// AllocMW makes a type 2 memory window, with Caps.MW2.
func (pd *PD) AllocMW() (*MW, error) {
	const op = "allocate MW"
	d := pd.dev
	if !d.caps.MW2 {
		return nil, d.opError(op, 0, fmt.Errorf("%w: memory windows", ErrNotSupported))
	}
	w := &MW{pd: pd}
	if err := w.obj.reserve(d, KindMW, w, &pd.obj); err != nil {
		return nil, d.opError(op, 0, err)
	}
	var err error
	if w.drv, err = pd.drv.AllocMW(); err != nil {
		w.obj.abandon()
		return nil, d.opError(op, 0, err)
	}
	d.mu.Lock()
	w.rkey = w.drv.RKey()
	w.obj.linkLocked()
	d.mu.Unlock()
	return w, nil
}

// RKey is the key of the last bind that was posted, or the initial one, which
// gives no access.
func (w *MW) RKey() uint32 {
	w.pd.dev.mu.Lock()
	defer w.pd.dev.mu.Unlock()
	return w.rkey
}

// OnInvalidate makes f be called once the peer has ended the binding with a
// SEND_WITH_INV, as MR.OnInvalidate does for scoped keys: f may close the window.
// It has to be set before the peer knows the key. It is not called after Close.
func (w *MW) OnInvalidate(f func()) {
	w.pd.dev.mu.Lock()
	defer w.pd.dev.mu.Unlock()
	w.invalidated = f
}

// PD returns the protection domain.
func (w *MW) PD() *PD { return w.pd }

// Bound reports whether the window is bound or being bound.
func (w *MW) Bound() bool {
	w.pd.dev.mu.Lock()
	defer w.pd.dev.mu.Unlock()
	return w.qp != nil
}

func (w *MW) describe(r *Resource) {
	r.RKey = w.rkey
	if w.qp != nil {
		r.QPN = w.qp.qpn
	}
}

// Close gives the window up and with it the access it gave. It is refused with
// *BusyError while a bind or invalidation of it is outstanding on a QP that is
// not known to be in ERR.
func (w *MW) Close() error { return w.close(nil) }

var errElsewhere = errors.New("the window is not bound to the region")

// endBinding closes the window if it is bound, or being bound, to mr.
func (w *MW) endBinding(mr *MR) error {
	if err := w.close(mr); !errors.Is(err, errElsewhere) {
		return err
	}
	return nil
}

// close is Close. With mr it is refused unless the window is bound to that.
func (w *MW) close(mr *MR) error {
	return w.obj.shut("close", "MW", func() error {
		if mr != nil && w.mr != mr {
			return errElsewhere
		}
		if w.pending > 0 && w.qp != nil && w.qp.State() != QPStateErr {
			return &BusyError{What: fmt.Sprintf("MW 0x%x", w.rkey), QPs: map[uint32]int{w.qp.qpn: w.pending}}
		}
		return nil
	}, w.drv.Dealloc, func() {
		if w.pd.windows[w.rkey] == w {
			delete(w.pd.windows, w.rkey)
		}
		w.qp, w.mr, w.bound, w.invalidated = nil, nil, false, nil // its parents have been given up with it
	})
}

// BindMW posts the binding of w to the bytes [off, off+n) of mr, which has
// AccessMWBind, with the remote rights acc. It completes with wrid. w.RKey is
// the new key from then on: a request posted later on this QP may carry it to
// the peer. A bound window is unbound by OpLocalInvalidate, by the peer's
// SEND_WITH_INV or by MW.Close.
func (q *QP) BindMW(w *MW, mr *MR, off, n uint64, acc Access, wrid uint64) error {
	const op = "bind MW"
	d := q.dev
	q.sendMu.Lock()
	defer q.sendMu.Unlock()
	err := q.checkBind(w, mr, off, n, acc)
	if err == nil {
		err = q.postBind(w, mr, off, n, acc, wrid)
	}
	if err != nil {
		q.refused.Add(1)
	}
	return d.opError(op, q.qpn, err)
}

func (q *QP) checkBind(w *MW, mr *MR, off, n uint64, acc Access) error {
	switch {
	case !q.dev.caps.MW2:
		return fmt.Errorf("%w: memory windows", ErrNotSupported)
	case w == nil || mr == nil:
		return fmt.Errorf("%w: no window or no region", ErrInvalid)
	case w.pd != q.pd || mr.pd != q.pd:
		return fmt.Errorf("%w: window, region and QP are of different PDs", ErrInvalid)
	case mr.scope != nil || mr.access&AccessMWBind == 0:
		return fmt.Errorf("%w: %v was not registered with MW_BIND", ErrInvalid, mr)
	case n == 0 || off > mr.length || n > mr.length-off:
		return fmt.Errorf("%w: [%d, +%d) is not within the %d bytes of %v", ErrInvalid, off, n, mr.length, mr)
	case acc == 0 || acc&^AccessRemote != 0:
		return fmt.Errorf("%w: %v are not remote access rights", ErrInvalid, acc)
	case acc&(AccessRemoteWrite|AccessRemoteAtomic) != 0 && mr.access&AccessLocalWrite == 0:
		return fmt.Errorf("%w: %v needs LOCAL_WRITE of %v", ErrInvalid, acc, mr)
	}
	return q.canSend()
}

// postBind attaches the window and posts. sendMu is held.
func (q *QP) postBind(w *MW, mr *MR, off, n uint64, acc Access, wrid uint64) error {
	d := q.dev
	d.mu.Lock()
	defer d.mu.Unlock() // the driver's post does not block, and binds are rare
	switch {
	case w.obj.phase != phaseLive || mr.obj.phase != phaseLive || q.obj.phase != phaseLive:
		return ErrClosed
	case w.qp != nil:
		return fmt.Errorf("%w: the window is bound or being bound", ErrInvalid)
	case mr.state.Load() != mrLive: // it can not be checking: that needs Device.mu to decide
		if mr.state.Load() != mrChecking {
			return fmt.Errorf("%v: %w", mr, ErrClosed)
		}
	}
	oldKey := w.rkey
	newKey := oldKey&^0xff | (oldKey+1)&0xff

	q.mu.Lock()
	if q.sq.full() {
		q.mu.Unlock()
		return ErrQueueFull
	}
	seq := q.sq.push(entry{wrid: wrid, op: OpBindMW, signaled: true, asked: true})
	q.sq.hold(&q.uses, mr)
	if q.windowOps == nil {
		q.windowOps = map[uint64]windowOp{}
	}
	q.windowOps[seq] = windowOp{w, true}
	q.mu.Unlock()

	w.qp, w.mr, w.rkey = q, mr, newKey
	w.pending++
	w.obj.setParentLocked(mwParentMR, &mr.obj)
	w.obj.setParentLocked(mwParentQP, &q.obj)
	q.pd.windows[newKey] = w

	q.swr[0] = driver.SendWR{
		WRID: wrID(kindSend, q.owner, seq), Opcode: OpBindMW, Flags: SendSignaled,
		Bind: driver.MWBind{MW: w.drv, RKey: newKey, MR: mr.drv, Addr: mr.addr + off, Length: n, Access: acc},
	}
	k, err := q.drv.PostSend(q.swr[:1])
	q.swr[0].Bind = driver.MWBind{}
	if k == 1 {
		q.sends.Add(1)
		q.unsignaled = 0
		return err
	}
	q.mu.Lock()
	q.sq.unpush(q.uses, 1)
	delete(q.windowOps, seq)
	q.mu.Unlock()
	delete(q.pd.windows, newKey)
	w.rkey = oldKey
	w.pending--
	w.detachLocked()
	if err == nil {
		err = errShortPost
	}
	return err
}

// detachLocked says that the window gives no access any more; Device.mu is held.
func (w *MW) detachLocked() {
	if w.obj.phase == phaseGone || w.qp == nil {
		return
	}
	delete(w.pd.windows, w.rkey)
	w.qp, w.mr, w.bound = nil, nil, false
	w.obj.setParentLocked(mwParentMR, nil)
	w.obj.setParentLocked(mwParentQP, nil)
}

// windowDone settles a bind or invalidation whose completion was polled.
func (d *Device) windowDone(op windowOp, ok bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	op.mw.pending--
	switch {
	case op.bind && ok:
		op.mw.bound = true
	case op.bind != ok: // a bind that failed, an invalidation that succeeded
		op.mw.detachLocked()
	}
}

// peerInvalidated settles a window or scoped key of q that the peer's
// SEND_WITH_INV named. It returns what is to be called once no lock is held.
func (d *Device) peerInvalidated(q *QP, rkey uint32) (then func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if w := q.pd.windows[rkey]; w != nil && w.qp == q {
		then, w.invalidated = w.invalidated, nil
		w.detachLocked()
	}
	if m := q.pd.onInvalidate[rkey]; m != nil && m.scope == q {
		then, m.invalidated = m.invalidated, nil
		delete(q.pd.onInvalidate, rkey)
	}
	return then
}
