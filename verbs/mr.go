package verbs

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/argonaut-rdma/argonaut/verbs/driver"
)

// States of a region, as posts see them.
const (
	mrLive     uint32 = iota
	mrChecking        // a Deregister is deciding: wait for it
	mrDraining        // a DeregisterWait goes on: posts are refused
	mrClosed          // deregistered, or being so
)

// scopedParentMR is the region among the parents of a scoped key; the QP follows.
const scopedParentMR = 0

// MR is a memory region, or a scoped key of one.
type MR struct {
	pd     *PD
	drv    driver.MR
	obj    object
	scope  *QP    // scoped key: whose
	index  uint32 // in the uses of the PD's queues; without meaning for a scoped key
	addr   uint64
	length uint64
	lkey   uint32
	rkey   uint32
	access Access
	mem    []byte // keeps heap memory from being collected

	invalidated func() // of a scoped key: see OnInvalidate. Under Device.mu

	state  atomic.Uint32
	check  sync.Mutex    // held while a Deregister decides
	wake   chan struct{} // poked when something that used the region is gone
	waiter chan struct{} // held by the one DeregisterWait
}

func (m *MR) set(drv driver.MR, acc Access) {
	m.drv, m.access = drv, acc
	m.addr, m.length, m.lkey, m.rkey = drv.Addr(), drv.Length(), drv.LKey(), drv.RKey()
	m.state.Store(mrLive)
}

// Addr is the address of the first byte, as peers use it.
func (m *MR) Addr() uint64 { return m.addr }

// Length is in bytes.
func (m *MR) Length() uint64 { return m.length }

// LKey is the local key.
func (m *MR) LKey() uint32 { return m.lkey }

// RKey is the remote key, 0 without remote rights.
func (m *MR) RKey() uint32 { return m.rkey }

// Access is the set of rights.
func (m *MR) Access() Access { return m.access }

// PD returns the protection domain.
func (m *MR) PD() *PD { return m.pd }

func (m *MR) String() string { return fmt.Sprintf("%v 0x%x", m.obj.kind, m.lkey) }

func (m *MR) describe(r *Resource) {
	r.LKey, r.RKey, r.Addr, r.Length = m.lkey, m.rkey, m.addr, m.length
	if m.scope != nil {
		r.QPN = m.scope.qpn
	}
}

// InFlight counts the SGEs of requests, posted or not yet polled, that name the
// region, over all queues.
func (m *MR) InFlight() int {
	m.pd.dev.mu.Lock()
	defer m.pd.dev.mu.Unlock()
	n := 0
	for q := range m.pd.qps {
		q.mu.Lock()
		n += q.uses.count(m)
		q.mu.Unlock()
	}
	for s := range m.pd.srqs {
		s.mu.Lock()
		n += s.uses.count(m)
		s.mu.Unlock()
	}
	return n
}

// Busy is the checklist of who deregisters: what uses the region now, or nil if
// Deregister would go ahead. That is the requests that name it, posted or not
// yet polled, of each QP and SRQ, with the state of the QP and the CQ to be
// polled; the windows bound to it; the scoped keys of it; and, where
// deregistration is no barrier, the QPs whose peers have access. It costs a walk
// over the QPs of the PD, whatever their depths are.
func (m *MR) Busy() *BusyError {
	d := m.pd.dev
	d.mu.Lock()
	defer d.mu.Unlock()
	if m.obj.phase == phaseGone {
		return nil
	}
	if busy, ok := errors.AsType[*BusyError](m.busyLocked()); ok {
		return busy
	}
	return nil
}

