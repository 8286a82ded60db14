package conn

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"

	"github.com/argonaut-rdma/argonaut/buffer"
	"github.com/argonaut-rdma/argonaut/verbs"
)

// bindDepth is how many windows a connection may be binding at a time, where
// grants are windows: requests on its queue pair besides those of Config.
const bindDepth = 64

// grantID is what tells grants apart that the user has been given. Wide keys are
// those of a region, and one buffer may be granted twice.
type grantID struct {
	addr uint64
	rkey uint32
}

// keyState is the grants of a connection.
type keyState struct {
	grants map[grantID][]*buffer.Grant // of the user
	binds  int                         // windows being bound
	bound  chan struct{}               // closed when one has been; nil: nobody waits
	heard  uint64                      // rendezvous that the peer says to have fetched
	invs   []uint32                    // the peer's keys that are used up: the next packets invalidate them
}

// bindDepth is what windows add to the depth of a send queue.
func (e *Endpoint) bindDepth() int {
	if e.keys == buffer.KeyWindow {
		return bindDepth
	}
	return 0
}

// keysOf is what grants of l are: the narrowest that all its buffers can have.
func (e *Endpoint) keysOf(l *buffer.List) buffer.KeyKind {
	if e.keys == buffer.KeyScoped || e.keys == buffer.KeyWindow {
		return e.keys
	}
	for i := range l.Segments() {
		if e.keys == buffer.KeyNone || l.At(i).Arena().Keys(e.pd) != buffer.KeyWide {
			return buffer.KeyNone
		}
	}
	return buffer.KeyWide
}

// ours refuses a list with buffers that are not registered on the endpoint's
// protection domain with the rights need: of other arenas, or of memory of the
// caller that a RegCache of other domains has.
func (c *Conn) ours(l *buffer.List, need verbs.Access) error {
	for i := range l.Segments() {
		b := l.At(i)
		if b.Arena() == c.e.arena && need&^verbs.AccessLocalWrite == 0 {
			continue
		}
		rights, ok := b.Rights(c.e.pd)
		if !ok {
			return fmt.Errorf("%w: a buffer that is not registered on the endpoint's PD: of another arena, or of a RegCache without Endpoint.PD", verbs.ErrInvalid)
		}
		if missing := need &^ rights; missing != 0 {
			return fmt.Errorf("%w: a buffer that is not registered for %v", verbs.ErrInvalid, missing)
		}
	}
	return nil
}

// canKey reports whether n buffers of l can be granted now. With c.mu.
func (c *Conn) canKey(l *buffer.List, n int) bool {
	switch c.e.keysOf(l) {
	case buffer.KeyNone:
		return false
	case buffer.KeyWindow:
		return c.keys.binds+n <= bindDepth
	}
	return true
}

// key makes g a grant of b. A window has to be there (Grant.Window), and a place
// for the request (canKey). With c.mu.
func (c *Conn) key(g *buffer.Grant, b buffer.RDMABuffer, acc verbs.Access) error {
	if c.e.keys != buffer.KeyWindow {
		return b.GrantInto(g, c.qp, acc)
	}
	err := b.GrantWindowInto(g, c.qp, acc, wrBind)
	if err == nil {
		c.keys.binds++
	}
	return err
}

// bindCompleted: a window is bound, or the connection is over. On the poller.
func (c *Conn) bindCompleted() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.keys.binds--
	if c.keys.bound != nil {
		close(c.keys.bound)
		c.keys.bound = nil
	}
	c.finishRndv() // what has waited for it
}

// awaitBind waits until a window has been bound. With c.mu, which it gives up
// meanwhile.
func (c *Conn) awaitBind(ctx context.Context) error {
	if c.keys.bound == nil {
		c.keys.bound = make(chan struct{})
	}
	ch := c.keys.bound
	c.mu.Unlock()
	defer c.mu.Lock()
	select {
	case <-ch:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-c.life.Done():
		return c.Err()
	}
}

