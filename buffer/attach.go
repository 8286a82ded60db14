package buffer

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync/atomic"

	"github.com/argonaut-rdma/argonaut/verbs"
)

// attachment is the arena on one PD.
type attachment struct {
	pd     *verbs.PD
	acc    verbs.Access
	keys   KeyKind
	regs   []registration // per region of the arena
	grants atomic.Int64
}

// registration is one region on one PD.
type registration struct {
	mr  atomic.Pointer[verbs.MR]
	job *job // the deregistration, nil without a registration. Under attachSem
}

// set says what is registered, by jobs that have run.
func (r *registration) set(mr *verbs.MR) {
	r.job = &job{run: func() error { return deregister(mr) }}
	r.mr.Store(mr)
}

func (r *registration) clear() {
	r.job = nil
	r.mr.Store(nil)
}

// registered reports whether a device may still access the region. Under
// attachSem.
func (r *registration) registered() bool { return r.job != nil && !r.job.done() }

// Attach registers every region on pd, with local rights (and window binding
// where the device has windows; for remote rights see Config.TrustFabric), or none; regions that are added later are
// registered before they are used. Before that it checks the device's limits
// and, where the device pins, RLIMIT_MEMLOCK: see Preflight; and, where the
// device pins, it touches the memory on all cores, which the device would do on
// one. Attaching again changes nothing. It may take long for large arenas: see
// Config.Progress; ctx ends it. A failure is a *BatchError or *LimitError; what
// the device has registered and does not give up again is left to Detach or Close.
func (a *Arena) Attach(ctx context.Context, pd *verbs.PD) error {
	if err := a.lockAttach(ctx); err != nil {
		return err
	}
	defer a.unlockAttach()
	a.mu.Lock()
	closing := a.closing
	a.mu.Unlock()
	if closing {
		return errArenaClosed
	}
	if a.Attached(pd) {
		return nil
	}
	if a.left(pd) != nil {
		return fmt.Errorf("buffer: attach: an earlier Attach to or Detach from this PD is not undone: call Detach again: %w", verbs.ErrBusy)
	}
	caps := pd.Device().Caps()
	if err := preflight(a.cfg, caps, systemLimits()); err != nil {
		return err
	}
	at := &attachment{
		pd: pd, acc: verbs.AccessLocalWrite, keys: keysOf(caps, a.cfg.TrustFabric), regs: make([]registration, len(a.regions)),
	}
	if caps.MW2 {
		at.acc |= verbs.AccessMWBind
	}
	if a.cfg.TrustFabric && (at.keys == KeyWide || caps.ReadSinkNeedsRemoteWrite) {
		at.acc |= verbs.AccessRemoteRead | verbs.AccessRemoteWrite
	}
	var live []int
	for i := range a.regions {
		if a.regions[i].state == regionLive {
			live = append(live, i)
		}
	}
	if caps.Pins && !a.cfg.Prefault {
		if err := a.touch(ctx, live); err != nil {
			return err
		}
	}
	if err := a.register(ctx, "attach", []*attachment{at}, live, at.acc); err != nil {
		if at.registered() { // the rollback failed, too
			a.detaching = append(a.detaching, at)
		}
		return err
	}
	a.publish(append(slices.Clone(*a.attachments.Load()), at))
	return nil
}

// touch faults the memory of regions in, on all cores. Under attachSem.
func (a *Arena) touch(ctx context.Context, regions []int) error {
	rs := make([]*region, len(regions))
	for i, r := range regions {
		rs[i] = &a.regions[r]
	}
	return prefaultAll(ctx, a.cfg, rs)
}

// register registers regions on every one of ats, on a pool, or on none. What can
// not be rolled back stays in ats, and the BatchError says so. Under attachSem;
// memory of the caller is guarded by the state of its entry.
func (a *Arena) register(ctx context.Context, op string, ats []*attachment, regions []int, acc verbs.Access) error {
	var total int64
	for _, i := range regions {
		total += int64(len(a.regions[i].mem)) * int64(len(ats))
	}
	p := a.cfg.progress("register", total)
	var jobs []*job
	mrs := make([]*verbs.MR, len(ats)*len(regions))
	for k, at := range ats {
		for n, i := range regions {
			mem, mr := a.regions[i].mem, &mrs[k*len(regions)+n]
			jobs = append(jobs, &job{run: func() (err error) {
				if err = ctx.Err(); err == nil {
					*mr, err = at.pd.RegMR(mem, acc|at.acc)
				}
				if err == nil {
					p.add(int64(len(mem)))
				}
				return err
			}})
		}
	}
	if len(jobs) == 0 {
		return nil
	}
	errs := batch(ctx, registering, max(2, runtime.GOMAXPROCS(0)), jobs)
	for _, j := range jobs {
		j.wait() // what is being registered has to be rolled back, too
	}
	fail := errors.Join(errs...)
	if fail == nil {
		for k, at := range ats {
			for n, i := range regions {
				at.regs[i].set(mrs[k*len(regions)+n])
			}
		}
		return nil
	}
	e := &BatchError{Op: op, Device: ats[0].pd.Device().Name(), RolledBack: true}
	undo := make([]*job, len(jobs))
	for n, mr := range mrs {
		undo[n] = &job{run: func() error {
			if mr == nil {
				return nil
			}
			return deregister(mr)
		}}
	}
	for n, err := range batch(context.WithoutCancel(ctx), deregistering, inDevice, undo) {
		i := regions[n%len(regions)]
		res := RegionResult{Region: i, Addr: a.regions[i].addr(), Length: uint64(len(a.regions[i].mem)), Took: jobs[n].took}
		if errs[n] != nil {
			at := ats[n/len(regions)]
			res.Err = registrationError(int64(len(a.regions[i].mem)), total/int64(len(ats)), at.pd.Device().Caps(), errs[n])
		}
		if err != nil {
			e.RolledBack = false
			ats[n/len(regions)].regs[i].set(mrs[n])
			res.LKey = mrs[n].LKey()
			res.Err = errors.Join(res.Err, fmt.Errorf("and not deregistered again: %w", err))
		}
		e.Results = append(e.Results, res)
	}
	return e
}

