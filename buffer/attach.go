package buffer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/argonaut-rdma/argonaut/verbs"
)

// attachment is the arena on one PD.
type attachment struct {
	pd     *verbs.PD
	mrs    []*verbs.MR // per region
	jobs   []*job      // their deregistrations
	grants atomic.Int64
}

// Attach registers every region on pd, with local rights (and window binding
// where the device has windows), or none. Before that it checks the device's
// limits and, where the device pins, RLIMIT_MEMLOCK: see Preflight. Attaching
// again changes nothing. It may take long for large arenas; ctx ends it.
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
		return fmt.Errorf("buffer: attach: an earlier Detach from this PD is not finished: call Detach again: %w", verbs.ErrBusy)
	}
	caps := pd.Device().Caps()
	if err := preflight(a.cfg, caps, systemLimits()); err != nil {
		return err
	}
	acc := verbs.AccessLocalWrite
	if caps.MW2 {
		acc |= verbs.AccessMWBind
	}
	mems := make([][]byte, len(a.regions))
	for i := range a.regions {
		mems[i] = a.regions[i].mem
	}
	mrs, err := pd.RegMRs(ctx, mems, acc)
	if err != nil {
		return registrationError(a.cfg, caps, err)
	}
	at := &attachment{pd: pd, mrs: mrs}
	for _, mr := range mrs {
		at.jobs = append(at.jobs, &job{run: func() error { return deregister(mr) }})
	}
	a.publish(append(slices.Clone(*a.attachments.Load()), at))
	return nil
}

// lockAttach waits for its turn until ctx ends: registrations take long.
func (a *Arena) lockAttach(ctx context.Context) error {
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

// left is the attachment of a Detach that is not finished.
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
// deregistering when ctx ends, is named in the error; call Detach again for
// it. As soon as Detach deregisters, SGE(pd) returns SGEs that a post refuses.
// Detaching what is not attached returns nil.
func (a *Arena) Detach(ctx context.Context, pd *verbs.PD) error {
	if err := a.lockAttach(ctx); err != nil {
		return err
	}
	defer a.unlockAttach()
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
	if errs := a.deregister(ctx, []*attachment{at}); errs != nil {
		return fmt.Errorf("buffer: detach: %w", errors.Join(errs...))
	}
	return nil
}

// deregister deregisters what is left of ats, which are in a.detaching, and
// says what still is. Under attachSem.
func (a *Arena) deregister(ctx context.Context, ats []*attachment) (errs []error) {
	var jobs []*job
	for _, at := range ats {
		jobs = append(jobs, at.jobs...)
	}
	left := batch(ctx, jobs)
	for _, at := range ats {
		done := true
		for i, err := range left[:len(at.jobs)] {
			if err != nil {
				done = false
				errs = append(errs, fmt.Errorf("region %d (lkey 0x%x, address 0x%x, %d bytes): %w",
					i, at.mrs[i].LKey(), at.mrs[i].Addr(), at.mrs[i].Length(), err))
			}
		}
		left = left[len(at.jobs):]
		if done {
			a.detaching = slices.DeleteFunc(a.detaching, func(o *attachment) bool { return o == at })
		}
	}
	return errs
}

// busy says what keeps the attachment from being ended.
func (at *attachment) busy() error {
	if n := at.grants.Load(); n > 0 {
		return fmt.Errorf("buffer: detach: %d grants are live on this PD: Revoke them first: %w", n, verbs.ErrBusy)
	}
	n := 0
	for _, mr := range at.mrs {
		n += mr.InFlight()
	}
	if n > 0 {
		return fmt.Errorf("buffer: detach: posted work names the arena %d times on this PD: drain or close its QPs and SRQs first: %w", n, verbs.ErrBusy)
	}
	return nil
}

// registered reports whether a device may still access region i.
func (a *Arena) registered(i int) bool {
	for _, at := range a.detaching {
		j := at.jobs[i]
		j.mu.Lock()
		done := j.state == jobDone
		j.mu.Unlock()
		if !done {
			return true
		}
	}
	return false
}
