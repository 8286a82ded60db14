package verbs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/argonaut-rdma/argonaut/verbs/driver"
)

// PD is a protection domain: memory and QPs work together only within one.
type PD struct {
	dev *Device
	drv driver.PD
	obj object

	// Guarded by Device.mu.
	qps      map[*QP]struct{}
	srqs     map[*SRQ]struct{}
	draining map[*MR]struct{} // regions that somebody waits for
	windows  map[uint32]*MW   // by the key of the last bind
	// scoped keys of which somebody wants to know that the peer has ended them
	onInvalidate map[uint32]*MR
	freeIndex    []uint32 // of MR.index
	nextIndex    uint32
}

// AllocPD makes a protection domain.
func (d *Device) AllocPD() (*PD, error) {
	const op = "allocate PD"
	pd := &PD{
		dev: d, qps: map[*QP]struct{}{}, srqs: map[*SRQ]struct{}{}, draining: map[*MR]struct{}{}, windows: map[uint32]*MW{},
	}
	if err := pd.obj.reserve(d, KindPD, pd, &d.obj); err != nil {
		return nil, d.opError(op, 0, err)
	}
	var err error
	if pd.drv, err = d.drv.AllocPD(); err != nil {
		pd.obj.abandon()
		return nil, d.opError(op, 0, err)
	}
	d.mu.Lock()
	pd.obj.linkLocked()
	d.mu.Unlock()
	return pd, nil
}

// Device returns the device.
func (pd *PD) Device() *Device { return pd.dev }

func (pd *PD) describe(*Resource) {}

// RegMR registers mem, 1 byte to Caps.MaxMRSize. It borrows mem until
// Deregister returned nil: the memory stays mapped, and pinned if it is of the
// Go heap and the device is not in this process. Remote write and remote atomic
// rights need AccessLocalWrite. It may take long for large memory.
func (pd *PD) RegMR(mem []byte, acc Access) (*MR, error) { return pd.regMR(mem, acc, nil) }

// regMR is RegMR that fills rep in, unless it is nil.
func (pd *PD) regMR(mem []byte, acc Access, rep *RegReport) (*MR, error) {
	const op = "register memory"
	d := pd.dev
	begin := time.Now()
	if err := pd.checkAccess(uint64(len(mem)), acc); err != nil {
		return nil, d.opError(op, 0, err)
	}
	m := &MR{pd: pd, wake: make(chan struct{}, 1), waiter: make(chan struct{}, 1)}
	if err := m.obj.reserve(d, KindMR, m, &pd.obj); err != nil {
		return nil, d.opError(op, 0, err)
	}
	called := time.Now()
	drv, err := pd.drv.RegMR(mem, acc)
	took := time.Since(called)
	d.registering.Observe(took)
	if rep != nil {
		rep.Check, rep.Call = called.Sub(begin), took
		if t, ok := drv.(driver.StepTeller); ok && err == nil {
			rep.Steps, rep.Told = t.RegSteps(), true
		}
	}
	if err != nil {
		m.obj.abandon()
		return nil, d.opError(op, 0, fmt.Errorf("%d bytes: %w", len(mem), err))
	}
	m.set(drv, acc)
	m.mem = mem
	d.mu.Lock()
	if n := len(pd.freeIndex); n > 0 {
		m.index = pd.freeIndex[n-1]
		pd.freeIndex = pd.freeIndex[:n-1]
	} else {
		m.index = pd.nextIndex
		pd.nextIndex++
	}
	d.registered += m.length
	m.obj.linkLocked()
	d.mu.Unlock()
	return m, nil
}