// OnInvalidate makes f be called once the peer has ended the scoped key with a
// SEND_WITH_INV, when the completion that says so is polled: by the goroutine
// that polls, which holds no lock then. f may deregister the key, which is still
// to be done. It has to be set before the peer knows the key, and is not called
// after Deregister.
func (m *MR) OnInvalidate(f func()) {
	if m.scope == nil {
		panic("verbs: OnInvalidate of a region that is not a scoped key")
	}
	d := m.pd.dev
	d.mu.Lock()
	defer d.mu.Unlock()
	if m.invalidated == nil {
		if m.pd.onInvalidate == nil {
			m.pd.onInvalidate = map[uint32]*MR{}
		}
		m.pd.onInvalidate[m.rkey] = m
	}
	m.invalidated = f
}

// Live reports whether the device may still access the region: it is false only
// once a Deregister has succeeded or the device is lost.
func (m *MR) Live() bool {
	m.pd.dev.mu.Lock()
	defer m.pd.dev.mu.Unlock()
	return m.obj.phase != phaseGone
}

// Scope makes a key for the bytes [off, off+n) of the region, with the remote
// rights acc, that only the peer of qp can use; with Caps.ScopedKeys. It is a
// child of m and of qp, has m's address space, and is ended by Deregister: no
// byte lands through it afterwards. It can not be named in an SGE. A scoped key
// that the peer's SEND_WITH_INV invalidated is still to be deregistered.
func (m *MR) Scope(qp *QP, off, n uint64, acc Access) (*MR, error) {
	s := new(MR)
	if err := m.ScopeInto(s, qp, off, n, acc); err != nil {
		return nil, err
	}
	return s, nil
}

// ScopeInto is Scope into memory of the caller: s is new, or a scoped key that
// has been deregistered and that nobody uses any more.
func (m *MR) ScopeInto(s *MR, qp *QP, off, n uint64, acc Access) error {
	const op = "scope memory"
	d := m.pd.dev
	fail := func(err error) error { return d.opError(op, qp.qpn, err) }
	switch {
	case !d.caps.ScopedKeys:
		return fail(fmt.Errorf("%w: scoped keys", ErrNotSupported))
	case qp.pd != m.pd:
		return fail(fmt.Errorf("%w: %v and QP are of different PDs", ErrInvalid, m))
	case m.scope != nil:
		return fail(fmt.Errorf("%w: %v is a scoped key itself", ErrInvalid, m))
	case n == 0 || off > m.length || n > m.length-off:
		return fail(fmt.Errorf("%w: [%d, +%d) is not within the %d bytes of %v", ErrInvalid, off, n, m.length, m))
	case acc == 0 || acc&^AccessRemote != 0:
		return fail(fmt.Errorf("%w: %v are not remote access rights", ErrInvalid, acc))
	case acc&(AccessRemoteWrite|AccessRemoteAtomic) != 0 && m.access&AccessLocalWrite == 0:
		return fail(fmt.Errorf("%w: %v needs LOCAL_WRITE of %v", ErrInvalid, acc, m))
	}
	s.check.Lock()
	defer s.check.Unlock()
	if s.obj.dev != nil && s.Live() {
		return fail(fmt.Errorf("%w: %v is in use", ErrInvalid, s))
	}
	if err := s.obj.reserve(d, KindScopedMR, s, &m.obj, &qp.obj); err != nil {
		return fail(err)
	}
	drv, err := m.pd.drv.RegScoped(m.drv, off, n, acc, qp.drv)
	if err != nil {
		s.obj.abandon()
		return fail(err)
	}
	s.pd, s.scope = m.pd, qp
	s.set(drv, acc)
	d.mu.Lock()
	s.obj.linkLocked()
	d.mu.Unlock()
	// Revoke closes the region before it looks for the keys that there are: it
	// has found this one, or this sees that the region is closed.
	if st := m.state.Load(); st == mrDraining || st == mrClosed {
		err := fmt.Errorf("%v is being deregistered: %w", m, ErrClosed)
		if derr := s.deregisterScopedLocked(); derr != nil {
			err = joinErr(err, derr)
		}
		return fail(err)
	}
	return nil
}