// lockAttach waits for its turn until ctx ends: registrations take long.
func (a *Arena) lockAttach(ctx context.Context) error {
	if a.foreign != nil {
		return errForeign
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	select {
	case a.attachSem <- struct{}{}:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("buffer: another Attach, Detach or Close is still running: %w", ctx.Err())
	}
}

func (a *Arena) unlockAttach() { <-a.attachSem }

// deregister gives mr up. A device that is gone has no more claim to it.
func deregister(mr *verbs.MR) error {
	err := mr.Deregister()
	if err != nil && errors.Is(err, verbs.ErrDeviceLost) {
		return nil
	}
	return err
}

// publish makes ats what SGE sees.
func (a *Arena) publish(ats []*attachment) { a.attachments.Store(&ats) }

// Attached reports whether SGEs for pd can be made.
func (a *Arena) Attached(pd *verbs.PD) bool { return a.attachment(pd) != nil }

func (a *Arena) attachment(pd *verbs.PD) *attachment {
	for _, at := range *a.attachments.Load() {
		if at.pd == pd {
			return at
		}
	}
	return nil
}

// left is the attachment of a Detach that is not finished, or of an Attach that
// is not undone.
func (a *Arena) left(pd *verbs.PD) *attachment {
	for _, at := range a.detaching {
		if at.pd == pd {
			return at
		}
	}
	return nil
}

// Detach deregisters every region from pd, in parallel batches. Buffers may be
// held meanwhile, but no posted work may name them on pd and no grant be live
// there: otherwise the error matches verbs.ErrBusy and everything stays
// attached. A region that the device fails to deregister, or is still
// deregistering when ctx ends, is named in the *BatchError; call Detach again
// for it. As soon as Detach deregisters, SGE(pd) returns SGEs that a post
// refuses. Detaching what is not attached returns nil.
func (a *Arena) Detach(ctx context.Context, pd *verbs.PD) error {
	if err := a.lockAttach(ctx); err != nil {
		return err
	}
	defer a.unlockAttach()
	return a.detach(ctx, pd)
}

// detach is Detach. Under attachSem, or what guards a RegCache's registrations.
func (a *Arena) detach(ctx context.Context, pd *verbs.PD) error {
	at := a.left(pd)
	if at == nil {
		if at = a.attachment(pd); at == nil {
			return nil
		}
		// From here on SGE and Grant do not find it. Those that did before
		// show in the counts, or are refused by the core, which closes a
		// region to posts before it counts.
		others := slices.DeleteFunc(slices.Clone(*a.attachments.Load()), func(o *attachment) bool { return o == at })
		a.publish(others)
		if err := at.busy(); err != nil {
			a.publish(append(others, at))
			return err
		}
		a.detaching = append(a.detaching, at)
	}
	if results, ok := a.deregister(ctx, []*attachment{at}); !ok {
		return &BatchError{Op: "detach", Device: pd.Device().Name(), Results: results}
	}
	return nil
}

// deregister deregisters what is left of ats, which are in a.detaching, and
// says what became of it; ok if nothing is left. Under attachSem.
func (a *Arena) deregister(ctx context.Context, ats []*attachment) (results []RegionResult, ok bool) {
	var jobs []*job
	var total int64
	for _, at := range ats {
		for i := range at.regs {
			if r := &at.regs[i]; r.job != nil {
				jobs = append(jobs, r.job)
				mr := r.mr.Load()
				total += int64(mr.Length())
				results = append(results, RegionResult{Region: i, Addr: mr.Addr(), Length: mr.Length(), LKey: mr.LKey()})
			}
		}
	}
	p := a.cfg.progress("deregister", total)
	ok = true
	for n, err := range batch(ctx, deregistering, inDevice, jobs) {
		results[n].Err, results[n].Took = err, jobs[n].took
		ok = ok && err == nil
		if err == nil {
			p.add(int64(results[n].Length))
		}
	}
	for _, at := range ats {
		if !at.registered() {
			a.detaching = slices.DeleteFunc(a.detaching, func(o *attachment) bool { return o == at })
		}
	}
	return results, ok
}

// registered reports whether a device may still access some region. Under
// attachSem.
func (at *attachment) registered() bool {
	for i := range at.regs {
		if at.regs[i].registered() {
			return true
		}
	}
	return false
}

// busy says what keeps the attachment from being ended.
func (at *attachment) busy() error {
	if n := at.grants.Load(); n > 0 {
		return fmt.Errorf("buffer: detach: %d grants are live on this PD: Revoke them first: %w", n, verbs.ErrBusy)
	}
	n := 0
	for i := range at.regs {
		if mr := at.regs[i].mr.Load(); mr != nil {
			n += mr.InFlight()
		}
	}
	if n > 0 {
		return fmt.Errorf("buffer: detach: posted work names the arena %d times on this PD: drain or close its QPs and SRQs first: %w", n, verbs.ErrBusy)
	}
	return nil
}

// registered reports whether a device may still access region i.
func (a *Arena) registered(i int) bool {
	return slices.ContainsFunc(a.detaching, func(at *attachment) bool { return at.regs[i].registered() })
}