// checkAccess says whether memory of n bytes may be registered with acc.
func (pd *PD) checkAccess(n uint64, acc Access) error {
	const known = AccessLocalWrite | AccessRemote | AccessMWBind | AccessZeroBased | AccessOnDemand
	c := &pd.dev.caps
	switch {
	case acc&^known != 0:
		return fmt.Errorf("%w: unknown access rights %v", ErrInvalid, acc&^known)
	case acc&(AccessRemoteWrite|AccessRemoteAtomic) != 0 && acc&AccessLocalWrite == 0:
		return fmt.Errorf("%w: access rights %v need LOCAL_WRITE", ErrInvalid, acc)
	case acc&AccessOnDemand != 0 && !c.ODP:
		return fmt.Errorf("%w: on-demand paging", ErrNotSupported)
	case acc&AccessMWBind != 0 && !c.MW2:
		return fmt.Errorf("%w: memory windows", ErrNotSupported)
	case acc&AccessRemoteAtomic != 0 && !c.Atomics:
		return fmt.Errorf("%w: atomics", ErrNotSupported)
	case n == 0:
		return fmt.Errorf("%w: no memory", ErrInvalid)
	case c.MaxMRSize != 0 && n > c.MaxMRSize:
		return fmt.Errorf("%w: %d bytes of memory, the device registers at most %d at a time", ErrInvalid, n, c.MaxMRSize)
	}
	return nil
}

// RegMRs registers all of mems, several at a time, or none. When ctx ends it
// stops after the registrations that are under way, and deregisters. An error
// of that is joined to the cause, and the regions that could not be
// deregistered stay in Device.Resources.
func (pd *PD) RegMRs(ctx context.Context, mems [][]byte, acc Access) ([]*MR, error) {
	mrs := make([]*MR, len(mems))
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(runtime.GOMAXPROCS(0))
	for i, mem := range mems {
		g.Go(func() (err error) {
			if err = gctx.Err(); err == nil {
				mrs[i], err = pd.RegMR(mem, acc)
			}
			return err
		})
	}
	err := g.Wait()
	if err == nil {
		return mrs, nil
	}
	if ctx.Err() != nil {
		err = pd.dev.opError("register memory", 0, ctx.Err())
	}
	for _, m := range mrs {
		if m != nil {
			err = joinErr(err, m.Deregister())
		}
	}
	return nil, err
}

func joinErr(err, more error) error {
	if more == nil {
		return err
	}
	return errors.Join(err, more)
}

// Close gives the domain up. With live MRs, MWs, QPs or SRQs it returns
// *BusyError and changes nothing.
func (pd *PD) Close() error {
	return pd.obj.shut("close", "PD", nil, pd.drv.Dealloc, nil)
}

// sumLocked counts the requests that name m, over all queues of the PD.
// Device.mu is held. It is independent of the depth of the queues.
func (pd *PD) sumLocked(m *MR) (total int, busy *BusyError) {
	for q := range pd.qps {
		q.mu.Lock()
		send, recv := q.uses.split(m)
		q.mu.Unlock()
		if n := send + recv; n > 0 {
			busy = busy.orNew(m)
			busy.QPs[q.qpn] += n
			busy.Uses = append(busy.Uses, Use{
				Kind: KindQP, ID: q.obj.id, QPN: q.qpn, State: q.State(), Send: send, Recv: recv,
				SendCQ: q.sendCQ.obj.id, RecvCQ: q.recvCQ.obj.id,
			})
			total += n
		}
	}
	for s := range pd.srqs {
		s.mu.Lock()
		n := s.uses.count(m)
		s.mu.Unlock()
		if n > 0 {
			busy = busy.orNew(m)
			busy.SRQs += n
			busy.Uses = append(busy.Uses, Use{Kind: KindSRQ, ID: s.obj.id, Recv: n})
			total += n
		}
	}
	if busy != nil {
		slices.SortFunc(busy.Uses, func(x, y Use) int { return cmp.Compare(x.ID, y.ID) })
	}
	return total, busy
}

func (e *BusyError) orNew(m *MR) *BusyError {
	if e == nil {
		e = &BusyError{What: m.String(), QPs: map[uint32]int{}}
	}
	return e
}