// Deregister gives the region up. While requests, windows or scoped keys use
// it, it returns *BusyError and changes nothing; and also for memory with remote
// rights where the device's deregistration is no barrier (Caps.DeregBarrier),
// as long as a QP of the PD that was ever connected lives. On any error the
// region is still live, unless the error matches ErrDeviceLost or is a
// *StuckError; see Live.
func (m *MR) Deregister() error {
	if m.scope != nil {
		return m.deregisterScoped()
	}
	// Posts that meet the region meanwhile wait for the decision, so that a
	// refusal has changed nothing for them. Those that came before are seen by
	// the sum: it takes the lock under which they were counted.
	m.check.Lock()
	before := m.state.Load()
	if before != mrClosed {
		m.state.Store(mrChecking)
	}
	decided := false
	decide := func(s uint32) {
		if !decided {
			decided = true
			m.state.CompareAndSwap(mrChecking, s)
			m.check.Unlock()
		}
	}
	err := m.obj.shut("deregister", m.String(), func() error {
		if err := m.busyLocked(); err != nil {
			return err
		}
		decide(mrClosed)
		return nil
	}, func() error {
		err := m.drv.Deregister()
		if err != nil && !isLost(err) {
			m.state.Store(mrLive)
			err = fmt.Errorf("%w: the region is still live: call Deregister again", err)
		}
		return err
	}, func() {
		d := m.pd.dev
		d.registered -= m.length
		m.pd.freeIndex = append(m.pd.freeIndex, m.index)
		m.mem = nil
	})
	decide(before) // if check refused, or was not asked because another call got there first
	return err
}

// busyLocked says what uses the region; Device.mu is held.
func (m *MR) busyLocked() error {
	_, busy := m.pd.sumLocked(m)
	if m.obj.children > 0 {
		busy = busy.orNew(m)
		busy.Children = m.obj.childrenLocked()
	}
	if m.access&AccessRemote != 0 && !m.pd.dev.caps.DeregBarrier {
		now := time.Now()
		for q := range m.pd.qps {
			if q.everConnected.Load() {
				busy = busy.orNew(m)
				busy.Children = append(busy.Children, q.obj.describeLocked(now))
			}
		}
	}
	if busy == nil {
		return nil
	}
	return busy
}

// deregisterScoped calls the driver on the caller's goroutine: it is in O(1).
func (m *MR) deregisterScoped() error {
	m.check.Lock()
	defer m.check.Unlock()
	return m.deregisterScopedLocked()
}

// deregisterScopedLocked is deregisterScoped with m.check held.
func (m *MR) deregisterScopedLocked() error {
	if m.state.Load() == mrClosed {
		return nil
	}
	d := m.pd.dev
	err := m.drv.Deregister()
	if err == nil || isLost(err) {
		m.state.Store(mrClosed)
		d.mu.Lock()
		if m.invalidated != nil {
			m.invalidated = nil
			delete(m.pd.onInvalidate, m.rkey)
		}
		m.obj.unlinkLocked()
		d.mu.Unlock()
	}
	return d.opError("deregister", m.scope.qpn, err)
}

// DeregisterWait refuses new posts that name the region, waits until nothing
// uses it, and deregisters. On error posts are allowed again.
func (m *MR) DeregisterWait(ctx context.Context) error {
	return m.drainAnd(ctx, func(ctx context.Context) error { return m.waitIdle(ctx) })
}