// Grant lets the peer read, or with write write, the bytes of l until Revoke or
// the end of the connection; until then it holds references of its own. It
// borrows l. It returns one Grant per buffer of l, in order. Where grants are
// memory windows it waits while many are being bound, until ctx ends; where they
// are wide keys see Config.Exposed. Errors: ErrNotSupported where the device can
// not confine a grant to the range and the connection and l is not of
// Config.Exposed; verbs.ErrLimit (windows); verbs.ErrInvalid (memory that is not
// registered, or not for that); ctx's; why the connection ended.
func (c *Conn) Grant(ctx context.Context, l *buffer.List, write bool) ([]Grant, error) {
	return c.grant(ctx, l, buffer.GrantTerms{Access: remoteRight(write)}, nil)
}

// GrantOnce is Grant for one transfer: the peer's Read or Write of a grant ends
// that grant, whatever its range was, by a send with invalidate, and used, if not
// nil, is called with it, on a poller, unless OnFault has been; it must not block.
// What the peer sends after its transfer may come before that. Grants that the peer does not use are
// ended by Revoke. ErrNotSupported, besides, where one of the ends has no send
// with invalidate (verbs.Features), and for wide keys.
func (c *Conn) GrantOnce(ctx context.Context, l *buffer.List, write bool, used func(Grant)) ([]Grant, error) {
	return c.grant(ctx, l, buffer.GrantTerms{Access: remoteRight(write), Once: true}, used)
}

func remoteRight(write bool) verbs.Access {
	if write {
		return verbs.AccessRemoteWrite
	}
	return verbs.AccessRemoteRead
}

func (c *Conn) grant(ctx context.Context, l *buffer.List, t buffer.GrantTerms, used func(Grant)) ([]Grant, error) {
	need := verbs.Access(0)
	if t.Access == verbs.AccessRemoteWrite {
		need = verbs.AccessLocalWrite
	}
	if err := c.ours(l, need); err != nil {
		return nil, err
	}
	if c.e.keysOf(l) == buffer.KeyNone {
		return nil, fmt.Errorf("%w: %s has no keys that are confined to a range and a connection, and the memory is not of Config.Exposed",
			ErrNotSupported, c.e.caps.Name)
	}
	if n := l.Segments(); c.e.keys == buffer.KeyWindow && n > bindDepth {
		return nil, fmt.Errorf("%w: a grant of %d buffers, %s binds %d at a time: grant them in parts", verbs.ErrLimit, n, c.e.caps.Name, bindDepth)
	}
	gs := make([]Grant, 0, l.Segments())
	c.mu.Lock()
	defer c.mu.Unlock()
	err := ctx.Err()
	for err == nil && !c.canKey(l, l.Segments()) {
		err = c.awaitBind(ctx)
	}
	for i := 0; i < l.Segments() && err == nil; i++ {
		var g Grant
		if g, err = c.grantOne(l.At(i), t, used); err == nil {
			gs = append(gs, g)
		}
	}
	if err != nil {
		for _, g := range gs {
			err = errors.Join(err, c.revokeLocked(ctx, grantID{g.Addr, g.RKey}))
		}
		return nil, err
	}
	return gs, nil
}

// grantOne grants one buffer to the user's peer. With c.mu.
func (c *Conn) grantOne(b buffer.RDMABuffer, t buffer.GrantTerms, used func(Grant)) (Grant, error) {
	if err := c.Err(); err != nil {
		return Grant{}, err
	}
	if c.qp == nil {
		return Grant{}, fmt.Errorf("%w: not connected yet", verbs.ErrQPState)
	}
	var out Grant
	var g *buffer.Grant
	if t.Once {
		t.Ended = func(buffer.GrantEnd) {
			c.mu.Lock() // which we have now
			g, out := g, out
			c.mu.Unlock()
			c.usedOnce(g, out, used)
		}
	}
	var err error
	if c.e.keys == buffer.KeyWindow {
		if g, err = b.GrantWindowFor(c.qp, t, wrBind); err == nil {
			c.keys.binds++
		}
	} else {
		g, err = b.GrantFor(c.qp, t)
	}
	if err != nil {
		return Grant{}, err
	}
	out = Grant{Addr: g.Addr(), RKey: g.RKey(), Len: uint64(g.Len()), Write: t.Access == verbs.AccessRemoteWrite, Epoch: c.epoch, Once: t.Once}
	if c.keys.grants == nil {
		c.keys.grants = make(map[grantID][]*buffer.Grant)
	}
	id := grantID{out.Addr, out.RKey}
	c.keys.grants[id] = append(c.keys.grants[id], g)
	return out, nil
}