// Revoke withdraws remote access (ends the region's scoped keys and windows; none
// are made meanwhile), waits until no request names it, and deregisters. With
// killQPs, QPs that still use the region when ctx ends are put to ERR, which
// flushes their requests, and it waits once more, for Config.CloseTimeout, for
// the completions to be polled. On error posts are allowed again, but not what
// was withdrawn; the error says, too, what could not be withdrawn.
func (m *MR) Revoke(ctx context.Context, killQPs bool) error {
	return m.drainAnd(ctx, func(ctx context.Context) error {
		werr := m.withdraw()
		err := m.waitIdle(ctx)
		switch {
		case err == nil:
			return nil
		case !killQPs || !errors.Is(err, ErrBusy):
			return joinErr(err, werr)
		}
		d := m.pd.dev
		d.mu.Lock()
		var kill []*QP
		for q := range m.pd.qps {
			q.mu.Lock()
			if q.uses.count(m) > 0 {
				kill = append(kill, q)
			}
			q.mu.Unlock()
		}
		d.mu.Unlock()
		for _, q := range kill {
			werr = joinErr(werr, q.SetError())
		}
		werr = joinErr(werr, m.withdraw()) // windows whose QP was in the way
		last, cancel := context.WithTimeout(context.WithoutCancel(ctx), max(d.closeTimeout, time.Second))
		defer cancel()
		if err = m.waitIdle(last); err != nil {
			err = joinErr(err, werr)
		}
		return err
	})
}

// withdraw ends the scoped keys and windows of the region.
func (m *MR) withdraw() (err error) {
	d := m.pd.dev
	d.mu.Lock()
	var keys []*MR
	var windows []*MW
	for o := d.oldest; o != nil; o = o.next {
		for _, p := range o.parents {
			if p == &m.obj {
				switch c := o.self.(type) {
				case *MR:
					keys = append(keys, c)
				case *MW:
					windows = append(windows, c)
				}
				break
			}
		}
	}
	d.mu.Unlock()
	// Their owners may have used them again meanwhile, for other regions.
	for _, k := range keys {
		err = joinErr(err, k.endScope(m))
	}
	for _, w := range windows {
		err = joinErr(err, w.endBinding(m))
	}
	return err
}

// endScope deregisters a scoped key if it is one of parent.
func (m *MR) endScope(parent *MR) error {
	m.check.Lock()
	defer m.check.Unlock()
	d := parent.pd.dev
	d.mu.Lock()
	of := m.obj.parents[scopedParentMR]
	d.mu.Unlock()
	if of != &parent.obj {
		return nil
	}
	return m.deregisterScopedLocked()
}

// drainAnd closes the region to posts while wait runs, and deregisters after it.
func (m *MR) drainAnd(ctx context.Context, wait func(context.Context) error) error {
	if m.scope != nil {
		return m.Deregister()
	}
	d := m.pd.dev
	select {
	case m.waiter <- struct{}{}: // also when ctx has ended: it may not have to wait
	default:
		select {
		case m.waiter <- struct{}{}:
		case <-ctx.Done():
			return d.opError("deregister", 0, ctx.Err())
		}
	}
	defer func() { <-m.waiter }()
	m.check.Lock()
	if m.state.Load() == mrClosed {
		m.check.Unlock()
		return m.Deregister() // nil, or waits for the destructor
	}
	m.state.Store(mrDraining)
	m.check.Unlock()
	d.mu.Lock()
	m.pd.draining[m] = struct{}{}
	d.mu.Unlock()

	var err error
	for {
		if err = wait(ctx); err == nil {
			err = m.Deregister()
		}
		// Somebody who had begun before has made a key in the meantime.
		if _, again := errors.AsType[*BusyError](err); !again || ctx.Err() != nil {
			break
		}
	}

	d.mu.Lock()
	delete(m.pd.draining, m)
	d.mu.Unlock()
	m.check.Lock()
	m.state.CompareAndSwap(mrDraining, mrLive)
	m.check.Unlock()
	return d.opError("deregister", 0, err)
}

// waitIdle waits until nothing uses the region. When ctx ends first the error
// matches ctx's and is also the *BusyError.
func (m *MR) waitIdle(ctx context.Context) error {
	d := m.pd.dev
	for {
		d.mu.Lock()
		err := m.busyLocked()
		d.mu.Unlock()
		if err == nil {
			return nil
		}
		select {
		case <-m.wake:
		case <-ctx.Done():
			return errors.Join(err, ctx.Err())
		}
	}
}

// poke wakes the one that waits for the region, if any. It does not block.
func (m *MR) poke() {
	select {
	case m.wake <- struct{}{}:
	default:
	}
}