// usedOnce: the peer has ended g. On the poller.
func (c *Conn) usedOnce(g *buffer.Grant, out Grant, used func(Grant)) {
	id := grantID{out.Addr, out.RKey}
	c.mu.Lock()
	if g.Buffer().IsZero() { // else it could not be withdrawn, and is at the end of the connection
		c.keys.grants[id] = slices.DeleteFunc(c.keys.grants[id], func(o *buffer.Grant) bool { return o == g })
		if len(c.keys.grants[id]) == 0 {
			delete(c.keys.grants, id)
		}
	}
	c.mu.Unlock()
	if used != nil && !c.rx.dead {
		used(out)
	}
}

// Revoke ends grants: no byte is read or written through them after it returned
// nil. Where they are wide keys (Config.Exposed) it only gives the memory back:
// the peer is trusted not to use them any more. Grants that are not live are
// ignored. On error, ctx's among them, some are still live; call it again.
func (c *Conn) Revoke(ctx context.Context, gs []Grant) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, g := range gs {
		if g.Epoch != c.epoch {
			continue
		}
		if err := c.revokeLocked(ctx, grantID{g.Addr, g.RKey}); err != nil {
			return err
		}
	}
	return nil
}

// revokeLocked revokes a grant of the user's, once it is bound. With c.mu, which
// it may give up meanwhile.
func (c *Conn) revokeLocked(ctx context.Context, id grantID) error {
	for {
		gs := c.keys.grants[id]
		if len(gs) == 0 {
			return nil
		}
		err := gs[0].Revoke()
		if err == nil {
			if c.keys.grants[id] = gs[1:]; len(gs) == 1 {
				delete(c.keys.grants, id)
			}
			return nil
		}
		if !errors.Is(err, verbs.ErrBusy) || c.keys.binds == 0 {
			return err
		}
		if werr := c.awaitBind(ctx); werr != nil {
			return errors.Join(err, werr)
		}
	}
}

// withdraw revokes every grant: the peer's access is over. Wide keys can not be
// withdrawn, so what they are of is kept until the queue pair is gone.
func (c *Conn) withdraw(gone bool) {
	c.mu.Lock()
	errs := c.withdrawLocked(gone)
	c.mu.Unlock()
	for _, err := range errs { // the user's logger may ask for what needs the lock
		c.note(slog.LevelWarn, "withdraw keys", "err", err)
	}
}

// withdrawLocked is withdraw with c.mu. It returns an error per grant of the user's,
// and per payload, that could not be withdrawn at once.
func (c *Conn) withdrawLocked(gone bool) (errs []error) {
	if c.rndv.timer != nil {
		c.rndv.timer.Stop()
	}
	for id, gs := range c.keys.grants {
		left := gs[:0]
		for _, g := range gs {
			if !gone && g.Kind() == buffer.KeyWide {
				left = append(left, g)
			} else if err := g.Revoke(); err != nil {
				errs = append(errs, fmt.Errorf("of a grant: %w", err))
				left = append(left, g)
			}
		}
		if c.keys.grants[id] = left; len(left) == 0 {
			delete(c.keys.grants, id)
		}
	}
	for i := range c.rndv.sends {
		d := &c.rndv.sends[i]
		if !gone && d.wide() {
			continue
		}
		// Keys may be left of a payload that was refused.
		if err := errors.Join(revokeAll(d.grants), d.finish()); err != nil {
			errs = append(errs, fmt.Errorf("of a rendezvous: %w", err))
		}
	}
	return errs
}

// wide reports whether keys of the payload can not be withdrawn.
func (d *rndvSend) wide() bool {
	for i := range d.grants {
		if d.grants[i].Kind() == buffer.KeyWide {
			return true
		}
	}
	return false
}
